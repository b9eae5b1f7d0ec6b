"""Recoveries from lost servers: successors, losses, and when copies were restored.

A fold over events. ``Shared`` says how segments are shared out before and after.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.events import Gone, Joined, RolledBack, RunEvent, Shared, Stopped
from shoal.views import event_line, format


@dataclass(slots=True)
class Failover:
    """One loss of a server, as far as known."""

    gone: Gone
    served: int  # segments that it answered for
    replicas: int  # of all segments, before
    heirs: dict[str, int] = field(default_factory=dict)  # segments by successor
    rolled_back: bool = False
    restarted: float | None = None  # seconds since the loss
    whole: float | None = None  # seconds until all segments had their copies again

    @property
    def over(self) -> bool:
        return self.whole is not None or self.rolled_back

    def sentence(self) -> str:
        name, why = format.clean(self.gone.name), format.clean(self.gone.why)
        parts = [f"{name} killed" if "killed by signal" in why else f"{name} gone: {why or 'no reason given'}"]
        if self.heirs:
            owned = format.many(self.served, "segment") if self.served else "copies"
            kept = "" if self.rolled_back else ", nothing lost"
            parts.append(f"{_listed(self.heirs)} took over its {owned}{kept}")
        if self.rolled_back:
            parts.append("the run went back to a checkpoint")
        if self.restarted is not None:
            parts.append("restarted")
        if self.whole is not None:
            after = f"copies back after {format.latency(self.whole) if self.whole < 1 else format.duration(self.whole)}"
            parts[-1 if self.restarted is not None else len(parts) :] = (
                [f"restarted, {after}"] if self.restarted is not None else [after]
            )
        return "; ".join(parts)


@dataclass(slots=True)
class Failovers:
    """Every loss of a server, in order."""

    found: list[Failover] = field(default_factory=list)
    _shared: Shared | None = None

    def take(self, event: RunEvent) -> Failover | None:
        """Take an event; returns the loss that is settled by it, if any."""
        ended = None
        match event:
            case Gone(role="server") if self._shared is not None and not event_line.left_in_order(event):
                served = self._shared.serves.get(event.name, 0)
                self.found.append(Failover(event, served, _replicas(self._shared)))
            case Joined(role="server"):
                for one in self._open():
                    if one.gone.name == event.name and one.restarted is None:
                        one.restarted = event.seconds - one.gone.seconds
            case RolledBack():
                for one in self._open():
                    one.rolled_back, ended = True, one
            case Shared():
                for one in self._open():
                    ended = self._progress(one, event) or ended
                self._shared = event
            case Stopped():
                self.found = [one for one in self.found if one.gone.seconds < event.seconds]
        return ended

    def of(self, event: object) -> Failover | None:
        """The failover of this loss, if it had segments."""
        return next((one for one in self.found if one.gone is event and (one.heirs or one.over)), None)

    def restarted(self, event: Joined) -> bool:
        """Whether it came back from a settled loss."""
        return any(
            one.gone.name == event.name and one.heirs and one.restarted == event.seconds - one.gone.seconds
            for one in self.found
        )

    def _open(self) -> list[Failover]:
        return [one for one in self.found if not one.over]

    def _progress(self, one: Failover, now: Shared) -> Failover | None:
        before = self._shared
        if before is not None and not one.heirs and one.gone.name not in now.serves:
            gained = {name: number - before.serves.get(name, 0) for name, number in now.serves.items()}
            one.heirs = {name: number for name, number in gained.items() if number > 0}
        if one.heirs and _replicas(now) >= one.replicas:
            one.whole = now.seconds - one.gone.seconds
            return one
        return None


def _replicas(shared: Shared) -> int:
    return sum(shared.serves.values()) + sum(shared.copies.values())


def _listed(names: dict[str, int]) -> str:
    """server-0 and server-2; of many, some."""
    every = sorted(format.clean(name) for name in names)
    if 1 < len(every) <= event_line.NAMED:
        return f"{', '.join(every[:-1])} and {every[-1]}"
    return event_line.names(every)
