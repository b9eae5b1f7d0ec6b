"""Runs the counting model on real processes, checked by the simulator's checker.

    crowd = Crowd(plan, address, den)       every client in a process of its own
    crowd.start(0); crowd.start(1)
    crowd.until(1, 20)                      20 of its pushes are acknowledged
    crowd.kill(1)
    crowd.finish()                          the others are done
    assert not crowd.violations(kv)

Each process writes its history line by line, before it sends anything, so that the calls of a
killed one are known. Times are of the machine's monotonic clock, which differs between the cores
of some virtual machines (3 ms were seen): so each call is taken to have begun a little earlier,
and to have ended a little later, than was written.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from shoal.client import KV
from shoal.events import Begin, End, Event, Note
from shoal.limits import MILLISECOND
from shoal.nodes.loop import Loop
from shoal.nodes.worker import Worker
from shoal.security.safety import Safety
from shoal.simulation.faults import FaultPlan
from shoal.simulation.scenarios import Violation
from shoal.simulation.store_checker import check, check_end, client_name
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.store_workload import (
    TABLE,
    HistoryRecorder,
    IncarnationEnded,
    SimulatedDealer,
    client_life,
    worker_life,
)
from shoal.store.client.split import Layout
from shoal.wire.zmq import ZmqTransport
from tests.support import PATIENCE
from tests.support.sandbox import Den, soon

_CALLS = 1 << 20  # calls of one process, at most
_SKEW = 10 * MILLISECOND  # between the clocks of two cores
_decoder = msgspec.json.Decoder(Event)


class Orders(msgspec.Struct, frozen=True):
    """The orders of one process."""

    plan: FaultPlan
    address: str
    column: int  # the column whose keys it pushes, where clients count
    life: int  # different in every process
    slots: list[int]  # the slots to compute, where slots are counted
    history: str
    seconds: float
    safety: str = "local"  # a Safety as text


class Lines(list[Event]):
    """A history that is on disk as soon as it is written."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, record: Event) -> None:
        os.write(self._file, msgspec.json.encode(record) + b"\n")


class Diary(HistoryRecorder):
    """A recorder with call numbers that differ from those of other processes."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders.plan, time.monotonic_ns)
        self.history = Lines(orders.history)
        self._calls = orders.life * _CALLS


class Hand(SimulatedDealer):
    """A dealer that has dealt all slots of one worker beforehand."""

    def __init__(self, plan: FaultPlan, slots: Sequence[int]) -> None:
        super().__init__(plan)
        self._new, self._all = deque(slots), len(slots)


def plan_of(kind: Any, workers: int, slots: int, servers: int = 2, **settings: Any) -> FaultPlan:
    """A small plan with short compute times; for clients ``slots`` is the pushes of each."""
    given: dict[str, Any] = {
        "seed": 0,
        "max_delay": 2 if kind == "each" else 0,
        "slots_per_step": workers,
        "slots_per_pass": None,
        "dense": True,
        "think": 4,
        **settings,
    }
    return FaultPlan(servers=servers, workers=workers, kind=kind, slots=slots, **given)


def create(kv: KV, plan: FaultPlan) -> None:
    """Creates the table that all processes count in."""
    kv.create(TABLE, StoreRun(plan)._spec())


def live(orders: Orders) -> None:
    """Runs one client or worker, restarted until its work is done."""
    name, plan = client_name(orders.column), orders.plan
    diary, dealer, done = Diary(orders), Hand(plan, orders.slots), [0]
    deadline = time.monotonic() + orders.seconds
    for life in range(1_000):
        random = Random(f"{plan.seed}/{name}/{orders.life}/{life}")
        worker = Worker(name, "client" if plan.kind == "clients" else "worker", secrets.token_hex(8), seed=orders.life)
        transport = ZmqTransport(name, safety=Safety.of_plain(orders.safety))
        transport.connect("coordinator", orders.address)
        loop, broken = Loop(worker, transport), list[Worker]()
        diary.on_broken = broken.append
        whole = worker.start(
            client_life(worker, diary, orders.column, done, random)
            if plan.kind == "clients"
            else worker_life(worker, diary, dealer, random)
        )
        try:
            while not whole.done and not broken:
                loop.turn()
                if time.monotonic() > deadline:
                    tasks = [repr(op.task) for op in dict.fromkeys(worker.client.dispatcher.running.values())]
                    raise TimeoutError(f"{name} is not done after {orders.seconds:g} s: {tasks or 'no call in flight'}")
            if whole.error is not None and not isinstance(whole.error, IncarnationEnded):
                raise whole.error
            over = whole.done and whole.error is None
            if not over:
                cause = whole.error.__cause__ if whole.error is not None else "a push that failed"
                print(f"{name}, life {life}, ended: {type(cause).__name__}: {cause}", flush=True)
            loop.carry_out(worker.leave())
        finally:
            loop.close()
        if over:
            return
        dealer.give_back(name)


class Crowd:
    """Clients or workers of one cluster, each in its own process, and their histories."""

    def __init__(
        self,
        plan: FaultPlan,
        address: str,
        den: Den,
        seconds: float = PATIENCE,
        within: Callable[[int], Sequence[str]] = lambda column: (),
        safety: Callable[[int], Safety] = lambda column: Safety.local(),
    ) -> None:
        """``within`` and ``safety``: the command prefix and keys of columns on their own hosts."""
        self.plan, self.address, self._den, self._seconds = plan, address, den, seconds
        self._within, self._safety = within, safety
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.ended: list[str] = []  # why the lives of finished processes ended
        self._files: list[tuple[int, Path]] = []
        self._notes: list[Event] = []

    def start(self, column: int, slots: Sequence[int] = ()) -> None:
        """Starts a process for this column: the first one, or one that replaces a killed one."""
        life = len(self._files) + 1
        path = self._den.folder / f"history-{secrets.token_hex(4)}.jsonl"
        safety = self._safety(column).plain
        orders = Orders(self.plan, self.address, column, life, list(slots), str(path), self._seconds, safety)
        self._files.append((column, path))
        arguments = ("-m", "tests.support.counting", msgspec.json.encode(orders).decode())
        self.processes[column] = self._den.start(*arguments, within=self._within(column))

    def kill(self, column: int) -> None:
        """Kills with SIGKILL, and notes it."""
        process = self.processes.pop(column)
        self.note("crashed", column)
        process.kill()
        process.communicate()

    def signal(self, column: int, number: signal.Signals) -> None:
        self.processes[column].send_signal(number)

    def note(self, what: Any, column: int, at: int = 0) -> None:
        """Notes an event that changes what a client may expect, and was not before ``at``."""
        last = [one for one in self.history(column) if not isinstance(one, End)]
        incarnation = last[-1].incarnation if last else 0
        self._notes.append(Note(at or time.monotonic_ns(), what, client_name(column), incarnation))

    def history(self, column: int | None = None) -> list[Event]:
        """The history of all processes, or of one, in the order of time."""
        found: list[Event] = [] if column is not None else list(self._notes)
        for of, path in self._files:
            if path.exists() and column in (None, of):
                whole = path.read_bytes().rpartition(b"\n")[0]
                found += [_decoder.decode(line) for line in whole.splitlines()]
        return sorted(found, key=lambda record: record.time)

    def begun(self, column: int) -> int:
        """How many pushes it has sent, or is about to send."""
        return sum(isinstance(one, Begin) and one.kind == "push" for one in self.history(column))

    def acknowledged(self, column: int) -> int:
        history = self.history(column)
        pushes = {one.call for one in history if isinstance(one, Begin) and one.kind == "push"}
        return sum(isinstance(one, End) and one.outcome == "ok" and one.call in pushes for one in history)

    def until(self, column: int, pushes: int) -> None:
        """Waits until this many of its pushes are acknowledged."""

        def enough() -> bool:
            process = self.processes[column]
            assert process.poll() in (None, 0), f"{client_name(column)} failed: {process.communicate()[1]}"
            return self.acknowledged(column) >= pushes

        assert soon(enough), f"{client_name(column)}: {self.acknowledged(column)} of {pushes} pushes"

    def finish(self) -> None:
        """Waits until all processes that are left have done their work."""
        for column, process in self.processes.items():
            try:
                out, errors = process.communicate(timeout=self._seconds + PATIENCE)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{client_name(column)} does not end") from None
            assert process.returncode == 0, errors
            self.ended += out.splitlines()
        self.processes.clear()

    def violations(self, kv: KV) -> list[Violation]:
        """The checker's violations, for the history and the current table."""
        history, recorder = widened(self.history()), HistoryRecorder(self.plan, time.monotonic_ns)
        assert any(isinstance(one, End) and one.seen for one in history), "nobody has pulled: nothing is shown"
        layout: Layout = kv._client.session.layout(TABLE)
        values = kv.pull(TABLE, recorder.everything(layout)).result(PATIENCE)
        return [
            *check(self.plan, history, set()),
            *check_end(self.plan, history, set(), recorder.table(values)),
        ]


def widened(history: Sequence[Event]) -> list[Event]:
    """The same calls, each a little longer than it was."""
    by = {Begin: -_SKEW, End: _SKEW, Note: 0}
    found = [msgspec.structs.replace(one, time=one.time + by[type(one)]) for one in history]
    return sorted(found, key=lambda one: one.time)


if __name__ == "__main__":
    live(msgspec.json.decode(sys.argv[1], type=Orders))
