"""A server's process: serves until it is drained, and runs users' queries in forks.

    SIGTERM         asks to leave; ends with code 0 when other servers have all its segments
    a second one    ends at once with 128 + the signal; what only this server had is lost
    no progress     for a minute (nobody takes over): the same, with a message

SIGINT in a terminal does the same. The exit code and one line say why it ended.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

from shoal import limits
from shoal.errors import ClusterError, Invalid, Refused
from shoal.events import counted
from shoal.filters.user_filter import run_apart
from shoal.launch.process_main import Process, ProcessOrders, ProcessRetired, transport_of
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.loop import Loop
from shoal.nodes.server import Server
from shoal.signals import handled
from shoal.store.query import Found, packed, unpacked
from shoal.user_code import ForkedCall
from shoal.wire import Transport

Say = Callable[[str], None]
# bytes of a query's answer and its frame
_ANSWER_BYTES = 8 * (limits.CALL_NUMBERS + limits.CALL_KEYS) + 4 * limits.CALL_VALUES + 65_536


class SilenceReport:
    """Reports while a node from another host hears nothing from the coordinator.

    A coordinator may be restarted, so such a node waits for it (``--patience``). Its terminal shows
    that it waits, for how long, and that the coordinator is back.
    """

    # the shortest silence that is reported; heartbeats come twice a second
    FIRST = 3 * limits.SECOND
    AGAIN = 10 * limits.SECOND

    def __init__(self, drainable: DrainableNode, address: str, say: Say) -> None:
        self._drainable, self._say, self._address = drainable, say, address
        self._reported = 0  # nanoseconds of silence at the last report

    def check(self) -> bool:
        """To be called after every turn of the loop; whether the node has ended."""
        drainable, first = self._drainable, max(self.FIRST, self._drainable.member.timing.suspect)
        silence, left = drainable.silence, drainable.patience_left
        due = self._reported + self.AGAIN if self._reported else first
        if self._reported and silence < first:
            self._reported = 0
            self._say(f"{drainable.name} hears the coordinator again, and goes on")
        elif left is not None and not drainable.end and silence >= due:
            self._reported = silence
            self._say(
                f"{drainable.name} has heard nothing from the coordinator at {self._address} for "
                f"{silence // limits.SECOND} s: it waits {left / limits.SECOND:.0f} s more in case it is restarted, "
                f"then ends (--patience; Ctrl-C twice: now)"
            )
        return bool(drainable.end)


def _query_apart(wake: Callable[[], None], ask: Callable[[], Found], nanoseconds: int) -> Future[Found]:
    """Runs a user's query in a fork of the server, and wakes its loop with the result.

    The caller must have the table to itself now: the fork sees the rows as they are. The server
    goes on meanwhile, at the cost of copying the pages that it changes.
    """
    query: Future[Found] = Future()

    def wait() -> None:
        try:
            query.set_result(unpacked(child.wait()))
        except BaseException as error:
            query.set_exception(error if isinstance(error, Invalid) else Invalid(str(error)))
        wake()

    try:
        child = ForkedCall(lambda: packed(ask()), nanoseconds / limits.SECOND, limits.CALL_MEMORY, _ANSWER_BYTES)
        threading.Thread(target=wait, name="shoal-query", daemon=True).start()
    except OSError as error:
        query.set_exception(Invalid(f"the server could not fork a process for it ({error.strerror})"))
    return query


class ServerProcess:
    def __init__(
        self,
        name: str,
        token: str,
        transport: Transport,
        patience: int | Literal["timing"] | None = None,
        say: Say = lambda text: None,
        coordinator: str = "",
    ) -> None:
        """``coordinator`` is its address, for messages about its silence."""
        server = self._server = Server(name, token, transport.address)
        server.process_counts = lambda: dict(zip(("sent", "received"), transport.traffic, strict=True))
        self.drainable = DrainableNode(server, server.member, patience)
        self.loop = Loop(self.drainable, transport)
        self._say, self._signal, self._joined = say, 0, False
        self._silence = SilenceReport(self.drainable, coordinator, say)
        self._state, self._since = (-1, ""), 0.0  # segments left, why it must stay; since when

    def keep_apart(self) -> None:
        """Run users' queries and filters in other processes, so that a crash costs one request."""
        self._server.calls.run_in_process = functools.partial(_query_apart, self.loop.poke_soon)
        run_apart()

    def leave(self, number: int, frame: object = None) -> None:
        """Ask to leave. The second call ends it at once."""
        if self.drainable.wants_to_leave:
            raise SystemExit(128 + number)
        self._signal = number
        self.drainable.leave()
        self.loop.poke_soon()

    def run(self) -> None:
        try:
            while not self.drainable.end:
                self.loop.turn()
                if not self._joined and self.drainable.member.joined:
                    self._joined = True
                    self._say(f"{self.drainable.name} has joined, and serves")
                self._silence.check()
                if self.drainable.leaving:
                    self._report_leaving()
            # sent once more, so that nobody waits for a timeout
            self.loop.carry_out(self.drainable.member.leave())
            self._conclude()
        finally:
            self.loop.close()

    def _report_leaving(self) -> None:
        """Report the progress of leaving, and give up if there is none."""
        drainable, now = self.drainable, time.monotonic()
        if (state := (drainable.segments_left, drainable.refusal)) != self._state:
            self._state, self._since = state, now
            self._say(
                f"{drainable.name} stays for now: {drainable.refusal}"
                if drainable.refusal
                else f"{drainable.name}: {counted(drainable.segments_left, 'segment')} left"
            )
        still = drainable.member.timing.leave_still / limits.SECOND
        if drainable.wants_to_leave and now - self._since > still:
            why = drainable.refusal or f"nobody took over {counted(drainable.segments_left, 'segment')} in {still:g} s"
            self._say(f"{drainable.name} ends anyway: {why}; start another server in its place")
            raise SystemExit(128 + self._signal)

    def _conclude(self) -> None:
        drainable = self.drainable
        if drainable.end == "refused":
            raise Refused(drainable.member.coordinator, drainable.why)
        if drainable.end == "deserted":
            raise ClusterError(
                f"{drainable.name} ends: {drainable.why}; its segments are lost unless others have copies: check the coordinator, "
                f"and start the server again"
            )


def main(orders: ProcessOrders, process: Process) -> None:
    transport = transport_of(orders, orders.bind)
    serving = ServerProcess(orders.name, orders.token, transport)
    serving.keep_apart()
    with handled([signal.SIGTERM], serving.leave):
        process.ready(transport.address)
        serving.run()
    if not serving.drainable.wants_to_leave:  # drained by others: it must not be restarted
        process.say(ProcessRetired(orders.name))
