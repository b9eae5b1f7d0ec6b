"""Values in 16 bits are restored as exactly as 16 bits allow (``wire.forms``)."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.tables import Wire
from shoal.wire.half_precision import restored, shortened, too_large

SHORT = [form for form in get_args(Wire) if form != "float32"]
BITS = {"float16": 10, "bfloat16": 7}  # of the mantissa
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}  # spacing of the smallest numbers
MOST = {"float16": 65_504.0, "bfloat16": float((2 - 2.0**-7) * 2.0**127)}
ALL = np.arange(1 << 16, dtype=np.uint16)
LAWS = settings(max_examples=200, deadline=None)


def as_words(array: Any) -> Any:
    return array.view(np.uint32)


def spacing(values: Any, form: str) -> Any:
    """The spacing of this form's numbers at each of these values, in double precision."""
    size = np.maximum(np.abs(values.astype(np.float64)), SMALLEST[form] * 2.0 ** BITS[form])
    return 2.0 ** (np.floor(np.log2(size)) - BITS[form])


def finite(form: Wire) -> Any:
    """All finite numbers of a form, as float32."""
    found = restored(ALL, form)
    return found[np.isfinite(found)]


@pytest.mark.parametrize("form", SHORT)
def test_what_a_form_can_say_comes_back_bit_for_bit(form: Wire) -> None:
    exact = finite(form)
    assert len(exact) == {"float16": 2 * 31 * 1_024, "bfloat16": 2 * 255 * 128}[form]
    again = shortened(exact, form)
    assert again is not None and again.dtype == np.uint16
    assert as_words(restored(again, form)).tolist() == as_words(exact).tolist()  # 0 and -0 as well


def test_float16_is_numpys() -> None:
    theirs = ALL.view(np.float16).astype(np.float32)
    numbers = ~np.isnan(theirs)
    assert (as_words(restored(ALL, "float16"))[numbers] == as_words(theirs)[numbers]).all()
    assert np.isnan(restored(ALL, "float16")[~numbers]).all()
    near = as_words(finite("float16"))
    words = np.concatenate([near + np.uint32(off) for off in (0, 1, 0xFFF, 0x1000, 0x1001, 0xFFFFFFFF)])
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    values = np.concatenate([words, drawn]).view(np.float32)
    values = values[np.abs(values) < 65_520]  # float16 makes larger values infinite
    mine = shortened(values, "float16")
    assert mine is not None and (mine == values.astype(np.float16).view(np.uint16)).all()


@pytest.mark.parametrize("form", SHORT)
@LAWS
@given(drawn=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_what_comes_back_is_within_half_a_step_and_twice_is_as_once(form: Wire, drawn: list[float]) -> None:
    values = np.array(drawn, np.float32)
    sent = shortened(values, form)
    limit = MOST[form] + float(spacing(np.float32(MOST[form]), form)) / 2
    assert (sent is None) == bool((np.abs(values.astype(np.float64)) >= limit).any())
    if sent is None:
        return
    back = restored(sent, form)
    assert (np.abs(back.astype(np.float64) - values) <= spacing(values, form) / 2).all()
    assert (np.signbit(back) == np.signbit(values)).all()
    again = shortened(back, form)
    assert again is not None and again.tolist() == sent.tolist()


@pytest.mark.parametrize("form", SHORT)
def test_of_two_that_are_as_near_it_is_the_even_one(form: Wire) -> None:
    step = 2.0 ** -BITS[form]
    halves = np.array([1 + step / 2, 1 + 3 * step / 2, -1 - step / 2, -1 - 3 * step / 2], np.float32)
    sent = shortened(halves, form)
    assert sent is not None and restored(sent, form).tolist() == [1, 1 + 2 * step, -1, -1 - 2 * step]


@pytest.mark.parametrize("form", SHORT)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, np.finfo(np.float32).max])
def test_nothing_that_would_be_infinite_or_no_number_is_shortened(form: Wire, bad: float) -> None:
    values = np.full((3, 2), 0.5, np.float32)
    assert shortened(values, form) is not None
    values[1, 1] = bad
    assert shortened(values, form) is None


@pytest.mark.parametrize("form", get_args(Wire))
@pytest.mark.parametrize("shape", [(0,), (0, 3), (5,), (4, 3)])
def test_a_form_keeps_the_shape(form: Wire, shape: tuple[int, ...]) -> None:
    sent = shortened(np.ones(shape, np.float32), form)
    assert sent is not None and sent.shape == shape
    back = restored(sent, form)
    assert back.shape == shape and back.dtype == np.float32 and (back == 1).all()


def test_what_is_too_large_is_named_with_a_form_that_holds_it() -> None:
    values = np.array([[1.0, -70_000.0], [2.0, 3.0]], np.float32)
    assert str(too_large(values, "float16")) == (
        "value -70000 is more than float16 holds (65,504), and so the values of this table travel: nothing was sent; "
        "scale it down, or make the table with wire='bfloat16'"
    )
    assert "wire='float32'" in str(too_large(values, "bfloat16"))
