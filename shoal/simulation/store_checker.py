"""Checks the promises I1 to I8, I12 and I15 on a history and on the copies.

Each rule is arithmetic on the results of pulls and the acknowledged pushes. Where the history
leaves something open (a call that ended as ``unknown``), a rule says nothing. Violations are
returned, never raised, so that a mutant is caught by name.

``OwnershipChecker`` notes the epoch of every acknowledgement (I7). A deposed server may still
report a push that all copies had recorded; it may never acknowledge one that the next owner lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal import limits
from shoal.events import Begin, End, Event, Note
from shoal.keys import Values
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.faults import FaultPlan
from shoal.simulation.scenarios import Violation, Violations
from shoal.store.server.segment_state import SegmentState
from shoal.tables import Step
from shoal.wire import messages as m
from shoal.wire.messages.base import tag_of

NEVER = 1 << 62


@dataclass(slots=True)
class CheckedPull:
    begin: Begin
    end: End

    def __str__(self) -> str:
        return f"pull {self.begin.call} of {self.begin.client} at clock {self.begin.clock}"


@dataclass(slots=True)
class CheckedWorker:
    """One incarnation: when it could be waited for, and its steps."""

    name: str
    spells: list[list[int]] = field(default_factory=list)  # [entered, clock it started at, over]
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # step -> (slot, when)
    gone: int = NEVER


def check(plan: FaultPlan, history: list[Event], void: set[int]) -> list[Violation]:
    begins = {record.call: record for record in history if isinstance(record, Begin)}
    ends = {record.call: record for record in history if isinstance(record, End)}
    pulls = [CheckedPull(begins[c], end) for c, end in ends.items() if begins[c].kind == "pull" and end.outcome == "ok"]
    found = list(_monotone(pulls))
    found += _account(plan, begins, ends, pulls, void)
    if plan.kind == "each":
        found += _staleness(plan, history, begins, pulls, void)
    elif plan.kind == "step":
        found += _whole_steps(plan, pulls, void)
    return found


def check_end(plan: FaultPlan, history: list[Event], void: set[int], table: Values) -> list[Violation]:
    """Checks the final table: each push once, steps added in slot order, nothing infinite.

    ``table`` has a row for each segment: the counts of all columns, then the sum of all values.
    """
    found: list[Violation] = []
    sums: list[float] = table[:, -1].tolist()
    begins = [record for record in history if isinstance(record, Begin) and record.kind == "push"]
    acked = {record.call for record in history if isinstance(record, End) and record.outcome == "ok"}
    for segment, row in enumerate(table[:, :-1].astype(np.int64).tolist()):
        for column, count in enumerate(row):
            if plan.kind == "clients":
                calls = [begin.call for begin in begins if begin.client == client_name(column)]
                least, most = sum(call in acked for call in calls), len(calls)
            else:
                least = most = int(column not in void)
            if not least <= count <= most:
                what = f"segment {segment} counts {count} of column {column}, pushed {least} to {most} times"
                found.append(Violation("I1 exactly once", what))
    expected = in_order(plan, void) if plan.kind == "step" else None
    if expected is not None and any(value != expected for value in sums):
        found.append(Violation("I6 slot order", f"in slot order the sum is {expected!r}, the table has {sums!r}"))
    if not np.isfinite(sums).all():
        found.append(Violation("I15 finite", f"a stored value is not finite: {sums!r}"))
    return found


def client_name(column: int) -> str:
    return f"worker-{column}"


def _monotone(pulls: list[CheckedPull]) -> Iterator[Violation]:
    """I4: later pulls of an incarnation contain all that it has read."""
    last: dict[tuple[str, int], CheckedPull] = {}
    for pull in sorted(pulls, key=lambda pull: pull.begin.time):
        before = last.get((pull.begin.client, pull.begin.incarnation))
        if before is not None and before.end.time <= pull.begin.time:
            for segment, (old, new) in enumerate(zip(before.end.seen, pull.end.seen, strict=True)):
                if any(o > n for o, n in zip(old, new, strict=True)):
                    yield Violation("I4 monotone", f"{pull} saw less in segment {segment} than {before}")
                    return
        last[pull.begin.client, pull.begin.incarnation] = pull


def _account(
    plan: FaultPlan, begins: dict[int, Begin], ends: dict[int, End], pulls: list[CheckedPull], void: set[int]
) -> Iterator[Violation]:
    """I2: nothing is read before it is sent. I3: what was acknowledged before is read."""
    slots = plan.kind != "clients"
    pushes = [one for one in begins.values() if one.kind == "push" and not (slots and one.number in void)]
    if not pushes:
        return
    columns = np.array([one.number if slots else int(one.client.rpartition("-")[2]) for one in pushes])
    sent_at = np.array([one.time for one in pushes])
    over = [ends.get(one.call) for one in pushes]
    acked_at = np.array([NEVER if end is None or end.outcome != "ok" else end.time for end in over])
    for pull in pulls:
        seen = np.array(pull.end.seen)
        if not seen.size:
            continue
        count = seen.shape[1]
        sent = np.bincount(columns[sent_at <= pull.end.time], minlength=count)
        acked = np.bincount(columns[acked_at < pull.begin.time], minlength=count)
        if slots:  # a slot counts once, whichever worker sends it
            sent, acked = np.minimum(sent, 1), np.minimum(acked, 1)
        if (ghosts := np.argwhere(seen > sent)).size:
            segment, column = ghosts[0]
            what = f"saw {seen[segment, column]} of column {column} in segment {segment}, but {sent[column]} were sent"
            yield Violation("I2 no ghosts", f"{pull} {what}")
            return
        if (missing := np.argwhere(seen < acked)).size:
            segment, column = missing[0]
            what = f"{pull} misses column {column} in segment {segment}, which was acknowledged before"
            yield Violation("I3 real time", what)
            return


def _staleness(
    plan: FaultPlan, history: list[Event], begins: dict[int, Begin], pulls: list[CheckedPull], void: set[int]
) -> Iterator[Violation]:
    """I5: a pull at clock c contains all steps up to c - s of every worker active all that time."""
    workers = _workers(history, begins)
    for pull in pulls:
        delay = _delay_during(plan, history, pull)
        if pull.begin.enter or delay is None:
            continue
        for worker in workers.values():
            for entered, floor, over in worker.spells:
                if not (entered <= pull.begin.time and pull.end.time < over):
                    continue
                for step in range(floor + 1, pull.begin.clock - delay + 1):
                    slot, sent = worker.steps.get(step, (-1, NEVER))
                    if sent > pull.end.time:
                        yield Violation("I5 staleness", f"{pull} did not wait for step {step} of {worker.name}")
                        return
                    if slot not in void and any(row[slot] == 0 for row in pull.end.seen):
                        yield Violation("I5 staleness", f"{pull} misses step {step} of {worker.name} (slot {slot})")
                        return


def _workers(history: list[Event], begins: dict[int, Begin]) -> dict[int, CheckedWorker]:
    """Each incarnation's spells of work (from when to when it must be waited for) and its steps."""
    workers: dict[int, CheckedWorker] = {}
    for record in history:
        if isinstance(record, Note) and record.incarnation:
            worker = workers.setdefault(record.incarnation, CheckedWorker(record.client))
            if record.what in ("crashed", "removed"):
                worker.gone = min(worker.gone, record.time)
            if record.what == "entered":  # the answer may come after its life was over
                worker.spells.append([record.time, record.value or 0, worker.gone])
            elif record.what in ("parking", "crashed", "removed") and worker.spells:
                worker.spells[-1][2] = min(worker.spells[-1][2], record.time)
    for begin in begins.values():
        if begin.kind == "push" and begin.incarnation in workers:
            workers[begin.incarnation].steps[begin.step] = (begin.number, begin.time)
    return workers


def _delay_during(plan: FaultPlan, history: list[Event], pull: CheckedPull) -> int | None:
    """The loosest delay bound in force at some time during the pull; None if there was none."""
    # From the moment a change is asked for until it is known to be set, either may be in force.
    bounds: list[int | None] = []
    current: list[int | None] = [plan.max_delay]
    for record in history:
        if record.time > pull.end.time:
            break
        if isinstance(record, Note) and record.what == "delay asked":
            current = [current[-1], record.value]
        elif isinstance(record, Note) and record.what == "delay set":
            current = [record.value]
        if record.time >= pull.begin.time:
            bounds += current
    bounds += current
    return None if None in bounds else max(bound for bound in bounds if bound is not None)


def _whole_steps(plan: FaultPlan, pulls: list[CheckedPull], void: set[int]) -> Iterator[Violation]:
    """I6: a pull for step t sees whole steps only, and all that it may demand."""
    steps = steps_of(plan)
    for pull in pulls:
        least = 0 if plan.max_delay is None else pull.begin.clock - plan.max_delay
        for segment, row in enumerate(pull.end.seen):
            taken = 0
            while taken < len(steps) and all(row[slot] == 1 or slot in void for slot in steps[taken]):
                taken += 1
            above = [slot for step in steps[taken:] for slot in step if row[slot]]
            if above:
                yield Violation("I6 step", f"{pull} saw slots {above} of unfinished steps in segment {segment}")
                return
            if taken < least:
                yield Violation("I6 step", f"{pull} saw {taken} steps in segment {segment}, at least {least} expected")
                return


def slot_name(plan: FaultPlan, number: int) -> tuple[int, int]:
    """(epoch, number) of the n-th slot of the whole job."""
    if plan.kind != "step" or plan.slots_per_pass is None:
        return 0, number
    return divmod(number, plan.slots_per_pass)


def delicate(plan: FaultPlan, slot: int) -> float:
    """Numbers that cancel within a step: another order of addition gives another sum."""
    place = slot_name(plan, slot)[1] % plan.slots_per_step
    return (2.0**60, 1.5 + slot, -(2.0**60), 0.75 + slot)[place % 4]


def in_order(plan: FaultPlan, void: set[int]) -> float:
    """The result of one process: each step's slots added in order, then one update."""
    total = np.float32(0)
    for slots in steps_of(plan):
        step = 0.0
        for slot in slots:
            step += float(np.float32(delicate(plan, slot))) if slot not in void else 0.0
        total = np.float32(float(total) + float(np.float32(step)))
    return float(total)


def steps_of(plan: FaultPlan) -> list[list[int]]:
    """The slots of each step, in order, over all epochs."""
    per_pass = plan.slots_per_pass or plan.slots
    passes = [list(range(start, min(start + per_pass, plan.slots))) for start in range(0, plan.slots, per_pass)]
    size = plan.slots_per_step
    return [one[at : at + size] for one in passes for at in range(0, len(one), size)]


EMPTY = m.Counts(0)
# bytes beyond the bound: the last push, and changes that are neither pushes nor enter or park
_ROOM = 8_000


class OwnershipChecker:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self.violations = Violations()
        self._pushes: dict[int, m.Push] = {}  # by request
        self._first_view: dict[tuple[int, int], int] = {}  # by which a push was first split
        # by table and first key: epoch, owner
        self._highest: dict[tuple[int, int], tuple[int, str]] = {}
        self._world.watch(self._sent, m.Push, m.Counted, m.Levels, m.Adopt, m.BackfillPiece, m.Append, m.Appended)

    def _sent(self, sender: str, to: str, message: m.Message) -> None:
        match message:
            case m.Push():
                self._pushes[message.request] = message
                self._first_view.setdefault((message.stream, message.number), message.view)
            case m.Counted():
                self._counted(sender, message)
            case m.Levels() | m.Adopt() if message.changes:
                self._world.counts[f"rare: {tag_of(type(message))} with changes"] += 1
            case m.BackfillPiece() if message.books is not None and message.books.ledger:
                self._world.counts["rare: filled with counted pushes"] += 1
            case m.Append():
                self._append(sender, to, message)
            case m.Appended():
                self._appended(sender, message)

    def _append(self, sender: str, to: str, append: m.Append) -> None:
        """I12: changes that wait for a copy are bounded."""
        table_server = self._cluster.table_server(sender, append.table)
        link = table_server.log.links.get(to) if table_server is not None else None
        if table_server is None or link is None:
            return
        # Enter and park are never delayed: one each, and one more for every segment that opens.
        queued = [entry for entry in link.queue if entry.change.kind in ("enter", "park")]
        waits = link.queued_bytes - sum(entry.size for entry in queued)
        if waits > limits.COPIES_HELD + _ROOM:
            self._too_much(f"{waits:,} bytes of changes wait at {sender} for {to}")
        repeats = Counter((one.change.kind, one.change.incarnation, one.change.spell) for one in queued)
        if repeats and max(repeats.values()) > 1 + table_server.counts.get("promoted", 0):
            self._too_much(f"{sender} queued one enter or park for {to} {max(repeats.values())} times")

    def _appended(self, sender: str, appended: m.Appended) -> None:
        table_server = self._cluster.table_server(sender, appended.table)
        for (primary, _), backup in table_server.backups.by_primary.items() if table_server is not None else ():
            if backup.waiting_bytes > limits.COPIES_HELD + 2 * _ROOM:
                self._too_much(
                    f"{backup.waiting_bytes:,} bytes of changes of {primary} wait at {sender} for their segments"
                )

    def _too_much(self, what: str) -> None:
        if not any(one.rule == "I12 bounded" for one in self.violations):
            self.violations.add("I12 bounded", what)

    def _counted(self, sender: str, answer: m.Counted) -> None:
        push = self._pushes.get(answer.request)
        table_server = None if push is None else self._cluster.table_server(sender, push.table)
        if push is None or table_server is None or sender in self._world.twins:
            return
        placed, places = table_server.placed, table_server.placed.places
        for segment in range(push.first, min(push.last + 1, len(places))):
            place = places[segment]
            if place.servers[:1] != [sender] or place.since > push.view:  # it was another owner's
                continue
            if answer.new:
                self._acknowledged(push, placed.starts[segment], place.epoch, sender)
            elif self._first_view[push.stream, push.number] < place.since:
                self._world.counts["rare: duplicate reached the new primary"] += 1

    def _acknowledged(self, push: m.Push, start: int, epoch: int, server: str) -> None:
        """Record an acknowledgement; segments are known by their first keys."""
        highest, owner = self._highest.get((push.table, start), (0, ""))
        if epoch > highest:
            self._highest[push.table, start] = (epoch, server)
        elif owner == server:
            return
        elif epoch == highest:
            what = f"{server} and {owner} both acknowledged pushes to the segment from key {start} in epoch {epoch}"
            self.violations.add("I7 one owner", what)
        elif (found := self._cluster.state_from(owner, push.table, start)) is not None:
            state, segment = found
            self._world.counts["rare: acknowledged by a deposed server"] += 1
            if push.stream < 0 and -push.stream not in self._cluster.incarnations():
                return  # its client is gone, and with it what is known of its pushes
            if not _has(state, segment, push):
                what = (
                    f"{server} acknowledged push ({push.stream}, {push.number}) for segment {segment} in epoch {epoch}"
                )
                self.violations.add("I7 one owner", f"{what}, but {owner} owned it in epoch {highest} and lacks it")


def _has(state: SegmentState, segment: int, push: m.Push) -> bool:
    books, apply = state.books(segment), state.spec.apply
    if isinstance(apply, Step) and push.stream >= 0:
        return books.version > apply.step_of((push.stream, push.number))
    counted = books.ledger.get(push.stream)
    return counted is not None and (push.number < counted.mark or push.number in counted.ahead)


def differences(cluster: SimulatedCluster) -> Iterator[Violation]:
    """I8: every member of a set has the same rows, versions, ledgers and clocks."""
    live = set(cluster.incarnations())
    for table in cluster.tables():
        for segment, place in enumerate(table.places):
            states: dict[str, SegmentState] = {}
            for name in place.servers:
                state = cluster.segment_state(name, table.number, segment)
                if state is None:
                    yield Violation("I8 copies agree", f"{name} should have a copy of segment {segment}, but has none")
                else:
                    states[name] = state
            digests = {state.digest(segment) for state in states.values()}
            if len(digests) > 1 and (how := _differing(states, segment, live)):
                yield Violation("I8 copies agree", f"segment {segment}: {how}")


def settled(cluster: SimulatedCluster) -> bool:
    """Every server has the newest view, and no change is in flight to a copy or being computed."""
    for server in cluster.servers.values():
        logs = [table_server.log for table_server in server.tables.values()]
        if server.computing or any(log.entries or any(link.queue for link in log.links.values()) for log in logs):
            return False
    return cluster.all_have_newest_view()


def left_behind(cluster: SimulatedCluster) -> Iterator[Violation]:
    """I12: no server keeps segments or changes that it should not hold."""
    placed = {table.number: table.places for table in cluster.tables()}
    for name, server in cluster.servers.items():
        for number, table_server in server.tables.items():
            places = placed.get(number, [])
            if table_server.placed.places != places:
                continue  # the last view has not reached it yet
            states = [table_server.primary, *(backup.state for backup in table_server.backups.by_primary.values())]
            kept = [segment for state in states if state is not None for segment in state.segments]
            extra = [segment for segment in kept if name not in places[segment].servers]
            if extra or len(set(kept)) < len(kept):
                what = f"{name} still has segments {extra or sorted(kept)} of table {number}"
                yield Violation("I12 bounded", f"{what}, which others own" if extra else f"{what}, some of them twice")
            if table_server.log.entries or any(link.queue for link in table_server.log.links.values()):
                waits = {link.name: len(link.queue) for link in table_server.log.links.values()}
                yield Violation("I12 bounded", f"{name} has unsent changes of table {number}: {waits}")
            for link in table_server.log.links:
                if not any(place.servers[:1] == [name] and link in place.servers for place in places):
                    yield Violation("I12 bounded", f"{name} still sends to {link}, which backs up none of its segments")


def _differing(states: dict[str, SegmentState], segment: int, live: set[int]) -> str:
    """Describes how copies differ; only some may have forgotten a departed worker."""
    images = {name: state.image(segment) for name, state in states.items()}
    aspects: dict[str, Any] = {
        "rows": lambda image: image.rows.tobytes(),
        "names": lambda image: None if image.names is None else image.names.tolist(),
        "version": lambda image: image.books.version,
        "ledger": lambda image: {s: n for s, n in image.books.ledger.items() if n != EMPTY and (s >= 0 or -s in live)},
        "clocks": lambda image: {who: one for who, one in image.books.clocks.items() if who in live},
    }
    found = []
    for aspect, of in aspects.items():
        values = {name: of(image) for name, image in images.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            shown = {name: "..." if isinstance(value, bytes) else value for name, value in values.items()}
            found.append(f"{aspect} differ: " + ", ".join(f"{name} has {value}" for name, value in shown.items()))
    return "; ".join(found)
