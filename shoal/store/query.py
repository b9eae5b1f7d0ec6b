"""Queries: read-only functions, known by name, that run where the rows are.

    (keys, weights, settings) -> numbers, or (numbers, keys, values)

Keys are uint64, weights float32, one row per key; both are read-only views of the server's memory.
A result is small: some numbers, and some keys with values. A server passes its rows in pieces;
``join`` says how two results become one, for pieces and, at the client, for servers:

    "sum" "min" "max"        number by number (a tuple has one word for each)
    "largest"                keys with the largest first values by size, as many as setting ``k``
    a function               of a list of ``Found`` and the settings, to one ``Found``

Otherwise keys are concatenated, and sorted in the end. ``finish`` makes of the whole what the
caller gets. Only a query's name and settings travel, never code. Built in:

    count        rows (a row of a sparse table that was never pushed does not exist)
    norms        l1, l2, largest (by size)
    nonzeros     weights, nonzero, negative
    top          the k largest nonzero weights: (key, place in its row, weight), largest first
    histogram    how many weights are how large, in bins between powers of two, by sign
    overview     all but ``top`` in one go
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.errors import Invalid
from shoal.keys import Keys, Values
from shoal.registry import check_number, check_setting, checked_name, merged_settings, near
from shoal.user_code import ends_us, said, told

Numbers = npt.NDArray[np.float64]
Function = Callable[[Any, Any, Any], Any]

_BY_NUMBER = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_TAKEN = ("servers", "after")  # parameters of a call itself


class Found(msgspec.Struct, frozen=True, eq=False):
    """What a query found: numbers, and keys with a row of values each; empty without rows."""

    numbers: Numbers = msgspec.field(default_factory=lambda: np.empty(0))
    keys: Keys = msgspec.field(default_factory=lambda: np.empty(0, np.uint64))
    values: Values = msgspec.field(default_factory=lambda: np.empty((0, 1), np.float32))

    def __bool__(self) -> bool:
        return bool(len(self.numbers) or len(self.keys))


Join = str | tuple[str, ...] | Callable[[list[Found], Any], Found]


class Question(msgspec.Struct, frozen=True):
    """A function, how its results are joined, and its settings with their defaults."""

    name: str
    function: Function
    join: Join = "sum"
    defaults: Mapping[str, float] = {}
    finish: Callable[[Found, Any], Any] | None = None
    keys: bool = True  # False: it gets None for keys
    own: bool = False  # shoal's own

    def settings(self, given: Mapping[str, float]) -> Any:
        return merged_settings(f"question {self.name!r}", self.defaults, given, self._check)

    def _check(self, name: str, value: float) -> None:
        check_number(f"{name}={value!r}", value)
        if name == "k" and self.join == "largest" and not (1 <= value <= limits.CALL_KEYS and value == int(value)):
            raise Invalid(f"k={value!r}: an answer has 1 to {limits.CALL_KEYS:,} keys")

    def ask(self, pieces: Iterable[tuple[Keys | None, Values]], settings: Any) -> Found:
        """Run it over all these rows; Invalid if the function fails or returns no result."""
        whole = Found()
        try:
            for keys, weights in pieces:
                found = as_found(self.function(keys, weights, settings))
                whole = self.joined([whole, found], settings)
        except BaseException as error:  # the server goes on
            if ends_us(error):
                raise
            if isinstance(error, Invalid):
                raise Invalid(f"question {self.name!r}: {said(error)}") from None
            raise Invalid(f"question {self.name!r} failed: {told(error)}") from None
        return whole

    def joined(self, found: Sequence[Found], settings: Any) -> Found:
        """All results as one; empty ones do not count."""
        some = [one for one in found if one]
        if not some:
            return Found()
        if callable(self.join):
            return as_found(self.join(some, settings)) if len(some) > 1 else some[0]
        widths = {one.values.shape[1] for one in some if len(one.keys)}
        counts = {len(one.numbers) for one in some}
        if len(widths) > 1 or len(counts) > 1:
            raise Invalid("it found more numbers in one piece than in another: always return as many")
        keys = np.concatenate([one.keys for one in some])
        values = np.concatenate([one.values for one in some if len(one.keys)] or [some[0].values])
        if self.join == "largest":
            keys, values = _largest(keys, values, int(settings.k))
        return _checked(Found(self._numbers([one.numbers for one in some]), keys, values))

    def whole(self, found: Sequence[Found], settings: Any) -> Any:
        try:
            one = self.joined(found, settings)
            if len(one.keys) and isinstance(self.join, str | tuple) and self.join != "largest":
                order = np.argsort(one.keys, kind="stable")
                one = Found(one.numbers, one.keys[order], one.values[order])
            return one if self.finish is None else self.finish(one, settings)
        except Invalid:
            raise
        except BaseException as error:
            if ends_us(error):
                raise
            raise Invalid(f"question {self.name!r}: putting it together failed: {told(error)}") from error

    def _numbers(self, rows: list[Numbers]) -> Numbers:
        table, join = np.array(rows), self.join
        if not isinstance(join, tuple):
            join = (str(join),) * table.shape[1]
        elif len(join) != table.shape[1]:
            raise Invalid(f"it found {table.shape[1]} numbers, and join has words for {len(join)}")
        found: Numbers = table.sum(axis=0)
        for how in ("min", "max"):
            at = [i for i, word in enumerate(join) if word == how]
            found[at] = _BY_NUMBER[how].reduce(table[:, at], axis=0)
        return found


def question(
    *, join: Join = "sum", finish: Callable[[Found, Any], Any] | None = None, keys: bool = True, **settings: float
) -> Callable[[Function], Question]:
    """Register a function as a query under its own name."""
    for name, value in settings.items():
        check_number(f"{name}={value!r}", value)
        check_setting(name)
        if name in _TAKEN:
            raise Invalid(f"setting {name!r}: another name is needed, since a call has that one itself")
    words = (join,) if isinstance(join, str) else join if isinstance(join, tuple) else ()
    known = (*_BY_NUMBER, "largest") if isinstance(join, str) else tuple(_BY_NUMBER)
    for word in words:
        if word not in known:
            raise Invalid(f"join={join!r}: needs {', '.join(map(repr, known))}, or a function of a list of results")
    if not words and not callable(join):
        raise Invalid(f"join={join!r}: needs a word, a tuple of words, or a function")
    if join == "largest" and "k" not in settings:
        raise Invalid("join='largest': how many keys are wanted is a setting, k: question(join='largest', k=10)")

    def register(function: Function) -> Question:
        defaults = {name: float(value) for name, value in settings.items()}
        name = checked_name("question", function, "keys, weights, settings", OWN, _questions, numba=True)
        made = Question(name, function, join, defaults, finish, keys)
        _questions[made.name] = made
        return made

    return register


def question_named(name: str) -> Question:
    """The query that this process knows by that name."""
    known = {**OWN, **_questions}
    if name not in known:
        raise Invalid(
            f"no question {name!r} here{near(name, known)} (known: {', '.join(sorted(known))}): servers know those of the modules they were started "
            f"with (shoal.local(..., modules=['my_module']), launch.modules of a job), and who asks imports the module, too"
        )
    return known[name]


def as_found(returned: Any) -> Found:
    """What a function returned, as an answer: copied, since it may be a piece of the table."""
    if isinstance(returned, Found):
        returned = (returned.numbers, returned.keys, returned.values)
    if not isinstance(returned, tuple) or len(returned) != 3:
        returned = (returned, (), ())
    try:
        numbers = _real(returned[0], np.float64).reshape(-1)
        keys = np.array(returned[1], np.uint64) if len(returned[1]) else np.empty(0, np.uint64)
        with np.errstate(over="ignore"):
            values = _real(returned[2], np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"it returned what is no answer ({error}): return numbers, or (numbers, keys, values)") from None
    if not len(keys):
        return _checked(Found(numbers))
    if keys.ndim != 1 or values.ndim not in (1, 2) or len(values) != len(keys) or not values.size:
        raise Invalid(f"it returned {keys.shape} keys and {values.shape} values: one row for each key is needed")
    return _checked(Found(numbers, keys, values.reshape(len(keys), -1)))


def packed(found: Found) -> bytes:
    """As bytes, for another process."""
    values = found.values
    return msgspec.msgpack.encode(
        (found.numbers.tobytes(), found.keys.tobytes(), values.astype(np.float32).tobytes(), values.shape[1])
    )


def unpacked(data: bytes) -> Found:
    """What another process packed; Invalid if it is anything else."""
    try:
        numbers, keys, values, width = msgspec.msgpack.decode(data, type=tuple[bytes, bytes, bytes, int])
        rows = np.frombuffer(values, np.float32).reshape(-1, max(1, width))
        return as_found((np.frombuffer(numbers, np.float64), np.frombuffer(keys, np.uint64), rows))
    except (msgspec.MsgspecError, ValueError) as error:
        raise Invalid(f"it wrote what is no answer ({error})") from None


def _real(given: Any, kind: Any) -> Any:
    """A copy as floats; what has an imaginary part, or is nothing, is no number."""
    found = np.asarray(given)
    if found.dtype.kind not in "biufO" or (found.dtype.kind == "O" and any(one is None for one in found.flat)):
        raise TypeError(f"{'None' if found.dtype.kind == 'O' else found.dtype} is no number")
    return np.array(found, kind)


def _checked(found: Found) -> Found:
    if len(found.numbers) > limits.CALL_NUMBERS:
        raise Invalid(
            f"it found {len(found.numbers):,} numbers: an answer has at most {limits.CALL_NUMBERS:,}; add some up"
        )
    if len(found.keys) > limits.CALL_KEYS or found.values.size > limits.CALL_VALUES:
        raise Invalid(
            f"it found {len(found.keys):,} keys with {found.values.size:,} values: an answer has at most {limits.CALL_KEYS:,} and "
            f"{limits.CALL_VALUES:,}; return fewer (join='largest' keeps k of them), or pull the range"
        )
    return found


def _largest(keys: Keys, values: Values, most: int) -> tuple[Keys, Values]:
    """By size, then by key: the same ones however the rows were cut."""
    order = np.lexsort((*values.T[::-1][:-1], keys, -np.nan_to_num(np.abs(values[:, 0]), nan=np.inf)))[:most]
    return keys[order], values[order]


_questions: dict[str, Question] = {}  # users'


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
    size[np.isnan(size)] = np.inf  # NaN is shown first
    k = min(int(settings.k), len(size))
    # At least k are this large: one per block.
    bound = size[: len(size) // k * k].reshape(k, -1).max(axis=1).min()
    some = np.flatnonzero(size >= bound) if bound > 0 else np.flatnonzero(size)
    if len(some) > k:
        # All that are larger than the k-th, and of those just as large the first by key: the same
        # ones however rows are cut.
        least = np.partition(size[some], len(some) - k)[len(some) - k]
        above, level = some[size[some] > least], some[size[some] == least]
        order = np.lexsort((level % width, keys[level // width]))
        some = np.concatenate([above, level[order[: k - len(above)]]])
    rows, columns = np.divmod(some, width)
    return (), keys[rows], np.stack([weights[rows, columns], columns.astype(np.float32)], axis=1)


def _histogram(keys: None, weights: Values, settings: Any) -> Numbers:
    """By sign and exponent as the bits have them, zeros apart: exact, and no logarithm."""
    bits = np.ascontiguousarray(weights).view(np.uint32).reshape(-1)
    counts = np.bincount((bits >> np.uint32(23)).astype(np.int64), minlength=_CODES).astype(np.float64)
    return np.append(counts, [np.count_nonzero(bits == 0), np.count_nonzero(bits == _MINUS_ZERO)])


def _overview(keys: None, weights: Values, settings: Any) -> Numbers:
    parts = (_norms(None, weights, settings), [_count(None, weights, settings)], _nonzeros(None, weights, settings))
    return np.concatenate([*parts, _histogram(None, weights, settings)])


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
    """``negative[i]`` and ``positive[i]`` weights are from ``edges[i]`` up to ``edges[i + 1]``."""
    counts = _filled(found.numbers, _CODES + 2).astype(np.int64)
    zeros, positive, negative = counts[_CODES:], counts[:_EXPONENTS].copy(), counts[_EXPONENTS:_CODES].copy()
    strange = int(positive[-1] + negative[-1])  # infinite or NaN
    positive[-1] = negative[-1] = 0
    # They stand in the lowest bin, with what is smaller than all normal numbers.
    positive[0] -= zeros[0]
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
