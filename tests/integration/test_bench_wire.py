"""``shoal bench wire`` runs, and 16 bits halve the bytes."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.half_precision import FORMS, Settings, measure, table

pytestmark = pytest.mark.slow  # other tests cover the measured code


def test_sixteen_bits_are_half_the_bytes() -> None:
    told: list[str] = []
    results = measure(Settings(rows=5_000, transports=("threads",), repeat=1, seconds=0.0), told.append)
    assert [line.partition(", MB")[0] for line in told] == [f"over threads, wire {form}" for form in FORMS]
    assert [(case.form, case.sent, case.received) for case in results.cases] == [
        (form, size, size) for form, size in zip(FORMS, (20_000, 10_000, 10_000), strict=True)
    ]
    with (console := Console(width=140)).capture() as shown:
        console.print(table(results))
    assert "restore alone: float16" in " ".join(shown.get().split())
