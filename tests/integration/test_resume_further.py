"""A run resumes only to go further, so less training never replaces what it learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import Invalid

SETTINGS: dict[str, Any] = {
    "launch.how": "threads",
    "data.rows": 2_000,
    "data.features": 1_000,
    "data.batch": 32,
    "checkpoint.every": 0.02,
}


@pytest.mark.parametrize("strategy", ["sync", "async", "averaging", "hogwild"])
def test_a_run_that_is_past_its_new_end_is_left_as_it_is(strategy: str, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "run"
    run = shoal.train("rcv1-like", strategy=strategy, epochs=2, workers=2, settings=SETTINGS, out=out)
    model, summary = (out / "model.safetensors").read_bytes(), (out / "summary.json").read_bytes()
    with pytest.raises(Invalid, match=r"has come to 2 epochs already, and stop.epochs=1 is not further: ask for more"):
        shoal.train(resume=out, epochs=1)
    with pytest.raises(Invalid, match=r"steps already, and stop.steps=1 is not further"):
        shoal.train(resume=out, steps=1)
    assert (out / "model.safetensors").read_bytes() == model and (out / "summary.json").read_bytes() == summary
    assert shoal.train(resume=out).summary == run.summary  # nothing to do, and nothing changes


@pytest.mark.variants(slow=["sync", "hogwild", "averaging"])
@pytest.mark.parametrize("strategy", ["sync", "async", "averaging", "hogwild", "gossip", "peer-to-peer"])
def test_a_run_that_was_killed_when_all_was_done_ends_when_it_is_taken_up(
    strategy: str, tmp_path: Path, cache: Path
) -> None:
    """Hogwild once had no slots left to deal, and tried to deal them forever."""
    out = tmp_path / "run"
    run = shoal.train("rcv1-like", strategy=strategy, epochs=2, workers=2, settings=SETTINGS, out=out)
    (out / "summary.json").unlink()  # the file that is written last
    again = shoal.train(resume=out)
    assert again.summary["examples"] == run.summary["examples"]
    assert again.summary["stopped_because"] == "2 epochs done"
    assert again.summary["test_loss"] == pytest.approx(run.summary["test_loss"], rel=0.05)
