"""Which of several runs was sooner at a loss that all of them reached, and why: in words, from their figures.

Time is rows over rows/s: both are told, beside where the workers' time went. Runs that do not learn the same are not compared.
"""

from __future__ import annotations

import math
from itertools import pairwise

from shoal.views import format
from shoal.views.drawing import clock
from shoal.views.explain import MUCH, VERBS, emulated, percent, times
from shoal.views.run_metrics import median, seconds_of
from shoal.views.run_record import STILL, RunRecord

SLACK = 0.005  # of a loss: less than that is chance


def of_several(runs: list[RunRecord]) -> list[str]:
    """Which reached the loss that all of them reached first, and what the figures say about why."""
    judged = [one for one in runs if one.run.best is not None]
    said = [emulated(runs)]
    silent = [one.name for one in runs if one.run.best is None]
    said += [f"No loss is known of {format.names(silent)}: not compared."] if silent else []
    if len(judged) < 2:
        return [one for one in (*said, "There are no two runs with a loss to compare.") if one]
    if (differ := other_task(judged)) is not None:
        alike = f"These runs do not learn the same ({differ}): their losses are not compared."
        return [one for one in (*said, alike) if one]
    if len({one.run.computing for one in judged}) > 1:
        unlike = "The computing of some is emulated and of others not, or not alike, so their times are not compared: "
        unlike += "give all the same emulate.per_example."
        return [one for one in (*said, unlike) if one]
    common = common_loss(judged)
    order = sorted(judged, key=lambda one: time_to(one, common))
    first = order[0]
    told = [f"{format.clean(first.name)} was there first, after {_short(time_to(first, common))}"]
    told += [
        f"{format.clean(one.name)} took {_short(time_to(one, common))}{_longer(one, first, common)}"
        for one in order[1:]
    ]
    said.append(
        f"All runs reached a test loss of {format.loss(common)} (0.5% above the highest of their best). {'; '.join(told)}."
    )
    said.append(" ".join(_why(first, one, common) for one in order[1:]))
    spaces = [space for one in judged if (space := _space(one)) is not None]
    if spaces:
        said.append(
            f"The model is judged every {_short(max(spaces))} or sooner (median): no time here is finer than that."
        )
    still = [one.name for one in judged if one.strategy in STILL]
    if any(one.strategy == "serial" for one in judged) and len({one.strategy for one in judged}) > 1:
        said.append("A serial run has one core and nobody to talk to.")
    if 0 < len(still) < len(judged):
        said.append(
            f"The clock of {format.names(still)} stands still while a model is judged, that of the others does not: their "
            f"evaluator computes beside the workers."
        )
    return [one for one in said if one]


def common_loss(runs: list[RunRecord]) -> float:
    """A little above the highest of the runs' best losses: all of them reached it, and none only by chance."""
    highest = max(one.run.best.test_loss for one in runs if one.run.best is not None)
    return highest + SLACK * abs(highest)


def time_to(told: RunRecord, loss: float) -> float:
    found = told.run.reached(loss)
    return math.inf if found is None else seconds_of(found)


def other_task(runs: list[RunRecord]) -> str | None:
    """What they do not have in common, so that their losses say nothing about each other."""
    for what in ("data", "model", "test_rows", "features"):
        found = {str(getattr(one.run.started, what)) for one in runs if one.run.started}
        if len(found) > 1:
            return f"{what.replace('_', ' ')}: {format.names(sorted(found))}"
    return None


def _longer(one: RunRecord, first: RunRecord, loss: float) -> str:
    soon, late = time_to(first, loss), time_to(one, loss)
    return f" ({times(late / soon)} times as long)" if soon > 0 and math.isfinite(late) else ""


def _why(first: RunRecord, one: RunRecord, loss: float) -> str:
    """Time is rows over rows/s: which of the two it is, and where the time went."""
    here, there = first.run.reached(loss), one.run.reached(loss)
    if here is None or there is None or not here.examples or not there.examples:
        return ""
    speeds = [
        examples / seconds for examples, seconds in ((x.examples, seconds_of(x)) for x in (here, there)) if seconds
    ]
    said = f"Up to there {format.clean(one.name)} needed {times(there.examples / here.examples)} times the rows of "
    said += format.clean(first.name)
    said += f", at {times(speeds[1] / speeds[0])} times its speed" if len(speeds) == 2 and speeds[0] else ""
    mine, theirs = first.run.shares, one.run.shares
    if mine and theirs:
        kind = max(("wait", "communicate", "idle"), key=lambda what: abs(theirs[what] - mine[what]))
        verb = VERBS[kind]
        if abs(theirs[kind] - mine[kind]) >= MUCH:
            said += f"; over the whole run its workers {verb} {percent(theirs[kind])} of their time, those of "
            said += f"{format.clean(first.name)} {percent(mine[kind])}"
    return f"{said}."


def _space(told: RunRecord) -> float | None:
    at = [seconds_of(event) for event in told.run.finite]
    return median([b - a for a, b in pairwise(at)]) if len(at) > 1 else None


def _short(seconds: float) -> str:
    return format.duration(seconds) if seconds >= 1 else clock(seconds)
