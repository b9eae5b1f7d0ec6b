"""What a run or a store keeps on disk, and how a run goes back to it: the coordinator's checkpoints and rollbacks.

When some segment is held by nobody any more, everybody goes back: the newest checkpoint that is whole is looked for (damaged
ones are named and passed over), the tables are made anew from it under a new generation, all who are not servers are
retired and come back as new incarnations, and what was counted since is dealt again. Without a checkpoint the run begins again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.cluster import groups
from shoal.events import Evaluated
from shoal.files import Disk
from shoal.nodes.checkpointing import CheckpointProtocol, nowhere
from shoal.nodes.scheduler_state import ScheduleState, counted_everywhere
from shoal.store.checkpoint import manifest as checkpoint
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Store, Stored, Tell

if TYPE_CHECKING:
    from shoal.nodes.coordinator import Coordinator
    from shoal.nodes.scheduling import Scheduler

_LOOK = -2  # token of the look for the newest checkpoint
_RETURN = 3 * limits.SECOND  # a server that was lost may be started again meanwhile


class BareTable(msgspec.Struct, frozen=True):
    """What a checkpoint of a store without a run says beside its tables."""

    incarnations: int  # handed out by then: their pushes are in the ledgers, so that nobody else may get these numbers


class BareStore:
    """A store without a run, as far as a checkpoint needs to know: it has no steps, and is cut as it is."""

    seconds, steps, cut = 0.0, 0, m.NO_CLOCK

    def __init__(self, incarnations: int) -> None:
        self._incarnations = incarnations

    def state(self, cut: int) -> BareTable:
        return BareTable(self._incarnations)

    def completed(self, state: BareTable) -> BareTable:
        return state


class RollbackDriver:
    """The checkpoints of one run or store, on a disk, or none at all."""

    def __init__(
        self,
        root: Path | None = None,
        job: str = "",
        every: int | None = None,
        keep: int = limits.CHECKPOINTS_KEPT,
        disk: Disk | None = None,
    ) -> None:
        self.disk, self.root, self._job = disk or Disk(), root, job
        self.points = None if root is None else CheckpointProtocol(self.disk, root, job, every, keep)
        self._lost: tuple[int, str] | None = None  # since when, and why
        self._servers = 0  # the most there were
        self._looking = False
        self._alone = False  # no worker is there
        self._askers: list[tuple[str, int]] = []  # who wants to know when the next one is saved

    @property
    def newest(self) -> str:
        """The folder of the last one, of this life; empty if there is none."""
        if self.points is None or self.root is None or not self.points.saved:
            return ""
        return str(checkpoint.folder_of(self.root, self.points.saved))

    @property
    def is_writing(self) -> bool:
        """One is under way, or was undone and is to be made again: who changes hands now would undo it."""
        return self.points is not None and self.points.is_under_way

    def lost(self, now: int, why: str) -> None:
        """A part of the model is nowhere any more."""
        self._lost = self._lost or (now, why)

    def save(self, asker: str, request: int) -> list[Effect]:
        """Somebody wants a checkpoint, and to hear when it is there (or cannot be)."""
        if self.points is None:
            return [Send(asker, nowhere(request))]
        if (asker, request) in self._askers:
            return [Send(asker, m.PushHeld(request, "the checkpoint that is being written"))]
        self._askers.append((asker, request))
        self.points.soon()
        return []

    def tick(self, now: int, of: Coordinator) -> list[Effect]:
        """To be called whenever anything has happened."""
        roster, dealing = of.roster, of.dealing
        self._servers = max(self._servers, len(roster.servers()))
        if dealing is None:
            bare = BareStore(roster.incarnations)
            return [] if self.points is None else self._write(now, self.points, of, bare)
        if roster.has_lost() and not dealing.ended:
            self.lost(now, "a segment of the model is held by nobody")
            return self._look(now, of)
        effects: list[Effect] = []
        if self.points is not None:
            if dealing.alone != self._alone:  # if nobody comes, this is all that is left
                self._alone = dealing.alone
                if self._alone:
                    self.points.soon()
            effects += self._write(now, self.points, of, dealing)
        return effects

    def _write(
        self, now: int, points: CheckpointProtocol, of: Coordinator, what: BareStore | Scheduler
    ) -> list[Effect]:
        """Go on with a checkpoint if there is one to make, and tell those who wait for it."""
        effects = points.tick(now, of.view.number, lambda: groups.part_of(of.view, ""), what)
        if self._askers and not points.busy:
            effects += [Send(name, points.answer(request)) for name, request in self._askers]
            self._askers.clear()
        return effects

    def heard(self, effects: list[Effect]) -> list[Effect]:
        """A model was judged, perhaps: its checkpoint may be the best."""
        if self.points is None:
            return []
        told = [one.event for one in effects if isinstance(one, Tell) and isinstance(one.event, Evaluated)]
        return [effect for event in told for effect in self.points.judged(event.steps, event.test_loss)]

    def snapped(self, now: int, sender: str, told: m.Snapped) -> list[Effect]:
        return [] if self.points is None else self.points.snapped(now, sender, told)

    def stored(self, now: int, event: Stored, of: Coordinator) -> list[Effect]:
        if event.token == _LOOK:
            return self._go_back(now, event, of)
        return [] if self.points is None else self.points.stored(now, event)

    # ------------------------------------------------------------ back

    def _look(self, now: int, of: Coordinator) -> list[Effect]:
        assert self._lost is not None
        here = len(of.roster.servers())
        if self._looking or not here or (here < self._servers and now - self._lost[0] < _RETURN):
            return []  # one that is started again shares the work
        self._looking, root, disk, job = True, self.root, self.disk, self._job
        return [Store(_LOOK, lambda: (None, []) if root is None else checkpoint.newest(disk, root, job))]

    def _go_back(self, now: int, event: Stored, of: Coordinator) -> list[Effect]:
        self._looking = False
        dealing, roster = of.dealing, of.roster
        if self._lost is None or dealing is None or not roster.has_lost() or not roster.servers():
            return []
        if event.error is not None:
            return dealing.fail(f"{self._lost[1]}, and no checkpoint can be read: {event.error}")
        found, refused = event.result
        (_, why), self._lost = self._lost, None
        effects: list[Effect] = []
        for one in refused:
            effects += dealing.warn(f"passed over: {one}")
        state, counted, number, origins = None, [], None, {}
        if found is not None:
            folder, manifest = found
            number = manifest.number
            state = msgspec.json.decode(manifest.state, type=ScheduleState)
            counted = state.counted
            if dealing.workload.step is None:  # every segment was cut at a moment of its own
                books = (one.books for one in manifest.segments)
                counted = counted_everywhere(books, dealing.workload.per_pass)
            origins = {table.name: (list(table.starts), str(folder)) for table in manifest.tables}
        roster.roll_back(origins)
        return [*effects, *dealing.rollback(now, state, counted, why, number)]
