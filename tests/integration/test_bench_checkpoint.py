"""The checkpoint benchmark runs, reports what it measured, and leaves nothing behind.

Its speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import checkpoint, live_checkpoint
from benchmarks.checkpoint import CONTESTANTS, Results, Settings, measure
from shoal.cli.main import main
from shoal.errors import Invalid

pytestmark = pytest.mark.slow  # other tests cover the measured code

SMALL = Settings(megabytes=2, segment=1, repeat=2)
LIVE = live_checkpoint.Settings(megabytes=4, floats=10_000, quiet=0.1, rounds=1)


def test_all_contestants_write_and_read_the_same_and_nothing_is_left(tmp_path: Path) -> None:
    lines: list[str] = []
    results = measure(msgspec.structs.replace(SMALL, folder=str(tmp_path)), lines.append)
    assert [(case.what, case.size) for case in results.cases] == [("write", 2 << 20), ("read", 2 << 20)]
    for case in results.cases:
        assert {name: len(seconds) for name, seconds in case.seconds.items()} == dict.fromkeys(CONTESTANTS, 2)
        assert case.ratio("plain") == min(case.seconds["plain"]) / min(case.seconds["shoal"])
    assert len(lines) == 2 * len(CONTESTANTS) and list(tmp_path.iterdir()) == []
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


@pytest.mark.soak
def test_the_command_prints_the_ratios(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SMALL, live=LIVE)
    monkeypatch.setattr(checkpoint, "QUICK", settings)
    told = CliRunner().invoke(
        main, ["bench", "checkpoint", "--quick", "--folder", str(tmp_path), "--json", str(tmp_path / "all.json")]
    )
    assert told.exit_code == 0, told.output
    assert "x plain" in told.output and "x safetensors" in told.output
    assert "pushing, saving" in told.output and "restore" in told.output
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Results)
    assert found.settings == msgspec.structs.replace(settings, folder=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["all.json"]
    live = found.live
    assert live is not None and live.size >= 4 << 20 and live.files == 16
    (turn,) = live.rounds
    assert set(turn) == {"quiet", "saving", "plain"} and turn["quiet"].pushes > 0
    assert {what: len(seconds) for what, seconds in live.idle.items()} == dict.fromkeys(
        ("write", "plain write", "restore", "plain read"), 1
    )


def test_a_benchmark_of_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="at least one repeat"):
        measure(Settings(repeat=0))
    with pytest.raises(Invalid, match="at least one round"):
        live_checkpoint.measure(live_checkpoint.Settings(rounds=0), lambda line: None)
