"""The benchmark of the readers runs, reports what it measured, and leaves nothing behind.

Speed is not tested here.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks.reading import Results, Settings, measure, table
from shoal.errors import Invalid

pytestmark = pytest.mark.slow  # other tests cover the measured code

pytest.importorskip("sklearn")


def test_a_made_up_file_stands_in_where_there_is_no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines: list[str] = []
    results = measure(Settings(repeat=2, rows=200), lines.append)
    (case,) = results.cases
    assert (case.what, case.rows) == ("LIBSVM, made up", 200)
    assert {name: len(seconds) for name, seconds in case.seconds.items()} == {"shoal": 2, "sklearn": 2}
    assert case.ratio == min(case.seconds["sklearn"]) / min(case.seconds["shoal"])
    assert len(lines) == 2 and list(tmp_path.iterdir()) == []
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
    shown = io.StringIO()
    Console(file=shown, width=140).print(table(results))
    assert "LIBSVM, made up" in shown.getvalue() and "x sklearn" in shown.getvalue()


@pytest.mark.skipif("SHOAL_DATA" not in os.environ, reason="SHOAL_DATA is not set")
def test_the_real_files_are_read_by_both_and_the_click_log_by_us() -> None:
    libsvm, clicks = measure(Settings(repeat=1)).cases
    assert (libsvm.what, libsvm.rows, libsvm.nonzeros) == ("LIBSVM, RCV1", 20_000, 1_552_293)
    assert clicks.rows == 60_000 and clicks.ratio is None


def test_a_benchmark_of_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="at least one repeat"):
        measure(Settings(repeat=0))
