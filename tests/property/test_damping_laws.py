"""A gradient that is too stale counts less, by a factor of its staleness alone (S3-07).

No other push changes the factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.keys import KeyRange
from shoal.limits import INLINE_ELEMENTS
from shoal.store.server.primary import Primary
from shoal.store.table.update import SGD
from shoal.tables import Dense, Each
from shoal.wire import messages as m

ROWS, STEP = 8, 0.25
LAWS = settings(max_examples=80, deadline=None)
FLOATS = st.floats(-100, 100, width=32)


@dataclass(frozen=True)
class Pushed:
    behind: int | None  # versions since its weights were read; None: no weights were read
    keys: tuple[int, ...]
    value: float


PUSHES = st.builds(
    Pushed,
    st.none() | st.integers(0, 40),
    st.sets(st.integers(0, ROWS - 1), min_size=1).map(lambda keys: tuple(sorted(keys))),
    FLOATS,
)


def push(segments: Primary, number: int, one: Pushed, version: int) -> None:
    arrays = np.array(one.keys, np.uint64), np.full(len(one.keys), one.value, np.float32)
    read = [] if one.behind is None else [max(0, version - one.behind)]
    segments.push(
        0,
        "ann",
        m.Push(
            request=number + 1,
            table=1,
            view=1,
            generation=0,
            incarnation=1,
            stream=-1,
            number=number,
            floor=0,
            step=0,
            entered=0,
            spell=0,
            first=0,
            last=m.EVERYWHERE,
            count=len(one.keys),
            start=-1,
            stop=-1,
            read=read,
        ),
        arrays,
    )


@LAWS
@given(st.lists(PUSHES, max_size=40), st.integers(1, 20))
def test_a_gradient_counts_by_its_staleness(pushes: list[Pushed], above: int) -> None:
    """w -= step * g * min(1, damp_above / staleness)."""
    spec = Dense(rows=ROWS, update=SGD(step=STEP), apply=Each(above))
    segments = Primary(1, spec, [(0, KeyRange(0, 3)), (1, KeyRange(3, ROWS))], INLINE_ELEMENTS)
    expected, damped = np.zeros(ROWS), 0
    for number, one in enumerate(pushes):
        push(segments, number, one, number)
        push(segments, number, one, number)  # a resent push is not counted again, damped or not
        age = 0 if one.behind is None else min(one.behind, number)
        damped += age > above
        expected[list(one.keys)] -= STEP * float(one.value) * min(1.0, above / max(age, 1))
    found = segments.table.pull(np.arange(ROWS, dtype=np.uint64))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert segments.facts()[0].get("damped", 0) == damped


@LAWS
@given(st.lists(PUSHES, max_size=30))
def test_without_damping_staleness_changes_nothing(pushes: list[Pushed]) -> None:
    tables = [Primary(1, Dense(rows=ROWS, update=SGD(step=STEP), apply=Each(above)), [(0, KeyRange(0, ROWS))], INLINE_ELEMENTS)
              for above in (None, 41)]  # fmt: skip
    for number, one in enumerate(pushes):
        for segments in tables:
            push(segments, number, one, number)
    ours, theirs = (segments.table.pull(np.arange(ROWS, dtype=np.uint64)) for segments in tables)
    assert np.array_equal(ours, theirs)
