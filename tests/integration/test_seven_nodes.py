"""The exercise with seven nodes descends alike by hand and by shoal (S3-09).

The test runs it as a reader would.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "seven_nodes.py"


def test_seven_nodes_by_hand_and_by_shoal_descend_alike(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"]()
    out = capsys.readouterr().out
    table = np.array([line.split() for line in out.splitlines() if re.match(r" *\d", line)], np.float64)
    rounds, by_hand, by_shoal, apart, also_apart = table.T
    assert rounds.tolist() == list(range(0, 201, 20))
    assert by_shoal == pytest.approx(by_hand, abs=2e-6)  # float32 against float64
    assert also_apart == pytest.approx(apart, abs=2e-5)
    assert by_hand[0] == pytest.approx(np.log(2), abs=1e-6) and (np.diff(by_hand) < 0).all()
    ends = [float(found) for found in re.findall(r"objective at the mean by \w+: (\S+)", out)]
    assert ends[0] == pytest.approx(ends[1], abs=2e-6)


def test_metropolis_weights_are_symmetric_and_sum_to_one() -> None:
    names = runpy.run_path(str(EXAMPLE))
    mixing = names["metropolis"]()
    assert (mixing == mixing.T).all() and mixing.sum(1) == pytest.approx(1.0) and (mixing.diagonal() > 0).all()
    assert {(i, j) for i, j in zip(*np.nonzero(np.triu(mixing, 1)), strict=True)} == set(names["LINKS"])
