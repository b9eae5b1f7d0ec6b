"""A server reads a message whose values were sent in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import BadKeys, BadValues
from shoal.keys import KeyRange
from shoal.limits import FRAME_BYTES
from shoal.store.server import segment_state
from shoal.store.server.segment_state import RequestCheck
from shoal.tables import Dense, Sparse, Table
from shoal.wire import messages as m

SPAN = 40


def house(spec: Table) -> RequestCheck:
    return RequestCheck(spec, [(0, KeyRange(0, SPAN))])


def push(count: int, **more: Any) -> m.Push:
    return m.Push(1, 1, 1, 0, 5, -5, 0, 0, 0, 0, 0, 0, m.EVERYWHERE, count, form="bfloat16", **more)


def test_what_comes_shortened_is_whole_from_here_on() -> None:
    one = house(Dense(rows=SPAN, width=2, wire="bfloat16"))
    half = np.array([0x3F80, 0x4000, 0xBF80, 0x0000], np.uint16)  # 1, 2, -1, 0
    given = one.key_values(push(2), [np.array([3, 9], np.uint64), half], one.all_mask)
    assert given is not None and given.values.dtype == np.float32
    assert given.values.tolist() == [[1, 2], [-1, 0]]


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_what_comes_shortened_and_is_not_finite_is_refused(bits: int) -> None:
    one = house(Dense(rows=SPAN))
    with pytest.raises(BadValues, match="not finite"):
        one.key_values(push(2, start=3, stop=5), [np.array([0, bits], np.uint16)], one.all_mask)


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        (Dense(rows=SPAN), {}),
        (Dense(rows=SPAN), {"start": 0, "stop": SPAN}),
        (Sparse(keys=SPAN), {"start": 0, "stop": SPAN}),
    ],
)
def test_no_memory_is_taken_for_more_than_one_message_holds(
    monkeypatch: pytest.MonkeyPatch, spec: Table, more: dict[str, int]
) -> None:
    monkeypatch.setattr(segment_state, "restored", lambda array, form: pytest.fail("it took the memory"))
    one, rows = house(spec), FRAME_BYTES // 8 + 1
    arrays = [np.zeros(rows, np.uint16)] if more else [np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint16)]
    with pytest.raises(BadKeys, match="rows in one message, at most"):
        one.key_values(push(rows, **more), arrays, one.all_mask)
