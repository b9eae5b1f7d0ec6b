"""``shoal bench handles`` runs, saves the bytes that it reports, and changes no result."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.key_caching import Settings, measure, table

pytestmark = pytest.mark.slow  # other tests cover the measured code


def test_lists_by_number_save_the_keys_and_change_nothing_else() -> None:
    told: list[str] = []
    small = Settings(
        data="clicks", rows=2_000, passes=3, strategies=("sync",), servers=1, workers=1, how="threads", repeat=1, rounds=1,
        lists=3, large=5_000, drawn=50,
    )  # fmt: skip
    results = measure(small, told.append)
    assert told[0].startswith("sync: 3 passes over clicks") and len(told) == 4
    without, with_ = results.runs
    assert with_.loss == without.loss and with_.forgotten == without.saved == 0
    # Of three pulls and three pushes of a list, only the first sends its keys. More of them do if
    # two requests are in flight at once.
    assert 0.7 < with_.rate <= 5 / 6
    assert abs(without.sent - with_.sent - with_.saved) < 0.01 * without.sent
    assert [one.table for one in results.served] == ["dense", "sparse", "large"]
    assert results.served[2].rows == 5_000
    with (console := Console(width=140)).capture() as shown:
        console.print(table(results))
    assert "by number" in shown.get() and f"{with_.rate:.1%}" in shown.get()
