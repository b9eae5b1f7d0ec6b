"""``shoal bench keys`` runs and counts what it reports."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from benchmarks.keys import RIVALS, Settings, measure, table

pytestmark = pytest.mark.slow  # other tests cover the measured code


@pytest.fixture(autouse=True)
def kept_apart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.soak
def test_it_counts_keys_and_bytes_and_shows_what_is_left_of_clicks() -> None:
    told: list[str] = []
    small = Settings(keys=20_000, push=5_000, again=2, rival_keys=10_000, rows=20_000, admit=(0, 2))
    results = measure(small, told.append)
    assert len(told) == 2 + len(RIVALS) + 2
    assert results.store.keys == 20_000 and 24 < results.store.bytes_per_key < 40
    assert results.rare.rows < 200  # keys that shared their counter cells with others
    every, some = results.clicks
    assert 0 < some.weights < every.weights
    with (console := Console(width=140)).capture() as shown:
        console.print(table(results))
    assert "where twice is wanted" in " ".join(shown.get().split())


def test_all_rivals_do_the_same() -> None:
    draw = np.random.default_rng(0)
    pushes = [np.unique(draw.integers(0, 200, 50)).astype(np.uint64) for _ in range(6)]
    found = []
    for make in RIVALS.values():
        one = make()
        for keys in pushes:
            one.push(keys, np.full(len(keys), 0.5, np.float32))
        found.append(one.pull(np.arange(200, dtype=np.uint64)).tolist())
    assert all(other == found[0] for other in found)
