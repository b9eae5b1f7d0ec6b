"""Every bug that was found and fixed leaves its plan, and no plan shows it again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from shoal.simulation.faults import FaultPlan
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.training_plan import TrainingPlan
from shoal.simulation.training_scenario import TrainingScenario

BUGS = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())["bug"]


@pytest.mark.variants(
    slow=[
        "who was about to be welcomed when the run went back to a checkpoint ended the coordinator",
        "a server that became a member while more was on its way to it forgot what had been done to it meanwhile",
        "a survivor adopted its new primary with a message whose rows were damaged, and without what it brought",
        "a worker that left while its entering waited for the copies was entered for ever, and all waited for it",
        "changes were made while an earlier one was still being written, and a fill's image said that it had it",
        "a member that had a segment from a primary which died before the next one had set the table up acknowledged changes and did not make them",
        "a piece of a segment that was cut short on its way was acknowledged, and the segment never became whole",
        "a segment whose rows were cut off on their way was taken for whole",
        "a primary that first heard of a table when one of its segments was to be filled elsewhere never filled it",
        "a step that waited in a queue while some of its segments were handed over was made in those, too, without its rows",
        "where a set got smaller because one of it left, its next primary changed before it had opened: its copies had another's log, and a segment stood still",
        "what opens a segment stood in line behind all that waited at each server, and that behind one computation for each change of a copy: it stood still for 2.4 s",
    ]
)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug["what"]))
def test_a_mended_bug_stays_mended(bug: dict[str, Any]) -> None:
    plan = FaultPlan.read(bug["plan"])
    assert bug["mended"]
    verdict = TrainingScenario(plan).verdict() if isinstance(plan, TrainingPlan) else StoreRun(plan).verdict()
    assert verdict.violations == []
