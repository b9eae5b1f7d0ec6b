"""The coordinator and the servers make checkpoints together.

A failure costs a checkpoint, never a run (F29, F32).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal import limits
from shoal.events import RunEvent, Saved, Warned
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.nodes.checkpointing import CheckpointWriter
from shoal.nodes.factory import make_checkpoints
from shoal.simulation.disk import Crashed, SimulatedDisk
from shoal.store.checkpoint.manifest import (
    BestCheckpoint,
    Manifest,
    folder_of,
    images,
    newest,
    prepare,
    read_best,
)
from shoal.store.checkpoint.writer import LATE, SnapshotWriter, SnapshotWriters
from shoal.store.table.table import SegmentImage
from shoal.tables import Dense, Sparse, Step
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Store, Stored, Tell

ROOT = Path("/run/checkpoints")
SECOND = limits.SECOND


class Run:
    """A scheduler, as far as checkpoints need one."""

    seconds = 0.5
    steps = 7
    cut: int | None = 12

    def state(self, cut: int) -> Any:
        return {"cut": cut, "steps": self.steps}

    learnt: tuple[tuple[str, Any], ...] = ()  # what the run learned after ``state``

    def completed(self, state: Any) -> Any:
        return {**state, **dict(self.learnt)}


class Town:
    """A coordinator's checkpoint writer and servers that write snapshots, on one disk.

    Messages and disk operations wait in a queue until ``go`` carries them out.
    """

    def __init__(self, every: int | None = None, servers: int = 2, spec: Any = None, **settings: Any) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_folder(ROOT.parent)
        self.disk.sync_folder(ROOT.parent.parent)
        self.now = 0
        self.run = Run()
        spec = Dense(rows=40, apply=Step(slots=2)) if spec is None else spec
        self.members = [m.Member(f"server-{i}", i, "server", "") for i in range(1, servers + 1)]
        names = [one.name for one in self.members]
        places = [m.Replicas(1, [names[i % servers], names[(i + 1) % servers]]) for i in range(4)]
        self.view = m.View(1, 5, 0, self.members, [m.TablePlaces(9, "w", spec, [0, 10, 20, 30], places)])
        self.checkpointing = CheckpointWriter(ROOT, "job", every, disk=self.disk, **settings)
        self.servers = {one.name: SnapshotWriter(self.disk) for one in self.members}
        self.told: list[RunEvent] = []
        self.sent: list[m.Message] = []
        self.dumb: set[str] = set()  # servers that do not react
        self.late: set[str] = set()
        self.version = 1
        self.tokens = 0
        self._queue: deque[tuple[str, Effect]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way, or requested and neither saved nor failed."""
        return self.checkpointing._requested or self.checkpointing._attempt is not None

    def events(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    def go(self, seconds: float = 0.0, most: int = 10_000) -> bool:
        """Advance the clock once, then carry out the queue; return False if some of it is left."""
        self.now += int(seconds * SECOND)
        self._take("coordinator", self._tick())
        while self._queue and most:
            most -= 1
            name, effect = self._queue.popleft()
            self._carry_out(name, effect)
        return not self._queue

    def restart_coordinator(self) -> None:
        """The coordinator dies with all its queued effects.

        Servers go on, and what they sent still arrives.
        """
        self._queue = deque((name, effect) for name, effect in self._queue if name != "coordinator")
        self.checkpointing = CheckpointWriter(ROOT, "job", disk=self.disk)

    def change(self, **changes: Any) -> None:
        self.view = msgspec.structs.replace(self.view, number=self.view.number + 1, **changes)

    def replace(self, segment: int, *servers: str) -> None:
        table = self.view.tables[0]
        places = list(table.places)
        places[segment] = m.Replicas(self.view.number + 1, list(servers))
        self.change(tables=[msgspec.structs.replace(table, places=places)])

    def _tick(self) -> list[Effect]:
        return self.checkpointing.tick(self.now, self.view.number, lambda: self.view, self.run)

    def _take(self, name: str, effects: list[Effect]) -> None:
        self._queue.extend((name, effect) for effect in effects)

    def _carry_out(self, name: str, effect: Effect) -> None:
        match effect:
            case Tell(event):
                self.told.append(event)
            case Send("coordinator", message, _):
                assert isinstance(message, m.Snapped)
                coding.decode(coding.encode(message))
                self._take("coordinator", self.checkpointing.snapped(self.now, name, message) + self._tick())
            case Send(to, message, _):
                assert isinstance(message, m.Snap)
                self.sent.append(message)
                if to not in self.dumb:
                    self._take(to, self._snap(to, message))
            case Store(token, function):
                try:
                    event = Stored(token, function())
                except Exception as error:
                    event = Stored(token, error=error)
                if name == "coordinator":
                    self._take(name, self.checkpointing.stored(self.now, event) + self._tick())
                else:
                    self._take(name, self.servers[name].stored(self.incarnation(name), event))

    def incarnation(self, name: str) -> int:
        return next(one.incarnation for one in self.members if one.name == name)

    def _snap(self, name: str, snap: m.Snap) -> list[Effect]:
        """What a server does for a Snap: cut, and write each image with its disk thread."""
        if name in self.late:
            return [self.servers[name].late("coordinator", self.incarnation(name), snap, 99)]
        table = self.view.tables[0]
        held = [i for i, place in enumerate(table.places) if place.servers[0] == name]
        cut, effects = self.servers[name].ask("coordinator", self.incarnation(name), snap, held)
        for segment in cut:
            self.tokens += 1
            image = image_of(table, segment, snap.clock if snap.clock >= 0 else self.version + segment)
            effects.append(self.servers[name].write(self.tokens, "coordinator", snap, table.name, [image]))
        return effects


def image_of(table: m.TablePlaces, segment: int, version: int) -> SegmentImage:
    keys = KeyRange(table.starts[segment], [*table.starts[1:], table.spec.span][segment])
    books = m.SegmentBooks(version, {0: m.Counts(version)})
    if isinstance(table.spec, Dense):
        return SegmentImage(segment, keys, books, np.full((len(keys), 1), version, np.float32))
    names = np.array([keys.start, keys.stop - 1], np.uint64)
    return SegmentImage(segment, keys, books, np.full((2, 1), version, np.float32), names)


def left(town: Town) -> list[str]:
    """Returns all files."""
    return [f"{folder}/{name}" for folder in town.disk.names(ROOT) for name in town.disk.names(ROOT / folder)]


def found(town: Town) -> Manifest | None:
    found, refused = newest(town.disk.crash(town.now), ROOT)
    assert refused == []
    return None if found is None else found[1]


# ---------------------------------------------------------------- without faults


def test_a_checkpoint_that_is_asked_for_is_saved_and_told() -> None:
    town = Town()
    town.go(5)
    assert not town.busy and town.sent == []
    town.checkpointing.soon()
    assert town.busy
    town.go()
    assert not town.busy and town.checkpointing.saved == 1
    manifest = found(town)
    assert manifest is not None and (manifest.number, manifest.steps, manifest.job) == (1, 12, "job")
    assert msgspec.json.decode(manifest.state) == {"cut": 12, "steps": 7}
    assert [one.books.version for one in manifest.segments] == [12] * 4
    assert town.told == [Saved(seconds=0.5, number=1, steps=12, bytes=manifest.bytes, took=0.0)]
    restored = list(images(town.disk, ROOT / "00000001", town.view.tables[0], range(4)))
    assert [(one.rows == 12).all() for one in restored] == [True] * 4
    assert {(one.table, one.view, one.folder, one.clock) for one in town.sent} == {
        (9, 5, "/run/checkpoints/00000001", 12)
    }
    assert len(town.sent) == 2  # once to each server


def test_what_becomes_known_while_servers_write_is_in_the_manifest() -> None:
    town = Town()
    town.dumb = {"server-1"}
    town.checkpointing.soon()
    town.go()
    assert town.sent and found(town) is None
    town.run.learnt, town.run.steps, town.dumb = (("voids", [3]),), 11, set()
    town.go(town.checkpointing.timing.snap_again / SECOND)
    manifest = found(town)
    assert manifest is not None
    assert msgspec.json.decode(manifest.state) == {"cut": 12, "steps": 7, "voids": [3]}


def test_one_is_saved_whenever_it_is_time_and_the_last_three_are_kept() -> None:
    town = Town(every=60 * SECOND)
    town.go()
    for minute in range(6):
        town.run.cut = minute
        town.go(30)
        assert town.checkpointing.saved == minute
        town.go(30)
        assert town.checkpointing.saved == minute + 1
    assert town.disk.names(ROOT) == ["00000004", "00000005", "00000006"]
    assert [event.steps for event in town.events(Saved)] == list(range(6))


@pytest.mark.parametrize(("every", "after"), [(0.05, 0.05), (60, 1)])
def test_the_first_one_waits_for_the_run_to_begin_and_no_longer_than_it_must(every: float, after: float) -> None:
    """A run was not yet evaluated when its first checkpoint was due.

    If a checkpoint is due every 50 ms, the writer does not wait a second before it looks again.
    """
    town = Town(every=int(every * SECOND))
    town.run.cut = None
    town.go()
    for _ in range(7):  # more often than an attempt may fail: no attempt was begun, so none failed
        town.go(every)
    assert town.checkpointing.saved == 0 and not town.busy
    town.run.cut = 12
    town.go(after)
    assert town.checkpointing.saved == 1 and town.events(Warned) == []


def test_where_nothing_is_new_nothing_is_saved_unless_somebody_asks() -> None:
    town = Town(every=SECOND)
    for _ in range(5):
        town.go(1)
    assert town.checkpointing.saved == 1
    town.checkpointing.soon()
    town.go()
    assert town.checkpointing.saved == 2


def test_tables_that_know_no_steps_are_cut_at_moments_of_their_own() -> None:
    town = Town(spec=Sparse(keys=40))
    town.run.cut = m.NO_CLOCK
    town.checkpointing.soon()
    town.go()
    manifest = found(town)
    assert manifest is not None and manifest.steps == 7
    assert [one.books.version for one in manifest.segments] == [1, 2, 3, 4]
    assert {one.clock for one in town.sent} == {m.NO_CLOCK}


def test_the_best_one_is_kept_whenever_its_loss_is_known() -> None:
    town = Town(keep=1)
    for cut, loss in ((2, 0.5), (4, 0.3), (6, 0.4), (8, 0.6)):
        town.run.cut = cut
        if cut == 4:  # evaluated before it was saved
            town.checkpointing.judged(cut, loss)
        town.checkpointing.soon()
        town.go()
        town._take("coordinator", town.checkpointing.judged(cut, loss))
        town.go()
    assert read_best(town.disk, ROOT) == BestCheckpoint(2, 0.3)
    assert town.disk.names(ROOT) == ["00000002", "00000004", "best.json"]
    assert town.checkpointing.judged(99, 0.1) == []  # there is no such checkpoint


# ---------------------------------------------------------------- with faults


def test_what_was_lost_on_the_way_is_asked_again_and_written_once() -> None:
    town = Town()
    town.dumb = {"server-1", "server-2"}
    town.checkpointing.soon()
    town.go()
    assert len(town.sent) == 2
    town.go(1)
    assert len(town.sent) == 2  # too early to ask again
    town.dumb = {"server-2"}
    town.go(1)
    assert len(town.sent) == 4
    town.go(2)
    # Only a server that has not answered is asked again.
    assert [one.number for one in town.sent] == [1] * 5
    town.dumb = set()
    town.go(2)
    assert town.checkpointing.saved == 1
    assert sum("create" in line and "safetensors" in line for line in town.disk.trace) == 4


def test_an_answer_that_was_lost_is_given_again_without_writing_again() -> None:
    disk = SimulatedDisk()
    disk.make_folder(Path("/f"))
    snapping, snap = SnapshotWriter(disk), m.Snap(3, 9, 5, "/f", 4)
    table = m.TablePlaces(9, "w", Dense(rows=40), [0, 20], [])
    assert snapping.ask("c", 1, snap, [0, 1]) == ([0, 1], [])
    store = snapping.write(7, "c", snap, "w", [image_of(table, 0, 4)])
    assert snapping.ask("c", 1, snap, [0, 1]) == ([1], [])  # segment 0 is being written
    said = snapping.stored(1, Stored(7, store.function()))
    assert [
        one.message.written[0].file for one in said if isinstance(one, Send) and isinstance(one.message, m.Snapped)
    ] == ["w-0.safetensors"]
    assert snapping.ask("c", 1, snap, [0, 1]) == ([1], said)
    assert snapping.stored(1, Stored(7, [])) == [] and snapping.stored(1, Stored(8, [])) == []
    # Checkpoint 2 was given up.
    assert snapping.ask("c", 1, m.Snap(2, 9, 5, "/f", 4), [0]) == ([], [])
    later = snapping.write(9, "c", snap, "w", [image_of(table, 1, 4)])
    # Now checkpoint 3 is given up.
    assert snapping.ask("c", 1, m.Snap(4, 9, 5, "/g", 5), [0, 1]) == ([0, 1], [])
    assert later.function() == [] and snapping.stored(1, Stored(9, [])) == []
    assert disk.names(Path("/f")) == ["w-0.safetensors"]


def test_a_groups_next_run_numbers_its_checkpoints_from_one() -> None:
    disk = SimulatedDisk()
    disk.make_folder(Path("/first/00000050"))
    disk.make_folder(Path("/second/00000001"))
    snappings, table = SnapshotWriters(disk), m.TablePlaces(9, "w", Dense(rows=40), [0, 20], [])
    last, first = m.Snap(50, 9, 5, "/first/00000050"), m.Snap(1, 10, 6, "/second/00000001")
    old = snappings.of("a/scheduler", last)
    assert old.ask("a/scheduler", 1, last, [0, 1]) == ([0, 1], [])
    store = old.write(7, "a/scheduler", last, "w", [image_of(table, 0, 4)])
    assert snappings.of("a/scheduler", first).ask("a/scheduler", 1, first, [0]) == ([0], [])
    # Nobody waits for the previous run's checkpoint.
    assert store.function() == [] and snappings.stored(1, Stored(7, [])) == []


def test_what_a_scheduler_asked_for_that_is_gone_is_forgotten() -> None:
    snappings, snap = SnapshotWriters(SimulatedDisk()), m.Snap(2, 9, 5, "/f/00000002")
    for asker in ("coordinator", *(f"g{i}/scheduler" for i in range(20))):
        snappings.of(asker, snap).ask(asker, 1, snap, [0])
    snappings.live({"coordinator", "g3/scheduler"})
    assert list(snappings._by) == ["coordinator", "g3/scheduler"]
    before = m.Snap(1, 9, 5, "/f/00000001")
    # Checkpoint 1 was given up.
    assert snappings.of("g3/scheduler", before).ask("g3/scheduler", 1, before, [0]) == ([], [])
    # A new scheduler with the old name.
    assert snappings.of("g4/scheduler", before).ask("g4/scheduler", 1, before, [0]) == ([0], [])


@pytest.mark.parametrize("owner", ["", "a", "bb"])
def test_servers_write_for_a_group_into_no_checkpoint_but_its_own(owner: str) -> None:
    disk, root = SimulatedDisk(), Path("/run/checkpoints")
    table = m.TablePlaces(9, "b/w", Dense(rows=40), [0, 20], [])

    def write(number: int) -> list[m.Written]:
        snap = m.Snap(number, 9, 5, str(folder_of(root, number)))
        snapping = SnapshotWriters(disk).of("b/scheduler", snap)
        snapping.ask("b/scheduler", 1, snap, [0])
        written: list[m.Written] = snapping.write(7, "b/scheduler", snap, "w", [image_of(table, 0, 4)]).function()
        return written

    theirs, ours = (prepare(disk, root, group=group) for group in (owner, "b"))
    # Another group's checkpoint and one that does not exist: the same error.
    for number in (theirs, 7):
        with pytest.raises(FileNotFoundError, match="no checkpoint of group 'b'"):
            write(number)
    assert "w-0.safetensors" not in disk.names(folder_of(root, theirs))
    assert [one.file for one in write(ours)] == ["w-0.safetensors"]


def test_books_too_long_for_one_message_come_in_several_and_far_too_long_ones_are_told() -> None:
    snapping, snap = SnapshotWriter(SimulatedDisk()), m.Snap(3, 9, 5, "/f", 4)
    far = m.Counts.of(0, [(1 << 19) - 1])  # a ring of bits as long as 64 KB
    books = [m.SegmentBooks(1, dict.fromkeys(range(3), far)) for _ in range(6)]
    written = [m.Written(9, i, f"w-{i}.safetensors", 8, "0" * 64, one) for i, one in enumerate(books)]
    snapping.ask("c", 1, snap, range(6))
    snapping.write(1, "c", snap, "w", [])
    said = [one.message for one in snapping.stored(1, Stored(1, written)) if isinstance(one, Send)]
    assert len(said) == 3 and all(len(coding.encode(one)) < limits.HEADER_BYTES for one in said)
    assert [w for one in said if isinstance(one, m.Snapped) for w in one.written] == written
    endless = m.SegmentBooks(1, dict.fromkeys(range(40), far))
    snapping.write(2, "c", snap, "w", [])
    (said_no,) = snapping.stored(1, Stored(2, [msgspec.structs.replace(written[0], books=endless)]))
    assert isinstance(said_no, Send) and isinstance(said_no.message, m.Snapped)
    assert said_no.message.error.startswith("the books of w-0.safetensors have 2,")


@pytest.mark.parametrize(
    "what",
    [
        lambda town: town.replace(1, "server-1"),
        lambda town: town.change(generation=1),
        lambda town: town.change(members=[town.members[0], m.Member("server-2", 8, "server", "")]),
        lambda town: town.change(tables=[msgspec.structs.replace(town.view.tables[0], number=10)]),
    ],
)
def test_a_change_of_owners_begins_another_one_and_nothing_is_left(what: Callable[[Town], None]) -> None:
    town = Town()
    town.dumb = {"server-2"}
    town.checkpointing.soon()
    town.go()
    what(town)
    town.members = list(town.view.members)
    town.dumb = set()
    town.go()
    assert town.checkpointing.saved == 0 and left(town) == [] and town.busy
    town.go(1)
    assert town.checkpointing.saved == 2 and town.events(Warned) == [] and town.disk.names(ROOT) == ["00000002"]
    assert found(town) is not None


def test_a_backup_that_comes_or_goes_changes_nothing() -> None:
    town = Town()
    town.dumb = {"server-2"}
    town.checkpointing.soon()
    town.go()
    town.replace(0, "server-1")  # the primary stays the primary
    town.change(members=[*town.members, m.Member("worker-1", 44, "worker", "")])
    town.dumb = set()
    town.go(2)
    assert town.checkpointing.saved == 1 and {one.number for one in town.sent} == {1}


def test_a_server_that_writes_nothing_is_named_and_not_waited_for() -> None:
    town = Town(every=100 * SECOND)
    town.dumb = {"server-2"}
    town.checkpointing.soon()
    town.go()
    for _ in range(31):
        town.go(2)
    assert left(town) == []
    (warned,) = town.events(Warned)
    assert warned.what == (
        "no checkpoint was saved: server-2 wrote nothing for 60 s; the last one is kept, the next try is in 1 s"
    )
    assert not town.busy
    town.dumb = set()
    town.go(1)
    assert town.checkpointing.saved == 2


def test_a_server_that_was_asked_too_late_is_asked_for_a_later_step() -> None:
    town = Town()
    town.late = {"server-1"}
    town.checkpointing.soon()
    town.go()
    assert town.events(Warned) == [] and town.busy
    town.late, town.run.cut = set(), 14
    town.go(1)
    manifest = found(town)
    assert manifest is not None and manifest.steps == 14 and town.disk.names(ROOT) == ["00000002"]
    assert LATE == "too late"


def test_one_that_can_never_be_is_told_in_the_end() -> None:
    town = Town()
    town.late = {"server-1"}
    town.checkpointing.soon()
    for _ in range(10):
        town.go(1)
    assert "server-1 was asked too late: at step 99, asked for 12, 5 times in a row" in town.events(Warned)[0].what
    assert town.checkpointing.failures == len(town.events(Warned)) <= 2


def test_before_there_is_a_table_or_a_step_nothing_is_begun() -> None:
    town = Town(every=SECOND)
    tables = town.view.tables
    town.change(tables=[])
    town.run.cut = None
    for _ in range(20):
        town.go(1)
    town.change(tables=tables)
    for _ in range(20):
        town.go(1)
    town.replace(2)  # no server holds it
    town.run.cut = 3
    for _ in range(20):
        town.go(1)
    assert town.sent == [] and town.told == [] and town.disk.names(ROOT) == []
    town.replace(2, "server-2")
    town.go(1)
    assert town.checkpointing.saved == 1


def test_a_full_disk_is_a_warning_and_a_later_try_and_the_one_before_is_kept() -> None:
    town = Town(every=10 * SECOND)
    town.go()
    town.go(10)
    assert town.checkpointing.saved == 1
    town.run.cut = 20
    town.disk.capacity = town.disk.used + 300
    waits = []
    for _ in range(30):
        town.go(10)
        waits.append(town.checkpointing.failures)
    told = [event.what for event in town.events(Warned)]
    assert "cannot write to /run/checkpoints/00000002: No space left on device; the last one is kept" in told[0]
    # Less and less often.
    assert [what.split()[-2] for what in told] == ["1", "2", "4", "8", "16", "32", "64", "128"]
    assert len(left(town)) == 5 and all(name.startswith("00000001/") for name in left(town))
    manifest = found(town)
    assert manifest is not None and manifest.number == 1
    town.disk.capacity = None
    town.checkpointing.soon()  # as at the end of a run: does not wait for the next interval
    town.go()
    assert town.checkpointing.failures == 0 and len(town.events(Saved)) == 2


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_whatever_the_disk_refuses_the_run_is_told_and_the_next_one_is_saved(reason: int) -> None:
    clean = Town()
    clean.checkpointing.soon()
    clean.go()
    start = len(Town().disk.trace)
    for number in range(start, len(clean.disk.trace)):
        town = Town()
        town.disk.failing[number] = reason
        town.checkpointing.soon()
        town.go()
        assert town.checkpointing.failures == 1 and len(town.events(Warned)) == 1, clean.disk.trace[number]
        town.go(1)
        assert town.checkpointing.failures == 0
        found_one, _ = newest(town.disk.crash(number), ROOT)
        assert found_one is not None and found_one[1].number == town.checkpointing.saved


def test_old_checkpoints_that_cannot_be_removed_are_told_and_the_new_one_counts() -> None:
    town = Town(keep=1)
    town.checkpointing.soon()
    town.go()
    before = len(town.disk.trace)
    other = Town(keep=1)
    for _ in range(2):
        other.checkpointing.soon()
        other.go()
    removal = next(i for i, line in enumerate(other.disk.trace) if line.startswith("remove") and "00000001" in line)
    assert removal > before
    town.disk.failing[removal] = errno.EIO
    town.checkpointing.soon()
    town.go()
    assert town.checkpointing.saved == 2
    assert [event.what for event in town.events(Warned)] == ["old checkpoints cannot be removed: Input/output error"]


def test_a_disk_that_stands_still_is_told_once() -> None:
    checkpointing, run = CheckpointWriter(ROOT, disk=SimulatedDisk()), Run()
    view = Town().view
    checkpointing.soon()
    (store,) = checkpointing.tick(0, 5, lambda: view, run)
    assert isinstance(store, Store)
    told = [effect for second in range(200) for effect in checkpointing.tick(second * SECOND, 5, lambda: view, run)]
    (warned,) = told
    assert isinstance(warned, Tell) and isinstance(warned.event, Warned)
    assert warned.event.what.startswith("the disk of /run/checkpoints has been writing for more than 60 s")


def test_a_coordinator_that_dies_at_any_moment_leaves_nothing_that_the_next_one_could_mix_in() -> None:
    """The next coordinator asks for another step than the one that died.

    Servers that remember what they wrote for the first step must not report it again.
    """
    for begun_before in (False, True):  # True: the first process also gave up an attempt
        for most in range(60):
            town = Town()
            if begun_before:
                town.late = {"server-1"}
                town.checkpointing.soon()
                town.go()
                town.late = set()
                town.now += SECOND
            town.checkpointing.soon()
            done = town.go(0, most)
            before = town.checkpointing.saved
            town.restart_coordinator()
            town.run.cut = 14
            town.checkpointing.soon()
            assert town.go()
            manifest = found(town)
            assert manifest is not None and manifest.number == town.checkpointing.saved > before
            assert {one.books.version for one in manifest.segments} == {14} and manifest.steps == 14
            assert town.disk.names(ROOT)[-1] == f"{manifest.number:08d}"
            if done:
                break
        assert done and before  # the last attempt had time to finish


def test_a_crash_of_everything_at_any_operation_leaves_the_newest_that_was_told() -> None:
    clean = Town()
    for cut in (12, 14):
        clean.run.cut = cut
        clean.checkpointing.soon()
        clean.go()
    for stop_at in range(len(Town().disk.trace), len(clean.disk.trace) + 1):
        for seed in range(4):
            town = Town(keep=1)
            town.disk.stop_at = stop_at
            with suppress(Crashed):
                for cut in (12, 14):
                    town.run.cut = cut
                    town.checkpointing.soon()
                    town.go()
            after, _ = newest(town.disk.crash(seed), ROOT)
            told = town.events(Saved)
            number = 0 if after is None else after[1].number
            assert number in (len(told), len(told) + 1)
            if after is not None:
                assert after[1].steps == 10 + 2 * number
                assert {one.books.version for one in after[1].segments} == {10 + 2 * number}


def test_what_strangers_and_former_lives_say_is_not_believed() -> None:
    town = Town()
    town.dumb = {"server-1", "server-2"}
    town.checkpointing.soon()
    town.go()
    fake = [m.Written(9, i, f"w-{i}.safetensors", 8, "0" * 64, m.SegmentBooks(12)) for i in range(4)]
    tell = town.checkpointing.snapped
    assert tell(town.now, "stranger", m.Snapped(1, 1, fake)) == []
    assert tell(town.now, "server-1", m.Snapped(1, 77, [], "no")) == []
    assert tell(town.now, "server-1", m.Snapped(0, 1, [], "no")) == []
    # Counts for its own two segments, not for those of server-2.
    tell(town.now, "server-1", m.Snapped(1, 1, fake))
    town.dumb = {"server-1"}
    town.go(2)
    # The coordinator does not look into files that servers wrote; a reader does.
    assert town.checkpointing.saved == 1
    assert newest(town.disk, ROOT)[0] is None


@pytest.mark.parametrize("every", [1e300, float("inf")])
def test_an_interval_longer_than_any_run_is_accepted(every: float, tmp_path: Path) -> None:
    job = Job.of({"checkpoint": {"every": every}})
    assert make_checkpoints(job, tmp_path).writer.every == 10**9 * SECOND
