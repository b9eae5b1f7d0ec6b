"""``shoal bench clocks``: both methods agree, and memory has the promised order (S1-19)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.clocks import Results, Settings, measure
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code


@pytest.mark.soak
def test_memory_follows_the_ranges_and_not_the_keys() -> None:
    settings = Settings(keys=(1_000, 100_000), nodes=(4, 8), ranges=(1, 16), tasks=100)
    cases = {(case.keys, case.nodes, case.ranges): case for case in measure(settings).cases}
    for nodes in (4, 8):
        for ranges in (1, 16):
            few, many = cases[1_000, nodes, ranges], cases[100_000, nodes, ranges]
            assert few.clocks <= 2 * ranges + 1 and many.clocks <= 2 * ranges + 1
            assert many.bytes["per key"] > 50 * few.bytes["per key"]
            assert many.bytes["ranges"] < 2 * few.bytes["ranges"] + 1_000
    assert cases[100_000, 8, 1].ratio > 1_000


@pytest.mark.soak
def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "clocks.json"
    result = CliRunner().invoke(main, ["bench", "clocks", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "x smaller" in result.output
    assert msgspec.json.decode(file.read_bytes(), type=Results).cases
