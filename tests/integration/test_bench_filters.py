"""``shoal bench filters`` runs on synthetic rows and reports what each filter leaves.

Speed is not tested here.
"""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from benchmarks.filters import NAMED, Results, Settings, measure, table

pytestmark = pytest.mark.slow  # other tests cover the measured code

pytest.importorskip("lz4")
pytest.importorskip("zstandard")


def test_every_filter_leaves_fewer_bytes_and_all_together_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    told: list[str] = []
    results = measure(Settings(slots=3, repeat=1, rows=2_000), told.append)
    assert told[0].startswith("made-up rows like RCV1: 3 slots with ")
    assert [case.name for case in results.cases] == list(NAMED)
    assert [line.partition(", MB")[0] for line in told[1:]] == [f"filters {name}" for name in NAMED]
    assert all(case.left < results.plain for case in results.cases)
    by_name = {case.name: case.left for case in results.cases}
    assert by_name["int8, delta, zstd"] < min(by_name["int8"], by_name["delta"], by_name["zstd"])
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
    with (console := Console(width=160)).capture() as shown:
        console.print(table(results))
    assert "one_bit, delta, zstd" in shown.get() and "numpy, no chance" in shown.get()
