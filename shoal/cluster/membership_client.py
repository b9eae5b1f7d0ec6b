"""Membership of any node but the coordinator: hello, view, heartbeats, joining again.

``MembershipClient`` is a part of a node's state machine. It joins, and tells its
node when a newer view came (``view``) or when this incarnation is over (``fenced``).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal import limits
from shoal.timing import TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Connect, Effect, Send

NO_VIEW = m.View(0, 0, 0, [], [])


@dataclass(slots=True)
class ViewChange:
    """What a message of the coordinator changed for this node."""

    view: bool = False  # there is a new one
    fenced: bool = False  # this incarnation is over; it joins again
    refused: str = ""  # why the coordinator refuses us
    permanent: bool = False  # our key or our version is the wrong one
    transient: bool = False  # its disk is full: join again later


class MembershipClient:
    def __init__(self, name: str, role: str, token: str, address: str = "", coordinator: str = "coordinator") -> None:
        self.name, self.role, self.address, self.coordinator = name, role, address, coordinator
        self.incarnation = 0  # none yet
        self.view = NO_VIEW
        self.failed: dict[int, str] = {}
        self.group = ""  # of workers, if it belongs to one
        self.loads: dict[int, dict[int, float]] = {}  # of a server: for the next heartbeat, once
        self.halves: dict[int, dict[int, int]] = {}
        self.reaches: set[str] = set()  # roles that this node sends to
        self.active_view = 0  # the newest view in effect here
        self.move_rate = limits.MOVE_RATE  # bytes a second, of a server
        self.last_seen = 0  # when the coordinator last said anything
        self._token, self._life = token, 0
        self.next = 0  # when to say hello, or send a heartbeat, next
        self._wait = self.timing.resend_first
        self.asking_since = 0  # since when hello goes unanswered
        self._connected: dict[str, str] = {}

    @property
    def timing(self) -> TimingSettings:
        return self.view.timing

    @property
    def _full_token(self) -> str:
        return f"{self._token}.{self._life}"

    @property
    def joined(self) -> bool:
        return self.incarnation > 0

    def tick(self, now: int) -> list[Effect]:
        """Say hello until it is answered; then a heartbeat now and then."""
        if now < self.next:
            return []
        if not self.joined:
            self.asking_since = self.asking_since or now
            self.next = now + self._wait
            self._wait = min(2 * self._wait, self.timing.resend_most)
            hello = m.Hello(self.name, self.role, self._full_token, self.address, self.group)
            return [Send(self.coordinator, hello)]
        self.next = now + self.timing.heartbeat
        return [self.heartbeat()]

    def confirm_view(self, view: int) -> list[Effect]:
        """This view is in effect here: report it at once, since others may wait for it."""
        self.active_view = view
        return [self.heartbeat()]

    def heartbeat(self) -> Effect:
        loads, self.loads, halves, self.halves = self.loads, {}, self.halves, {}
        return Send(self.coordinator, m.Heartbeat(self.incarnation, self.active_view, dict(self.failed), loads, halves))

    def handle(self, now: int, message: m.Message) -> tuple[ViewChange, list[Effect]]:
        self.last_seen = now
        match message:
            case m.Welcome(self._full_token, incarnation, view, rate) if not self.joined:
                self.incarnation, self.move_rate = incarnation, rate
                effects = self._take_view(view)
                self.asking_since, self._wait = 0, self.timing.resend_first
                self.next = now + self.timing.heartbeat
                return ViewChange(view=True), effects
            case m.View() if self.joined and self._newer(message):
                if any(one.name == self.name and one.incarnation != self.incarnation for one in message.members):
                    return ViewChange(fenced=True), self.rejoin(now)  # another process has our name
                return ViewChange(view=True), self._take_view(message)
            case m.Fence(_, incarnation) if self.joined and incarnation == self.incarnation:
                return ViewChange(fenced=True), self.rejoin(now)
            case m.IncarnationOver(self._full_token) if not self.joined:
                return ViewChange(), self.rejoin(now)
            case m.Refusal(0, "key", reason):  # also of one who was in: its key was revoked
                return ViewChange(refused=reason, permanent=True), []
            case m.Refusal(0, kind, reason) if not self.joined:
                return ViewChange(refused=reason, permanent=kind == "version", transient=kind == "full"), []
        return ViewChange(), []

    def rejoin(self, now: int) -> list[Effect]:
        """This life is over: say hello as a new one."""
        self.incarnation = self.active_view = 0
        self._life += 1
        self.next = now
        return self.tick(now)

    def leave(self) -> list[Effect]:
        return [Send(self.coordinator, m.Leave(self.incarnation))] if self.joined else []

    def _newer(self, view: m.View) -> bool:
        return (view.term, view.number) > (self.view.term, self.view.number)

    def _take_view(self, view: m.View) -> list[Effect]:
        self.view = view
        wanted = {
            member.name: member.address
            for member in view.members
            if member.role in self.reaches and member.name != self.name and member.group in ("", self.group)
        }
        mutual = self.role in self.reaches
        effects: list[Effect] = [Connect(name, "") for name in self._connected if name not in wanted]
        effects += [Connect(name, to, mutual) for name, to in wanted.items() if self._connected.get(name) != to]
        self._connected = wanted
        return effects
