"""Guards a user's filter: anything it raises or returns wrongly becomes a ``BadFilter``.

It gets read-only arrays, and its results are checked before use. shoal's own filters need none of
this. In a server (``run_apart``) it runs in another process (``filter_process``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from shoal.errors import BadFilter, Invalid
from shoal.filters.base import Base, Bytes, Compressor, Mask, Quantizer, Sparsifier
from shoal.filters.filter_process import FilterMisbehaved, FilterProcess
from shoal.keys import Values
from shoal.user_code import ends_us, told
from shoal.wire.messages.base import Array

_apart = False


def run_apart() -> None:
    """Run users' filters in their own processes from now on; for servers."""
    global _apart
    _apart = True


class _UserFilter:
    """A filter whose methods run in another process."""

    def __init__(self, name: str, one: Base) -> None:
        self._elsewhere, self._one = FilterProcess(name, one), one

    def __getattr__(self, method: str) -> Any:
        if method in _METHODS:
            return partial(self._elsewhere.call, method)
        return getattr(self._one, method)


_METHODS = ("choose", "shorten", "pack", "size", "restore", "held", "press", "release")


def guarded(name: str, one: Base) -> Base:
    """The filter with guards; shoal's own are returned as they are."""
    if type(one).__module__.startswith("shoal.filters."):
        return one
    if isinstance(one, Sparsifier):
        return _UserSparsifier(name, cast(Sparsifier, _UserFilter(name, one)) if _apart else one)
    if isinstance(one, Quantizer):
        return _UserQuantizer(name, cast(Quantizer, _UserFilter(name, one)) if _apart else one)
    return _UserCompressor(name, cast(Compressor, _UserFilter(name, one) if _apart else one))


def is_theirs(one: Base) -> bool:
    return isinstance(one, _UserSparsifier | _UserQuantizer | _UserCompressor)


class _UserSparsifier(Sparsifier):
    def __init__(self, name: str, one: Sparsifier) -> None:
        super().__init__(one.settings)
        self._name, self._one = name, one

    def choose(self, values: Values, seed: int) -> Mask:
        found = _tried(self._name, "choose rows", lambda: np.asarray(self._one.choose(_read_only(values), seed)))
        if found.shape != (len(values),) or (found.dtype.kind not in "biu" and len(found)):
            raise BadFilter(
                f"filter {self._name!r} answers with shape {found.shape} of {found.dtype}: one truth value for each row is needed"
            )
        mask: Mask = found.astype(np.bool_)
        return mask


class _UserQuantizer(Quantizer):
    def __init__(self, name: str, one: Quantizer) -> None:
        super().__init__(one.settings)
        self._name, self._one = name, one
        if not isinstance(one.item, int) or one.item < 1:
            raise Invalid(f"filter {name!r} has item = {one.item!r}: the bytes of a code are needed, 1 or more")
        vars(self).update(sums=one.sums, item=one.item, compiled=one.compiled)
        self._ways = bool(one.pushes), bool(one.pulls)

    @property
    def pushes(self) -> bool:
        return self._ways[0]

    @property
    def pulls(self) -> bool:
        return self._ways[1]

    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        found: Any = self._try("shorten values", lambda: self._one.shorten(_read_only(values), seed))
        if found is None:
            return None
        if not isinstance(found, tuple) or len(found) != 2:
            raise BadFilter(
                f"filter {self._name!r} shortens to {type(found).__name__}: (codes, head) is needed, or None"
            )
        codes, head = found
        if not isinstance(codes, np.ndarray) or not codes.ndim or len(codes) != len(values) or codes.dtype.hasobject:
            raise BadFilter(
                f"filter {self._name!r} shortens to {_seen(codes)}: one row of codes for each row is needed"
            )
        return codes, _bytes(self._name, "makes a head of", head)

    def pack(self, codes: Array) -> Bytes:
        return _bytes(self._name, "packs codes to", self._try("pack codes", lambda: self._one.pack(codes)))

    def size(self, rows: int, width: int) -> int:
        size: int = self._try("say a size", lambda: operator.index(self._one.size(rows, width)))
        if size < 0:
            raise BadFilter(f"filter {self._name!r} says that {rows} rows have {size} bytes: 0 or more is needed")
        return size

    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        found = self._try("restore what came", lambda: self._one.restore(packed, rows, width))
        return _rows(self._name, "restores", found, (rows, width))

    def held(self, values: Values) -> Values:
        found = self._try("cut values", lambda: self._one.held(_read_only(values)))
        return _rows(self._name, "cuts values to", found, values.shape)

    def _try(self, doing: str, act: Callable[[], Any]) -> Any:
        return _tried(self._name, doing, act)


class _UserCompressor(Compressor):
    def __init__(self, name: str, one: Compressor) -> None:
        super().__init__(one.settings)
        self._name, self._one = name, one

    def press(self, data: Bytes, item: int) -> Bytes | None:
        found = _tried(self._name, "press bytes", lambda: self._one.press(_read_only(data), item))
        return None if found is None else _bytes(self._name, "presses bytes to", found)

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        found = _tried(self._name, "undo what came", lambda: self._one.release(_read_only(data), item, most))
        return _bytes(self._name, "undoes what came as", found)


def _tried(name: str, doing: str, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except BaseException as error:
        if ends_us(error):
            raise
        why = str(error) if isinstance(error, FilterMisbehaved) else told(error)
        raise BadFilter(f"filter {name!r} failed to {doing}: {why}") from None


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _bytes(name: str, does: str, found: object) -> Bytes:
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype != np.uint8:
        raise BadFilter(f"filter {name!r} {does} {_seen(found)}: an array of uint8 is needed")
    return found


def _rows(name: str, does: str, found: object, shape: tuple[int, ...]) -> Values:
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != np.float32:
        raise BadFilter(f"filter {name!r} {does} {_seen(found)}: float32 of shape {shape} is needed")
    return found


def _seen(found: object) -> str:
    if isinstance(found, np.ndarray):
        return f"{found.dtype} of shape {found.shape}"
    return "nothing" if found is None else f"a {type(found).__name__}"
