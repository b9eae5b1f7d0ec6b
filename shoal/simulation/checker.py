"""The promises, read off a history of the counting model (FAULTS ids: I1 to I6, I15).

Every rule is arithmetic on what pulls saw and what pushes were acknowledged. A rule says nothing where the history leaves
it open: a call that ended as ``unknown`` may be counted or not. What is found is returned, never raised: a mutant must be
caught by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from shoal.events import Begin, End, Event, Note
from shoal.simulation.faults import FaultPlan

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class CheckedPull:
    """A pull that came back, with what it saw."""

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
    """What pulls saw that they should not have, or should have and did not."""
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


def check_end(
    plan: FaultPlan, history: list[Event], void: set[int], seen: list[list[int]], sums: list[float], expected: float
) -> list[Violation]:
    """What is there when everything has come to rest: each push once, steps added in slot order, nothing infinite."""
    found: list[Violation] = []
    begins = [record for record in history if isinstance(record, Begin) and record.kind == "push"]
    acked = {record.call for record in history if isinstance(record, End) and record.outcome == "ok"}
    for segment, row in enumerate(seen):
        for column, count in enumerate(row):
            if plan.kind == "clients":
                calls = [begin.call for begin in begins if begin.client == client_name(column)]
                least, most = sum(call in acked for call in calls), len(calls)
            else:
                least = most = int(column not in void)
            if not least <= count <= most:
                what = f"segment {segment} counts {count} of column {column}, which was pushed {least} to {most} times"
                found.append(Violation("I1 exactly once", what))
    if plan.kind == "step" and any(value != expected for value in sums):
        found.append(Violation("I6 slot order", f"in slot order the sum is {expected!r}, the table has {sums!r}"))
    if not np.isfinite(sums).all():
        found.append(Violation("I15 finite", f"a stored value is not finite: {sums!r}"))
    return found


def client_name(column: int) -> str:
    return f"worker-{column}"


def _monotone(pulls: list[CheckedPull]) -> Iterator[Violation]:
    """I4: what one incarnation has read, its later pulls contain."""
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
    """I2: nothing is seen before it was sent. I3: what was acknowledged before a pull began is in it."""
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
        if slots:  # a slot counts once, whoever sends it
            sent, acked = np.minimum(sent, 1), np.minimum(acked, 1)
        if (ghosts := np.argwhere(seen > sent)).size:
            segment, column = ghosts[0]
            what = (
                f"{pull} saw {seen[segment, column]} of column {column} in segment {segment}, sent were {sent[column]}"
            )
            yield Violation("I2 no ghosts", what)
            return
        if (missing := np.argwhere(seen < acked)).size:
            segment, column = missing[0]
            what = f"{pull} misses column {column} in segment {segment}, acknowledged before it began"
            yield Violation("I3 real time", what)
            return


def _staleness(
    plan: FaultPlan, history: list[Event], begins: dict[int, Begin], pulls: list[CheckedPull], void: set[int]
) -> Iterator[Violation]:
    """I5: a pull at clock c contains all steps up to c - s of every worker that was at work all the while."""
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
                        yield Violation(
                            "I5 staleness", f"{pull} did not wait for {worker.name}, which had not sent step {step}"
                        )
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
    """The loosest bound that was in force at some time while the pull was under way; None: there was none."""
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
                yield Violation("I6 step", f"{pull} saw {taken} steps in segment {segment}, it may demand {least}")
                return


def steps_of(plan: FaultPlan) -> list[list[int]]:
    """The slots of each step, in order, over all passes."""
    per_pass = plan.slots_per_pass or plan.slots
    passes = [list(range(start, min(start + per_pass, plan.slots))) for start in range(0, plan.slots, per_pass)]
    size = plan.slots_per_step
    return [one[at : at + size] for one in passes for at in range(0, len(one), size)]
