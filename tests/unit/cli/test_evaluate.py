"""``shoal evaluate --every`` watches until the run is over, and says how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli import common, groups
from shoal.errors import ShoalError
from shoal.inspect import evaluate
from shoal.inspect.evaluate import EvaluationResult


class Judging:
    """A model that can be evaluated twice, and then is gone."""

    note = ""

    def __init__(self, *_: object, **__: object) -> None:
        self._left = 2

    def __enter__(self) -> Judging:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def look(self) -> EvaluationResult:
        self._left -= 1
        if self._left < 0:
            raise ShoalError("part of table 'weights' was held by server-1 alone, which is gone")
        return EvaluationResult(10, 0.5, {}, 7, live=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "ModelEvaluator", Judging)
    monkeypatch.setattr(common, "_ENDS", 0.0)


def evaluated(where: str, *more: str) -> Result:
    return CliRunner().invoke(groups.evaluate, [where, "rows.svm", *more])


def test_when_the_run_is_over_so_is_the_judging(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    done = evaluated(str(tmp_path), "--every", "0.05")
    assert done.exit_code == 0, done.output
    assert done.output.count("loss 0.5000 on 10 rows after 7 steps") == 2 and "the run is over" in done.output


@pytest.mark.parametrize("where", ["", "tcp://127.0.0.1:7000"])
def test_when_the_servers_are_lost_that_is_an_error(tmp_path: Path, where: str) -> None:
    done = evaluated(where or str(tmp_path), "--every", "0.05")
    assert done.exit_code == 1 and "server-1 alone" in done.output


def test_without_every_it_is_judged_once(tmp_path: Path) -> None:
    assert evaluated(str(tmp_path)).output.count("loss") == 1
