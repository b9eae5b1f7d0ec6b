"""Lets a node leave, and ends it when its coordinator is gone. Wraps any node.

    released     it was asked to leave (or asked for it), and others have what it had
    dismissed    the cluster is over
    refused      the coordinator does not want it
    deserted     the coordinator said nothing for longer than a restart takes

Nothing here stops anything: the owner of the loop looks at ``end``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from shoal import limits
from shoal.cluster.membership_client import MembershipClient
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Event, Node, Received, Send

End = Literal["", "released", "dismissed", "refused", "deserted"]


class DrainableNode:
    def __init__(
        self, node: Node, member: MembershipClient, patience: int | Literal["timing"] | None = "timing"
    ) -> None:
        """``patience``: nanoseconds without a message from the coordinator; None: for ever."""
        self.node, self.member, self.name = node, member, node.name
        self.end: End = ""
        self.why = ""
        self.wants_to_leave = False  # it has asked to leave
        self.refusal = ""  # why it may not, yet
        self.on_end: Callable[[], None] = lambda: None  # called once, wherever the loop is turned
        self._patience, self._last_seen, self._requested_at, self._last = patience, 0, 0, 0

    def leave(self) -> None:
        """Ask to leave once others have its segments. From any thread; poke the loop after it."""
        self.wants_to_leave = True

    @property
    def patience(self) -> int | None:
        return self.member.timing.patience if self._patience == "timing" else self._patience

    @property
    def leaving(self) -> bool:
        """It is about to leave, by its own request or by another's."""
        return self.wants_to_leave or any(one.leaving for one in self.member.view.members if one.name == self.name)

    @property
    def segments_left(self) -> int:
        """Segments that it still holds."""
        places = (place for table in self.member.view.tables for place in table.places)
        return sum(self.name in place.servers for place in places)

    @property
    def silence(self) -> int:
        """Nanoseconds without a message from the coordinator, as of the last event."""
        return self._last - self._last_seen

    @property
    def patience_left(self) -> int | None:
        """Nanoseconds until it ends as deserted; None: never."""
        return None if (patience := self.patience) is None else max(0, patience - self.silence)

    def handle(self, now: int, event: Event) -> list[Effect]:
        if self.end:
            return []
        if now - self._last > self.member.timing.suspect:  # this process slept, or begins
            self._last_seen += now - self._last
        self._last = now
        if isinstance(event, Received) and event.sender == self.member.coordinator:
            self._last_seen = now
            self._listen(event.message)
        elif (patience := self.patience) is not None and now - self._last_seen > patience:
            self._finish("deserted", f"the coordinator has said nothing for {patience / limits.SECOND:g} s")
        if self.end:
            return []
        effects = self.node.handle(now, event)
        if self.wants_to_leave and self.member.joined and now - self._requested_at >= self.member.timing.heartbeat:
            self._requested_at = now
            effects.append(Send(self.member.coordinator, m.Leave(self.member.incarnation, patiently=True)))
        return effects

    def _listen(self, message: m.Message) -> None:
        match message:
            case m.Release(incarnation) if incarnation == self.member.incarnation:
                self._finish("released", "others have what it had")
            case m.Fence(_, incarnation) if incarnation == self.member.incarnation and self.leaving:
                self._finish("released", "it was let go")
            case m.Dismissed(why):
                self._finish("dismissed", why)
            case m.Refusal(0, _, why) if self.member.joined and self.wants_to_leave:
                self.refusal = why
            case m.Refusal(0, kind, why) if not self.member.joined and kind != "full":
                self._finish("refused", why)

    def _finish(self, end: End, why: str) -> None:
        self.end, self.why = end, why
        self.on_end()
