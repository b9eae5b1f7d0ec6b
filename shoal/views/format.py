"""Formats figures for all views: numbers, times, sizes, shares, counts.

Plain functions that never raise: a loss may be no number, a name may hold escape codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from shoal.events import counted
from shoal.limits import STALENESS_BUCKETS

many = counted  # 1 worker, 2 workers


def clean(text: str) -> str:
    """One line without control characters: a name must not move the cursor."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def number(value: object) -> float | None:
    """A figure of a summary, if it is a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def natural(name: str) -> list[tuple[int, str]]:
    """For sorting: worker-2 before worker-10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name[:200])]


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([part for part in (", ".join(parts[:-1]), *parts[-1:]) if part])


def from_to(least: int, most: int, what: str = "") -> str:
    """2 workers, 2 to 4 workers; the numbers alone without a noun."""
    highest = many(most, what) if what else f"{most:,}"
    return highest if least == most else f"{least:,} to {highest}"


def loss(value: float | None) -> str:
    """A loss with four decimals, or more digits if it is small."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.2e}" if abs(value) >= 100_000 or 0 < abs(value) < 0.00005 else f"{value:.4f}"


def metric(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return loss(value)
    match name:
        case "objective":
            digits = 6 - int(math.log10(max(abs(value), 1.0)))  # seven: the last ones still change
            return f"{value:,.{max(0, digits)}f}"
        case "nonzero":
            return f"{value:,.0f}"
        case "skipped":
            return f"{value:.1%}"
    return loss(value)


def distance(value: float) -> str:
    """The distance of models from their mean, of any magnitude."""
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def epochs(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.2g}" if 0 < value < 0.1 else f"{value:,.1f}".removesuffix(".0")


def rounds(value: float) -> str:
    if not math.isfinite(value):
        return "- rounds"
    text = (f"{value:.1f}" if 1 < value < 9.95 else f"{value:,.0f}").removesuffix(".0")
    return f"{text} round{'' if text == '1' else 's'}"


def seconds(value: float) -> str:
    """Seconds without the unit; with tenths below ten."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def exact_seconds(value: float) -> str:
    """Seconds without the unit, in three digits, for tables and comparisons."""
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"


def duration(value: float) -> str:
    """8.1 s, 12 min 3 s, 2 h 5 min."""
    if not math.isfinite(value) or value < 600:
        return f"{seconds(value)} s"
    minutes, rest = divmod(int(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def latency(value: float) -> str:
    """A short time: 3 µs, 41 ms, 2.5 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value * 1e6:,.0f} µs"


def elapsed(value: float) -> str:
    """A duration, or a latency below a second."""
    return duration(value) if value >= 1 else latency(value)


def rate(value: float | None) -> str:
    return f"{value:,.0f} rows/s" if value is not None and math.isfinite(value) else "- rows/s"


def share(value: float) -> str:
    if 0 < value < 0.001:
        return "less than 0.1%"
    return f"{value:.1%}" if 0 < value < 0.0995 else f"{value:.0%}"


def times(factor: float) -> str:
    """0.035, 1.25, 3.5, 22."""
    if factor < 0.1:
        return f"{factor:.2g}"
    return f"{factor:.2f}" if factor < 2 else f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"


def size(number_of_bytes: float) -> str:
    """12.3 MB; small ones in kB."""
    if number_of_bytes < 1e5:
        return f"{number_of_bytes / 1e3:,.1f} kB"
    return f"{number_of_bytes / 1e6:,.1f} MB" if number_of_bytes < 1e10 else f"{number_of_bytes / 1e9:,.1f} GB"


def most_stale(highest: int) -> str:
    """The highest staleness; the last bucket also holds all higher values."""
    return f"{highest:,}{' or more' if highest >= STALENESS_BUCKETS - 1 else ''}"
