"""Hot segments are split and swapped while clients push, and the load evens out.

Every row is exactly what was pushed to it.
"""

from __future__ import annotations

import pytest

from benchmarks.skew import Settings, measure, table

pytestmark = pytest.mark.slow  # other tests cover the measured code


@pytest.mark.soak
@pytest.mark.parametrize("copies", [1, 2])
def test_by_load_hot_segments_are_split_or_change_hands_and_no_push_is_lost_or_counted_twice(copies: int) -> None:
    settings = Settings(servers=3, copies=copies, rows=50_000, drawn=2_000, clients=1, seconds=22.0)
    by_count, by_load = measure(settings).cases  # raises if a row is wrong
    assert by_count.happened("segments split") == 0
    assert by_load.happened("segments split") + by_load.happened("hand-overs") > 0
    print(f"{copies} copies: busiest {by_count.busiest:.2f} by count, {by_load.busiest:.2f} by load")


@pytest.mark.soak
def test_the_table_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Console(width=140).print(table(measure(Settings(rows=10_000, drawn=200, clients=1, seconds=3.0))))
    assert "handed over" in capsys.readouterr().out
