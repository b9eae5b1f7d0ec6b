"""shoal's own questions: how a model is, without pulling it. ``question`` says what a question is.

    count        rows
    norms        l1, l2, largest (by size)
    nonzeros     weights, nonzero, negative
    top          the k largest weights by size: (key, place in its row, weight), largest first; zeros are none
    histogram    how many weights are how large, in bins between powers of two, by sign
    overview     all but ``top`` in one go

A row of a sparse table that was never pushed does not exist, and is not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.keys import Keys, Values
from shoal.store.query import Found, Numbers, Question

_CODES = 512  # sign and exponent of a float32
_EXPONENTS = 256
_BIAS = 127  # of that exponent
_MINUS_ZERO = np.uint32(1 << 31)


def _count(keys: None, weights: Values, settings: Any) -> int:
    return len(weights)


def _norms(keys: None, weights: Values, settings: Any) -> list[float]:
    size = np.abs(weights)
    wide = size.astype(np.float64).reshape(-1)
    l1 = float(wide.sum())
    return [l1, float(np.square(wide, out=wide).sum()), float(size.max(initial=0.0))]


def _nonzeros(keys: None, weights: Values, settings: Any) -> list[int]:
    return [weights.size, int(np.count_nonzero(weights)), int(np.count_nonzero(weights < 0))]


def _top(keys: Keys, weights: Values, settings: Any) -> tuple[tuple[()], Keys, Values]:
    width = weights.shape[1]
    size = np.abs(weights).reshape(-1)
    size[np.isnan(size)] = np.inf  # what has gone wrong is shown first
    k = min(int(settings.k), len(size))
    bound = size[: len(size) // k * k].reshape(k, -1).max(axis=1).min()  # so large are k at least, one in each block
    some = np.flatnonzero(size >= bound) if bound > 0 else np.flatnonzero(size)
    if len(some) > k:
        # All that are larger than the k-th, and of those just as large the first by key: the same ones however rows are cut.
        least = np.partition(size[some], len(some) - k)[len(some) - k]
        above, level = some[size[some] > least], some[size[some] == least]
        order = np.lexsort((level % width, keys[level // width]))
        some = np.concatenate([above, level[order[: k - len(above)]]])
    rows, columns = np.divmod(some, width)
    return (), keys[rows], np.stack([weights[rows, columns], columns.astype(np.float32)], axis=1)


def _histogram(keys: None, weights: Values, settings: Any) -> Numbers:
    """By sign and exponent as the bits have them, zeros beside: exact, and no logarithm."""
    bits = np.ascontiguousarray(weights).view(np.uint32).reshape(-1)
    counts = np.bincount((bits >> np.uint32(23)).astype(np.int64), minlength=_CODES).astype(np.float64)
    return np.append(counts, [np.count_nonzero(bits == 0), np.count_nonzero(bits == _MINUS_ZERO)])


def _overview(keys: None, weights: Values, settings: Any) -> Numbers:
    parts = (_norms(None, weights, settings), [_count(None, weights, settings)], _nonzeros(None, weights, settings))
    return np.concatenate([*parts, _histogram(None, weights, settings)])


# ---------------------------------------------------------------- what the caller gets


def _as_count(found: Found, settings: Any) -> int:
    return int(_filled(found.numbers, 1)[0])


def _as_norms(found: Found, settings: Any) -> dict[str, float]:
    l1, squares, largest = _filled(found.numbers, 3).tolist()
    return {"l1": l1, "l2": squares**0.5, "largest": largest}


def _as_nonzeros(found: Found, settings: Any) -> dict[str, int]:
    return dict(zip(("weights", "nonzero", "negative"), map(int, _filled(found.numbers, 3)), strict=True))


def _as_top(found: Found, settings: Any) -> list[tuple[int, int, float]]:
    places, weights = found.values[:, -1].astype(np.int64), found.values[:, 0]
    return list(zip(found.keys.tolist(), places.tolist(), weights.tolist(), strict=True))


def _as_histogram(found: Found, settings: Any) -> dict[str, Any]:
    """``negative[i]`` and ``positive[i]`` weights are of a size from ``edges[i]`` up to ``edges[i + 1]``."""
    counts = _filled(found.numbers, _CODES + 2).astype(np.int64)
    zeros, positive, negative = counts[_CODES:], counts[:_EXPONENTS].copy(), counts[_EXPONENTS:_CODES].copy()
    strange = int(positive[-1] + negative[-1])  # infinite, or no number
    positive[-1] = negative[-1] = 0
    positive[0] -= zeros[0]  # they stand in the lowest bin, with what is smaller than all normal numbers
    negative[0] -= zeros[1]
    told: dict[str, Any] = {"zero": int(zeros.sum()), "minus zero": int(zeros[1]), "not finite": strange}
    used = np.flatnonzero(positive + negative)
    if not len(used):
        return told | {"edges": [], "negative": [], "positive": []}
    low, high = int(used[0]), int(used[-1]) + 1
    return told | {
        "edges": [0.0 if one == 0 else 2.0 ** (one - _BIAS) for one in range(low, high + 1)],
        "negative": negative[low:high].tolist(),
        "positive": positive[low:high].tolist(),
    }


def _as_overview(found: Found, settings: Any) -> dict[str, Any]:
    numbers = _filled(found.numbers, 7 + _CODES + 2)
    cut = (Found(numbers[:3]), Found(numbers[3:4]), Found(numbers[4:7]), Found(numbers[7:]))
    told: dict[str, Any] = {"rows": _as_count(cut[1], settings)}
    return (
        told
        | _as_nonzeros(cut[2], settings)
        | _as_norms(cut[0], settings)
        | {"histogram": _as_histogram(cut[3], settings)}
    )


def _filled(numbers: Numbers, count: int) -> Numbers:
    """Of a table without rows everything is 0."""
    return numbers if len(numbers) else np.zeros(count)


_NORMS = ("sum", "sum", "max")
OWN = {
    one.name: one
    for one in (
        Question("count", _count, "sum", {}, _as_count, keys=False, own=True),
        Question("norms", _norms, _NORMS, {}, _as_norms, keys=False, own=True),
        Question("nonzeros", _nonzeros, "sum", {}, _as_nonzeros, keys=False, own=True),
        Question("top", _top, "largest", {"k": 10.0}, _as_top, own=True),
        Question("histogram", _histogram, "sum", {}, _as_histogram, keys=False, own=True),
        Question(
            "overview", _overview, (*_NORMS, *("sum",) * (4 + _CODES + 2)), {}, _as_overview, keys=False, own=True
        ),
    )
}
