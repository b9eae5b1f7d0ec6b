"""``shoal bench elastic`` and ``shoal bench billion`` give right results when small.

Servers join and leave, and every count and every float is right.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import billion, elastic
from shoal.cli.main import main
from shoal.views.axes import save

pytestmark = pytest.mark.slow  # other tests cover the measured code


@pytest.mark.soak
def test_a_server_joins_and_leaves_while_all_slots_are_counted_once(tmp_path: Path) -> None:
    small = elastic.Settings(features=4_000, rows=4_000, workers=2, batch=64, seconds=6.0, probe=2.0)
    results = elastic.measure(small)
    assert (results.lost, results.doubled, results.errors) == (0, 0, [])
    assert {"count", "leaving"} <= {move.why for move in results.moves}
    assert results.stalls()
    for phase in results.phases:  # a mean lies within the range of its points
        within = [rate for at, rate in results.rates if phase.start <= at <= phase.stop]
        assert not within or min(within) <= phase.rate <= max(within)
    assert results.machine.load is not None and "load average" in str(elastic.table(results).caption)
    save(elastic.picture(results), tmp_path / "elastic.png")
    assert (tmp_path / "elastic.png").stat().st_size > 0
    assert elastic.table(results).row_count == len(results.phases)


def test_the_mean_of_a_stretch_is_that_of_the_points_in_it() -> None:
    # 1,000 rows a second for 5 s, then none.
    seen = [(0.1 * i, 100 * i if i <= 50 else 5_000) for i in range(101)]
    rates = elastic._rates(seen)
    marks = {"joins": 4.0, "has its share": 4.01, "leaves": 7.0, "is gone": 7.5}
    phases = {one.name: one for one in elastic._phases(marks, rates, 10.0)}
    assert phases["before"].start == 2.0 and abs(phases["before"].rate - 1_000) < 1
    assert abs(phases["it joins"].rate - 1_000) < 1  # shorter than the distance between two points
    assert phases["it leaves"].rate == phases["after"].rate == 0
    assert elastic._rates(seen[:3]) == []


def test_every_float_of_a_large_table_is_right_after_a_server_joined(tmp_path: Path) -> None:
    file = tmp_path / "billion.json"
    result = CliRunner().invoke(main, ["bench", "billion", "--quick", "--floats", "2000000", "--json", str(file)])
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(file.read_bytes(), type=billion.Results)
    assert found.moved > 0 and [leg.what for leg in found.legs] == ["push", "pull", "push again", "pull again"]
