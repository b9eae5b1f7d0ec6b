"""``shoal bench placement``: segments stay evenly placed after many changes.

Hardly more is copied than necessary.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.placement import Results, Settings, case_of, measure
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code


def test_ours_is_even_after_every_change_and_copies_little_more_than_it_must() -> None:
    for case in measure(Settings(servers=(4,), per_server=(8,), copies=(1, 2), changes=40)).cases:
        ours = case.rules["shoal"]
        assert ours.primaries_worst <= 1.5  # one more than the mean, and the mean is small
        assert ours.ratio(case.shares) < 1.25 and ours.over_least < 1.1
        assert all(one.copied >= one.least for one in case.rules.values())
        for rival in ("ring", "rendezvous", "modulo"):
            assert case.rules[rival].primaries > ours.primaries


def test_the_same_seed_is_the_same_run() -> None:
    settings = Settings(changes=20)
    assert case_of(3, 24, 2, settings) == case_of(3, 24, 2, settings)


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    file, picture = tmp_path / "placement.json", tmp_path / "placement.png"
    asked = ["bench", "placement", "--quick", "--json", str(file), "--picture", str(picture)]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert "rendezvous" in result.output and picture.stat().st_size > 0
    assert msgspec.json.decode(file.read_bytes(), type=Results).cases
