"""Plans that broke a promise once keep all promises now.

They are kept as plans, because what a seed means changes with the drawing. Each file says on which
tree it broke, what broke, and why. The wrong steps have unit tests of their own, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.simulation.faults import FaultPlan
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.training_plan import TrainingPlan
from shoal.simulation.training_scenario import TrainingScenario

FILES = sorted((Path(__file__).parent / "plans").glob("*.txt"))
TRAINING = sorted((Path(__file__).parent / "plans" / "training").glob("*.txt"))


def test_there_are_the_plans_that_were_found() -> None:
    names = {file.stem for file in FILES}
    seeds = (2000312, 2001073, 2006280, 2007568, 32000124, 32000338, 32004744, 32005843, 32007262, 90000745, 90003481)
    assert names >= {f"{seed}{kind}" for seed in seeds for kind in ("", "-shrunk")} | {
        "32004906",
        "54000017",
        "54000051",
        "90003510",
        "101003031-shrunk",
    }


@pytest.mark.variants(
    slow=[
        "32004906",
        "32000338",
        "54000017",
        "54000051",
        "32007262",
        "32005843",
        "32000338-shrunk",
        "9*0745",
        "9*3481",
        "90003510",
        "101003031-shrunk",
    ]
)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_plan_that_broke_a_promise_keeps_all_of_them(file: Path) -> None:
    plan = FaultPlan.read(file.read_text())
    assert plan.faults, "a plan in which nothing goes wrong shows nothing"
    assert StoreRun(plan).verdict().violations == []


def test_there_are_the_plans_of_training_that_were_found() -> None:
    assert len(TRAINING) >= 12


@pytest.mark.parametrize("file", TRAINING, ids=lambda file: file.stem)
def test_a_plan_of_training_that_broke_a_promise_keeps_all_of_them(file: Path) -> None:
    plan = TrainingPlan.read(file.read_text())
    assert isinstance(plan, TrainingPlan) and plan.faults
    assert TrainingScenario(plan).verdict().violations == []
