"""``shoal bench elastic`` and ``shoal bench billion``, small: servers come and go, and every count and every float is right."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click.testing import CliRunner

from shoal.benchmarks import billion, elastic
from shoal.cli import main


def test_a_server_joins_and_leaves_while_all_slots_are_counted_once(tmp_path: Path) -> None:
    small = elastic.Settings(features=4_000, rows=4_000, workers=2, batch=64, seconds=6.0, probe=2.0)
    results = elastic.measure(small)
    assert (results.lost, results.doubled, results.errors) == (0, 0, [])
    assert {"count", "leaving"} <= {move.why for move in results.moves}
    assert results.stalls()
    elastic.draw(results, tmp_path / "elastic.png")
    assert (tmp_path / "elastic.png").stat().st_size > 0
    assert elastic.table(results).row_count == len(results.phases)


def test_every_float_of_a_large_table_is_right_after_a_server_joined(tmp_path: Path) -> None:
    file = tmp_path / "billion.json"
    result = CliRunner().invoke(main, ["bench", "billion", "--quick", "--floats", "2000000", "--json", str(file)])
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(file.read_bytes(), type=billion.Results)
    assert found.moved > 0 and [leg.what for leg in found.legs] == ["push", "pull", "push again", "pull again"]
