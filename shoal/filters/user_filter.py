"""Guards a user's filter: anything it raises or returns wrongly becomes a ``BadFilter``.

It gets read-only arrays, and its results are checked before use. shoal's own filters need none of
this. In a server (``run_apart``) it runs in another process (``filter_process``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import BadFilter, Invalid
from shoal.filters.base import Base, Bytes, Mask, Quantizer
from shoal.filters.filter_process import FilterMisbehaved, FilterProcess
from shoal.keys import Values
from shoal.user_code import ends_us, told
from shoal.wire.messages.base import Array

_apart = False


def run_apart() -> None:
    """Run users' filters in their own processes from now on; for servers."""
    global _apart
    _apart = True


def guarded(name: str, one: Base) -> Base:
    """The filter with guards; shoal's own are returned as they are."""
    return one if type(one).__module__.startswith("shoal.filters.") else UserFilter(name, one)


class UserFilter(Base):
    """A user's filter of any sort, with guards."""

    def __init__(self, name: str, one: Base) -> None:
        super().__init__(one.settings)
        vars(self).update(sort=one.sort, compiled=one.compiled)
        self._name = name
        self._call: Callable[..., Any] = (
            FilterProcess(name, one).call if _apart else lambda method, *given: getattr(one, method)(*given)
        )
        if isinstance(one, Quantizer):
            if not isinstance(one.item, int) or one.item < 1:
                raise Invalid(f"filter {name!r} has item = {one.item!r}: the bytes of a code are needed, 1 or more")
            self.sums, self.item = one.sums, one.item
            self.pushes, self.pulls = bool(one.pushes), bool(one.pulls)

    def choose(self, values: Values, seed: int) -> Mask:
        found = self._try("choose rows", "choose", _read_only(values), seed, read=np.asarray)
        if found.shape != (len(values),) or (found.dtype.kind not in "biu" and len(found)):
            raise BadFilter(
                f"filter {self._name!r} answers with shape {found.shape} of {found.dtype}: one truth value for each row is needed"
            )
        mask: Mask = found.astype(np.bool_)
        return mask

    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        found = self._try("shorten values", "shorten", _read_only(values), seed)
        if found is None:
            return None
        if not isinstance(found, tuple) or len(found) != 2:
            raise BadFilter(f"filter {self._name!r} shortens to {_seen(found)}: (codes, head) is needed, or None")
        codes, head = found
        if not isinstance(codes, np.ndarray) or not codes.ndim or len(codes) != len(values) or codes.dtype.hasobject:
            raise BadFilter(f"filter {self._name!r} shortens to {_seen(codes)}: one row of codes per row is needed")
        return codes, self._bytes("makes a head of", head)

    def pack(self, codes: Array) -> Bytes:
        return self._bytes("packs codes to", self._try("pack codes", "pack", codes))

    def size(self, rows: int, width: int) -> int:
        size: int = self._try("say a size", "size", rows, width, read=operator.index)
        if size < 0:
            raise BadFilter(f"filter {self._name!r} says that {rows} rows have {size} bytes: 0 or more is needed")
        return size

    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        return self._rows("restores", self._try("restore what came", "restore", packed, rows, width), (rows, width))

    def held(self, values: Values) -> Values:
        return self._rows("cuts values to", self._try("cut values", "held", _read_only(values)), values.shape)

    def press(self, data: Bytes, item: int) -> Bytes | None:
        found = self._try("press bytes", "press", _read_only(data), item)
        return None if found is None else self._bytes("presses bytes to", found)

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        found = self._try("undo what came", "release", _read_only(data), item, most)
        return self._bytes("undoes what came as", found)

    def _try(self, doing: str, method: str, *given: Any, read: Callable[[Any], Any] = lambda found: found) -> Any:
        try:
            return read(self._call(method, *given))
        except BaseException as error:
            if ends_us(error):
                raise
            why = str(error) if isinstance(error, FilterMisbehaved) else told(error)
            raise BadFilter(f"filter {self._name!r} failed to {doing}: {why}") from None

    def _bytes(self, does: str, found: object) -> Bytes:
        if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype != np.uint8:
            raise BadFilter(f"filter {self._name!r} {does} {_seen(found)}: an array of uint8 is needed")
        return found

    def _rows(self, does: str, found: object, shape: tuple[int, ...]) -> Values:
        if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != np.float32:
            raise BadFilter(f"filter {self._name!r} {does} {_seen(found)}: float32 of shape {shape} is needed")
        return found


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _seen(found: object) -> str:
    if isinstance(found, np.ndarray):
        return f"{found.dtype} of shape {found.shape}"
    return "nothing" if found is None else type(found).__name__
