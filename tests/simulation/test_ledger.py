"""Every bug that was found and mended leaves its plan behind, and no plan shows it again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from shoal.simulation.faults import Plan
from shoal.simulation.run import Run

BUGS = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())["bug"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug["what"]))
def test_a_mended_bug_stays_mended(bug: dict[str, Any]) -> None:
    plan = Plan.read(bug["plan"]) if "plan" in bug else Plan.draw(bug["seed"])
    assert bug["mended"]
    assert Run(plan).verdict().violations == []
