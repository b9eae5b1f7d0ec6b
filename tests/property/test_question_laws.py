"""Built-in queries give the same answer as numpy, however the rows are split.

The rows are split over servers, and on each server into pieces.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.store.query import question_named

ODD = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-45, 3.4e38, -2.0, 1e-3]
WEIGHTS = st.one_of(st.sampled_from(ODD), st.floats(-4, 4, width=32))


@st.composite
def tables(draw: st.DrawFn) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32], list[list[int]]]:
    """Keys in any order, their rows, and where they are split.

    They are split into servers, and each server's rows into pieces.
    """
    rows, width = draw(st.integers(0, 24)), draw(st.sampled_from([1, 3]))
    keys = np.array(draw(st.permutations(range(rows))), np.uint64)
    values = draw(st.lists(WEIGHTS, min_size=rows * width, max_size=rows * width))
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=6)))
    groups: list[list[int]] = [[]]
    for one in cuts:
        groups[-1].append(one)
        if draw(st.booleans()):
            groups.append([one])
    return keys, np.array(values, np.float32).reshape(rows, width), groups


def ask(name: str, keys: Any, weights: Any, groups: list[list[int]], **given: float) -> Any:
    one, found, last = question_named(name), [], 0
    chosen = one.settings(given)
    for group in groups:
        bounds = sorted({last, *group, len(keys) if group is groups[-1] else max([last, *group])})
        cut = [(keys[a:b], weights[a:b]) for a, b in pairwise(bounds)]
        found.append(one.ask(cut, chosen))
        last = bounds[-1]
    return one.whole(found, chosen)


@settings(max_examples=200, deadline=None)
@given(tables())
def test_own_questions_say_what_numpy_says(table: Any) -> None:
    keys, weights, groups = table
    wide = weights.astype(np.float64)
    told = ask("overview", keys, weights, groups)
    assert told["rows"] == ask("count", keys, weights, groups) == len(keys)
    assert told["weights"] == weights.size
    assert told["nonzero"] == np.count_nonzero(weights) and told["negative"] == (weights < 0).sum()
    assert np.isclose(told["l1"], np.abs(wide).sum(), rtol=1e-12)
    assert np.isclose(told["l2"], np.sqrt((wide**2).sum()), rtol=1e-12)
    assert told["largest"] == np.abs(weights).max(initial=0)
    assert ask("norms", keys, weights, groups) == {name: told[name] for name in ("l1", "l2", "largest")}
    assert ask("nonzeros", keys, weights, groups) == {name: told[name] for name in ("weights", "nonzero", "negative")}


@settings(max_examples=200, deadline=None)
@given(tables())
def test_every_weight_is_in_one_bin_of_the_histogram(table: Any) -> None:
    keys, weights, groups = table
    told = ask("histogram", keys, weights, groups)
    assert told["zero"] == (weights == 0).sum()
    assert told["minus zero"] == ((weights == 0) & np.signbit(weights)).sum()
    edges = np.array(told["edges"])
    for sign, name in ((1, "positive"), (-1, "negative")):
        size = (sign * weights[sign * weights > 0]).astype(np.float64)
        assert told[name] == [int(((size >= a) & (size < b)).sum()) for a, b in pairwise(edges)]
        assert sum(told[name]) == len(size)


@settings(max_examples=200, deadline=None)
@given(tables(), st.integers(1, 30))
def test_the_top_weights_are_the_same_however_rows_are_cut(table: Any, k: int) -> None:
    keys, weights, groups = table
    flat = [
        (-abs(float(weights[i, j])), int(keys[i]), j, float(weights[i, j]))
        for i in range(len(keys))
        for j in range(weights.shape[1])
        if weights[i, j] != 0
    ]
    wanted = [(key, place, weight) for _, key, place, weight in sorted(flat)[:k]]
    assert ask("top", keys, weights, groups, k=k) == wanted
