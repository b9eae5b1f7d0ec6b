"""A server's process: it serves until it is let go.

    SIGTERM     it asks to leave, and ends with 0 when others have all that it has
    again       it ends at once, with 128 and the signal's number: what only it had is lost
    nobody      takes anything over for a minute: the same, and says so

SIGINT is the same where there is a terminal. Whatever reason there is to end, the exit code and one line say which.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from typing import Literal

from shoal import limits
from shoal.errors import ClusterError, Refused
from shoal.events import counted
from shoal.filters.user_filter import run_apart
from shoal.launch.process_main import Process, ProcessOrders, ProcessRetired, transport_of
from shoal.launch.query_process import QueryProcess
from shoal.launch.silence import Silence
from shoal.nodes.drainable import DrainableServer
from shoal.nodes.loop import Loop
from shoal.nodes.server import Server
from shoal.signals import handled
from shoal.wire import Transport

Say = Callable[[str], None]


class ServerProcess:
    """One server, its loop, and how it ends."""

    def __init__(
        self,
        name: str,
        token: str,
        transport: Transport,
        patience: int | Literal["timing"] | None = None,
        say: Say = lambda text: None,
        coordinator: str = "",
    ) -> None:
        """``coordinator``: its address, for what is said while it is silent."""
        from shoal.launch.process_main import moved_by

        server = self._server = Server(name, token, transport.address)
        server.also = moved_by(transport)
        self.guest = DrainableServer(server, server.member, patience)
        self.loop = Loop(self.guest, transport)
        self._say, self._signal, self._joined = say, 0, False
        self._silence = Silence(self.guest, coordinator, say)
        self._state, self._since = (-1, ""), 0.0  # parts it has, and why it may not go; since when

    def keep_apart(self) -> None:
        """This process is the server's alone: users' questions and filters run in others, and cost their own requests only."""
        self._server.calls.apart = QueryProcess(self.loop.poke_soon)
        run_apart()

    def leave(self, number: int = signal.SIGTERM) -> None:
        """Ask to go. The second time it goes at once."""
        if self.guest.asks:
            raise SystemExit(128 + number)
        self._signal = number
        self.guest.leave()
        self.loop.poke_soon()

    def run(self) -> None:
        """Until it is let go or the cluster is over; raises if it ends otherwise."""
        try:
            while not self.guest.end:
                self.loop.turn()
                if not self._joined and self.guest.member.joined:
                    self._joined = True
                    self._say(f"{self.guest.name} has joined, and serves")
                self._silence.look()
                if self.guest.leaving:
                    self._look()
            self.loop.carry_out(self.guest.member.leave())  # said once more: nobody is to wait for its silence
            self._conclude()
        finally:
            self.loop.close()

    def _look(self) -> None:
        """How far it is with leaving: told, and given up if nothing changes."""
        guest, now = self.guest, time.monotonic()
        if (state := (guest.left, guest.stays)) != self._state:
            self._state, self._since = state, now
            self._say(
                f"{guest.name} stays for now: {guest.stays}"
                if guest.stays
                else f"{guest.name}: {counted(guest.left, 'part')} left"
            )
        still = guest.member.timing.leave_still / limits.SECOND
        if guest.asks and now - self._since > still:
            why = guest.stays or f"nobody took over {counted(guest.left, 'part')} in {still:g} s"
            self._say(f"{guest.name} goes all the same: {why}; start another server to take its place")
            raise SystemExit(128 + self._signal)

    def _conclude(self) -> None:
        guest = self.guest
        if guest.end == "refused":
            raise Refused(guest.member.coordinator, guest.why)
        if guest.end == "deserted":
            raise ClusterError(
                f"{guest.name} ends: {guest.why}; what it held is lost unless others have copies: see to the coordinator, and start "
                f"the server again"
            )


def heard(signals: Iterable[int], call: Callable[[int], None]) -> contextlib.AbstractContextManager[None]:
    """While this lasts, these signals are a call."""
    return handled(signals, lambda which, frame: call(which))


def main(orders: ProcessOrders, process: Process) -> None:
    """A server in a process of its own."""
    transport = transport_of(orders, orders.bind)
    serving = ServerProcess(orders.name, orders.token, transport)
    serving.keep_apart()
    with heard([signal.SIGTERM], serving.leave):
        process.ready(transport.address)
        serving.run()
    if not serving.guest.asks:  # somebody let it go: nobody is to start it again
        process.say(ProcessRetired(orders.name))
