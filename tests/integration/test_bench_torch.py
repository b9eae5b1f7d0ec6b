"""The benchmark of modules runs and reports what it measured.

Speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from benchmarks import torch_training
from benchmarks.harness import machine
from benchmarks.torch_training import Case, Results, Settings, counted, measure, table
from shoal.cli.main import main
from shoal.errors import Invalid
from shoal.events import Evaluated, Progress, RunEvent

pytestmark = pytest.mark.slow  # other tests cover the measured code

TINY = Settings(net="linear", batch=8, workers=(1,), rivals=("plain",), rounds=1, seconds=0.1, warm=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    chance = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("images") / "some.npz"
    np.savez(path, x=chance.integers(0, 256, (400, 28, 28), np.uint8), y=chance.integers(0, 10, 400), classes=10)
    return str(path)


def _report(seconds: float, examples: int) -> Progress:
    return Progress(seconds=seconds, passes=0.0, steps=0, examples=examples, train_loss=None, workers=1)


def _judged(seconds: float) -> Evaluated:
    return Evaluated(
        seconds=seconds,
        number=0,
        passes=0.0,
        steps=0,
        examples=0,
        train_loss=None,
        test_loss=1.0,
        metrics={},
        workers=1,
        best=True,
    )


def test_the_command_prints_what_it_measured(images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_training, "QUICK", TINY)
    path = tmp_path / "all.json"
    told = CliRunner().invoke(main, ["bench", "torch", "--quick", "--data", images, "--json", str(path)])
    assert told.exit_code == 0, told.output
    assert "x plain" in told.output and "cores" in told.output
    found = msgspec.json.decode(path.read_bytes(), type=Results)
    assert [(case.who, case.workers, case.ratio) for case in found.cases] == [("plain", 1, 1.0)]
    assert found.cases[0].images[0] > 0 and found.missing == []


@pytest.mark.soak
def test_all_contestants_are_measured(images: str) -> None:
    settings = msgspec.structs.replace(TINY, data=images, rivals=Settings().rivals, workers=(1, 2), seconds=1.0)
    found = measure(settings, lambda line: None)
    cast = {(one.who, one.workers) for one in found.cases}
    assert {("shoal sync", 1), ("shoal async", 2), ("shoal hogwild", 2), ("shoal averaging", 2), ("ddp", 2)} <= cast
    assert not {("shoal hogwild", 1), ("ddp", 1)} & cast
    assert all(image > 0 for case in found.cases for image in case.images)


def test_start_up_the_first_evaluation_and_the_end_are_not_counted() -> None:
    events: list[RunEvent] = [_report(0.5, 10), _judged(1.0), _report(1.5, 100), _report(2.5, 300), _report(4.0, 310)]
    assert counted(events, warm=50, least=1.0) == 200.0


def test_a_window_in_which_nothing_was_left_to_do_is_none() -> None:
    late: list[RunEvent] = [_report(1.0, 100), _report(5.0, 500), _judged(6.0), _report(7.0, 500), _report(9.0, 500)]
    assert counted(late, warm=50, least=1.0) is None


def test_a_run_that_was_never_warm_is_none() -> None:
    assert counted([_judged(1.0), _report(2.0, 10)], warm=50, least=0.5) is None
    assert counted([], warm=50, least=0.5) is None


def test_a_ratio_is_of_rounds_not_of_medians() -> None:
    found = {("plain", 1): [100.0, 50.0, 10.0], ("shoal async", 1): [90.0, 45.0, 9.5]}
    assert torch_training._ratio(found, "shoal async", 1) == 0.9


def test_a_rival_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_training.importlib.util, "find_spec", lambda name: None)
    cast, missing = torch_training._cast(Settings())
    assert "ray" not in {who for who, _ in cast} and "shoal[ray]" in missing[0]
    results = Results(machine("torch"), Settings(), 1.0, [Case("plain", 1, [1.0], 1.0)], "noise", [1.0], missing)
    assert "shoal[ray]" in str(table(results).caption)


def test_who_or_how_many_that_cannot_be_is_refused() -> None:
    with pytest.raises(Invalid, match=r"no contestant 'shoal hogwlid' \(there are plain, shoal async"):
        torch_training._cast(Settings(rivals=("plain", "shoal hogwlid")))
    told = CliRunner().invoke(main, ["bench", "torch", "--workers", "two"])
    assert told.exit_code == 2 and "give whole numbers" in told.output


def test_a_rival_that_fails_says_why(images: str) -> None:
    with pytest.raises(Invalid, match="linaer"):
        measure(msgspec.structs.replace(TINY, data=images, net="linaer"), lambda line: None)
