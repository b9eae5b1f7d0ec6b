"""Worker processes are killed, stopped, slow, wrong or started twice (F1-F4, F35-F37).

The counting model and the checker are those of the simulator. Whole training runs with the same
faults are in test_training.py; here the checker reads the histories of all clients. The proxy is
the failpoint: it holds a message back at the exact moment under test.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest

import shoal
from shoal.errors import Fenced, Refused, ShoalError
from shoal.events import Begin
from shoal.launch.processes import ProcessCluster
from shoal.limits import SECOND
from tests.support import PATIENCE
from tests.support.byte_proxy import Frames, MessageInTransit
from tests.support.counting import (
    TABLE,
    Crowd,
    create,
    plan_of,
)
from tests.support.faulty_proxy import FaultyProxy, LinkFaults
from tests.support.quick import QUICK
from tests.support.sandbox import Den, soon

WORKERS, SLOTS = 3, 45
THINK = 40  # ms at most for a slot: leaves time to hit a worker before its last slot
MINE = {column: list(range(column, SLOTS, WORKERS)) for column in range(WORKERS)}
VICTIM = 1


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    timing = getattr(request, "param", None)  # of tests that wait until a node is declared dead
    with shoal.local(servers=2, processes=True, transport="tcp", timing=timing) as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster


@pytest.fixture
def kv(cluster: ProcessCluster) -> Iterator[shoal.KV]:
    with cluster.client() as kv:
        yield kv
        for table in kv.tables():
            kv.drop(table)


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    with FaultyProxy(seed=1) as proxy:
        yield proxy


@pytest.fixture
def gather(cluster: ProcessCluster, kv: shoal.KV, proxy: FaultyProxy, den: Den) -> Callable[..., Crowd]:
    """Returns a function that creates a table and starts three workers behind the proxy."""

    def gather(kind: str, **settings: int) -> Crowd:
        slots = SLOTS if kind != "clients" else SLOTS // WORKERS
        plan = plan_of(kind, WORKERS, slots, **{"think": THINK, **settings})
        create(kv, plan)
        crowd = Crowd(plan, proxy.through(cluster.address), den)
        for column, slots in MINE.items():
            crowd.start(column, slots)
        return crowd

    return gather


def members(kv: shoal.KV) -> dict[str, int]:
    """Returns the incarnation of each member, by name."""
    kv.tables()
    return {member.name: member.incarnation for member in kv._client.session.view.members}


# ---------------------------------------------------------------- killed


@pytest.mark.variants(slow=["each"])
@pytest.mark.parametrize("kind", ["each", "step"])
def test_a_worker_killed_between_pushes_is_made_up_for(kind: str, gather: Callable[..., Crowd], kv: shoal.KV) -> None:
    """F1: a new process computes all its slots again; counted slots do not count again."""
    crowd = gather(kind)
    crowd.until(VICTIM, Random(kind).randrange(2, 7))
    crowd.kill(VICTIM)
    assert crowd.acknowledged(VICTIM) < len(MINE[VICTIM])
    crowd.start(VICTIM, MINE[VICTIM])
    crowd.finish()
    assert crowd.violations(kv) == []
    assert kv.stats(TABLE)["repeated"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("cluster", [QUICK], ids=["quick"], indirect=True)
def test_who_was_killed_is_not_waited_for_longer_than_it_takes_to_notice(
    gather: Callable[..., Crowd], kv: shoal.KV
) -> None:
    """F1: the others wait at the bound until it is declared dead, then run to their end.

    No process takes its place meanwhile.
    """
    crowd = gather("each")
    crowd.until(VICTIM, 3)
    crowd.kill(VICTIM)
    crowd.finish()
    crowd.start(VICTIM, MINE[VICTIM])
    crowd.finish()
    assert crowd.violations(kv) == []


@pytest.mark.variants(slow=["push-step", "counted-each", "counted-step"])
@pytest.mark.parametrize("kind", ["each", "step"])
@pytest.mark.parametrize("edge", ["push", "counted"])
def test_a_worker_killed_after_it_sent_and_before_it_heard_is_counted_once(
    edge: str, kind: str, gather: Callable[..., Crowd], kv: shoal.KV, proxy: FaultyProxy
) -> None:
    """F2: its push is in transit, or is counted and the response is in transit.

    A push in transit arrives after the successor has joined.
    """
    crowd, victim = gather(kind), f"worker-{VICTIM}"
    crowd.until(VICTIM, 2)
    held = proxy.hold(edge, **({"sender": victim} if edge == "push" else {"to": victim}))
    held.wait(1)
    crowd.kill(VICTIM)
    crowd.start(VICTIM, MINE[VICTIM])
    if edge == "counted":
        held.discard()  # its receiver is dead
    else:
        assert soon(lambda: proxy.seen[victim, "coordinator", "hello"] > 1)
        held.release()
    crowd.finish()
    assert crowd.violations(kv) == []


# ---------------------------------------------------------------- asleep, slow


@pytest.mark.parametrize("cluster", [QUICK], ids=["quick"], indirect=True)
def test_a_worker_asleep_for_too_long_is_fenced_when_it_wakes_and_joins_again(
    gather: Callable[..., Crowd], kv: shoal.KV
) -> None:
    """F3."""
    crowd, sleeper = gather("each"), f"worker-{VICTIM}"
    crowd.until(VICTIM, 3)
    before = members(kv)[sleeper]
    crowd.signal(VICTIM, signal.SIGSTOP)
    looks = [time.monotonic_ns()]

    def is_gone() -> bool:
        looks.append(time.monotonic_ns())
        return sleeper not in members(kv)

    try:
        assert soon(is_gone)
        # It was still a member when the previous look began. Servers may learn of the removal a
        # moment earlier than this process.
        crowd.note("removed", VICTIM, at=looks[-2] - SECOND // 10)
        for column in set(MINE) - {VICTIM}:  # they go on without it
            crowd.until(column, len(MINE[column]))
    finally:
        crowd.signal(VICTIM, signal.SIGCONT)
    crowd.finish()
    incarnations = {one.incarnation for one in crowd.history(VICTIM) if hasattr(one, "incarnation")} - {0}
    # This holds whether it was stopped during a push or between two pushes.
    assert len(incarnations) == 2 and min(incarnations) == before
    assert crowd.violations(kv) == []


class Drowsy(threading.Thread):
    """Lets a process run for a share of each period only."""

    def __init__(self, process: subprocess.Popen[str], share: float) -> None:
        super().__init__(name="drowsy", daemon=True)
        self._process, self._share, self._over = process, share, threading.Event()

    def run(self) -> None:
        period = 0.2
        while not self._over.is_set() and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            self._over.wait(period * (1 - self._share))
            self._process.send_signal(signal.SIGCONT)
            self._over.wait(period * self._share)

    def stop(self) -> None:
        self._over.set()
        self.join(PATIENCE)


@pytest.mark.slow
def test_a_slow_worker_holds_the_others_at_the_bound_and_they_are_told_for_whom_they_wait(
    cluster: ProcessCluster, gather: Callable[..., Crowd], kv: shoal.KV
) -> None:
    """F4: it runs a tenth of the time, and is never declared dead."""
    crowd, slow = gather("each"), f"worker-{VICTIM}"
    drowsy = Drowsy(crowd.processes[VICTIM], 0.1)
    drowsy.start()  # from the first step on, so that steps are left for the witness
    crowd.until(VICTIM, 2)
    before = members(kv)[slow]
    told: set[str] = set()
    with cluster.worker("witness") as witness:
        witness.pull(TABLE, [SLOTS]).result(PATIENCE)
        while witness.clock < 10:  # a worker like the others, which records what it waits for
            witness.push(TABLE, (), ()).result(PATIENCE)
            pull = witness.pull(TABLE, [SLOTS])
            assert soon(lambda pull=pull: pull.done or pull.waits_for)
            told.add(pull.waits_for)
            pull.result(PATIENCE)
    assert any(f"{slow} at step" in one for one in told), told
    assert members(kv)[slow] == before
    drowsy.stop()
    crowd.finish()
    assert crowd.ended == []
    assert crowd.violations(kv) == []


# ---------------------------------------------------------------- wrong


def no_number(passing: MessageInTransit) -> Frames:
    values = np.frombuffer(passing.frames[-1], np.float32).copy()
    values[len(values) // 2] = (np.nan, np.inf, -np.inf)[len(passing.frames[0]) % 3]
    return [*passing.frames[:-1], values.tobytes()]


def wrong_shape(passing: MessageInTransit) -> Frames:
    """Makes it float64, a row short, a key past the end, keys out of order, or no values."""
    header, *arrays = passing.frames
    keys, values = np.frombuffer(arrays[0], np.uint64), np.frombuffer(arrays[-1], np.float32)
    wrong = [
        [arrays[0], values.astype(np.float64).tobytes()],
        [arrays[0], values[:-1].tobytes()],
        [np.append(keys[:-1], np.uint64(1 << 62)).tobytes(), arrays[-1]],
        [keys[::-1].tobytes(), arrays[-1]],
        [arrays[0]],
        [arrays[0][:-3], arrays[-1]],
    ]
    return [header, *wrong[sum(header) % len(wrong)]]


@pytest.mark.variants(slow=["wrong_shape"])
@pytest.mark.parametrize("change", [no_number, wrong_shape])
def test_what_one_worker_pushes_wrongly_is_refused_and_harms_nobody(
    change: Callable[[MessageInTransit], Frames], gather: Callable[..., Crowd], kv: shoal.KV, proxy: FaultyProxy
) -> None:
    """F35, F36: every seventh push of one worker arrives invalid, and is refused.

    The worker gets the error, and pushes again.
    """
    wrong = f"worker-{VICTIM}"
    proxy.weather = LinkFaults(alter=0.15, change=change, only=lambda one: (one.sender, one.kind) == (wrong, "push"))
    crowd = gather("clients")
    crowd.finish()
    assert proxy.counts["altered"] > 0
    refused = [line for line in crowd.ended if "BadValues" in line or "BadKeys" in line]
    assert len(refused) == len(crowd.ended)  # there was no other error
    assert all(line.startswith(wrong) for line in refused)
    stats = kv.stats(TABLE)
    assert stats.get("refused", 0) + proxy.seen["server-0", wrong, "no"] + proxy.seen["server-1", wrong, "no"] > 0
    assert crowd.violations(kv) == []


# ---------------------------------------------------------------- there twice


def test_of_two_clients_of_one_name_the_first_is_told_and_goes_on_when_the_other_is_gone(
    cluster: ProcessCluster, kv: shoal.KV
) -> None:
    """F37: the first is fenced at once, and joins again when the other one is gone.

    While the other one lives it is refused, with the reason.
    """
    kv.create("w", shoal.Dense(rows=1))
    with shoal.connect(cluster.address, name="twin") as first:
        first.push("w", [0], [1.0]).result(PATIENCE)
        with shoal.connect(cluster.address, name="twin") as second:
            second.push("w", [0], [1.0]).result(PATIENCE)
            told: list[ShoalError] = []
            while not any(isinstance(one, Refused) for one in told) and len(told) < 1_000:
                with pytest.raises((Fenced, Refused)) as caught:
                    first.push("w", [0], [100.0]).result(PATIENCE)
                told.append(caught.value)
            assert "another process has taken the name 'twin', and is alive" in str(told[-1])
            for _ in range(20):  # the last to join has the name, whatever the first sends
                second.push("w", [0], [1.0]).result(PATIENCE)
        assert soon(lambda: _pushes(first))
    assert list(kv.pull("w", [0]).result(PATIENCE)) == [1.0 + 21.0 + 1.0]


def _pushes(kv: shoal.KV) -> bool:
    try:
        kv.push("w", [0], [1.0]).result(PATIENCE)
    except Refused:
        return False
    return True


@pytest.mark.soak
def test_two_processes_of_one_name_are_never_both_counted_for_one(
    gather: Callable[..., Crowd], kv: shoal.KV, cluster: ProcessCluster
) -> None:
    """F37: the second takes over, and the first is fenced when it has reconnected.

    The first then goes on as a third incarnation.
    """
    crowd, name = gather("clients"), f"worker-{VICTIM}"
    crowd.until(VICTIM, 2)
    before = members(kv)[name]
    with shoal.connect(cluster.address, name=name) as second:
        assert members(kv)[name] > before
        second.push(TABLE, (), ()).result(PATIENCE)
    crowd.finish()
    assert len({one.incarnation for one in crowd.history(VICTIM) if isinstance(one, Begin)}) > 1
    assert crowd.violations(kv) == []


def test_a_second_server_of_a_live_ones_name_is_refused(cluster: ProcessCluster, kv: shoal.KV) -> None:
    """F37."""
    before = members(kv)
    with pytest.raises(shoal.ShoalError):
        cluster.fork("server-0", "server", {})
    assert members(kv) == before
