"""The training benchmark runs, and its cases are comparable."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.training import Settings, measure, table
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code


def test_every_case_is_there_with_its_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    settings = Settings(rows=20_000, batches=(512, 2_048), passes=2, repeat=1)
    results = measure(settings, said.append)
    assert [(case.data, case.batch, case.rows) for case in results.cases] == [
        (data, batch, 20_000) for data in ("rcv1-like", "clicks") for batch in (512, 2_048)
    ]
    for case in results.cases:
        # A later epoch is a difference of times, and such a short one may be 0.
        assert min(case.bare, case.serial, case.first) > 0
        assert case.serial >= case.bare  # the faster of the two is the rival of later epochs
    assert len(said) == 8
    assert table(results).row_count == 4
    assert msgspec.json.decode(msgspec.json.encode(results))["settings"]["rows"] == 20_000


def test_the_commands_are_there() -> None:
    for command in (["bench"], ["bench", "store"], ["bench", "training"], ["bench", "reading"]):
        told = CliRunner().invoke(main, [*command, "--help"])
        assert told.exit_code == 0 and told.output.startswith("Usage")
