"""Combines the filters of a table: encodes the arrays of messages, and decodes them.

An encoded array is bytes, and the last byte says what was done, so that steps that did not pay are
left out:

    bit 7           values are in the codes of the table's quantizer; else in the header's type
    bits 0 to 6     compressed by the first, second, ... compressor

Compressed data is never longer than its input, so the rows that a header announces bound all sizes
while decoding. Received data is not trusted: anything that cannot be decoded is ``BadValues``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from shoal.errors import BadFilter, BadValues, Invalid
from shoal.filters import made
from shoal.filters.base import SORTS, Bytes, Compressor, Mask, Quantizer, Sparsifier, taken
from shoal.filters.user_filter import UserFilter, guarded
from shoal.keys import Values
from shoal.tables import Filter, Wire
from shoal.wire.messages.base import Array, Arrays

QUANTIZED = 0x80
_MOST_COMPRESSORS = 7
OUT, IN = 0, 2  # indices into a count: to servers, from servers; before, after


class Flow:
    """A client's bytes per filter: to servers (in, out), from servers (in, out).

    Under "all", the first counts 8-byte keys and 4-byte values, the second the bytes on the wire:
    their quotient is the saving.
    """

    def __init__(self) -> None:
        self.by: dict[str, list[int]] = {}

    def add(self, name: str, way: int, before: int, after: int) -> None:
        found = self.by.setdefault(name, [0, 0, 0, 0])
        found[way] += before
        found[way + 1] += after

    @staticmethod
    def summed(flows: Iterable[Flow]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for flow in flows:
            for name, counts in flow.by.items():
                found[name] = [a + b for a, b in zip(counts, found.get(name, [0, 0, 0, 0]), strict=True)]
        return found


class Chain:
    """The filters of a table."""

    def __init__(
        self, filters: Sequence[Filter], wire: Wire = "float32", flow: Flow | None = None, warm: bool = False
    ) -> None:
        found: list[tuple[str, Any]] = [(name, guarded(name, one)) for name, one in made(filters)]
        self.wire, self.flow = wire, flow
        self.failed = 0  # answers sent unfiltered, because a user's filter failed
        sorts = [[both for both in found if both[1].sort == sort] for sort in SORTS]
        self.sparsifiers: list[tuple[str, Sparsifier]] = sorts[0]
        self._compressors: list[tuple[str, Compressor]] = sorts[2]
        short: list[tuple[str, Quantizer]] = sorts[1]
        self.pushes = _only([one for one in short if one[1].pushes], "pushes")
        self.pulls = _only([one for one in short if one[1].pulls], "pulls")
        self.loses = bool(self.sparsifiers) or self.pushes is not None  # a push may lose something
        # The names of filters whose loss a later push must make up for.
        sums = [name for name, _ in self.sparsifiers] + (
            [self.pushes[0]] if self.pushes and self.pushes[1].sums else []
        )
        self.needs_sums = sums[0] if sums else ""
        if (lossy := [*self.sparsifiers, *short]) and wire != "float32":
            raise Invalid(
                f"wire={wire!r} and filter {lossy[0][0]!r}: values are quantized in one place only; leave wire out, and name "
                f"filter {wire!r} instead if you want it, too"
            )
        if len(self._compressors) > _MOST_COMPRESSORS:
            raise Invalid(f"{len(self._compressors)} filters compress bytes: at most {_MOST_COMPRESSORS} are possible")
        if any(one.compiled for _, one in found) and warm:
            # now, so that the first message does not wait for it
            importlib.import_module("shoal.filters.kernels")
        twice = [name for i, (name, _) in enumerate(found) if name in [one for one, _ in found[:i]]]
        if twice:
            raise Invalid(f"filter {twice[0]!r} is named twice: name it once")

    # ------------------------------------------------------------ a push, before it is split

    def chosen(self, values: Values, seed: int, listed: bool) -> Mask | None:
        """The rows to send now; None: all. ``listed``: their keys are sent with them."""
        mask: Mask | None = None
        row = (8 if listed else 0) + 4 * values.shape[1]
        for name, one in self.sparsifiers:
            left = values if mask is None else taken(values, mask)
            found, before = one.choose(left, seed), row
            if mask is None:
                mask = found
            else:
                mask[mask] = found
            if not found.all():
                row = 8 + 4 * values.shape[1]  # a subset of a range needs a key list
            self._note(name, OUT, len(left) * before, int(np.count_nonzero(found)) * row)
        return None if mask is None or mask.all() else mask

    def shortened(self, values: Values, seed: int) -> tuple[Array, Bytes | None]:
        """The encoded values of a push by row, and the data to send with each of its messages."""
        if self.pushes is None:
            return values, None
        name, by = self.pushes
        found = by.shorten(values, seed)
        if found is None:
            largest = values.flat[np.argmax(np.abs(values))]
            raise BadValues(
                f"value {largest:g} is more than filter {name!r} holds: nothing was sent; scale it down, or leave that filter out"
            )
        return found

    def arrives(self, codes: Array, head: Bytes | None, width: int) -> Values:
        """The values of a push after decoding."""
        if self.pushes is None or head is None:
            return cast(Values, codes)
        by = self.pushes[1]
        return by.restore(np.concatenate([by.pack(codes), head]), len(codes), width)

    # ------------------------------------------------------------ one message

    def pushed(self, arrays: Arrays, head: Bytes | None, width: int) -> list[Array]:
        """The arrays of a push: keys if any, then values, encoded if there is a head."""
        *keys, values = arrays
        out = [self._compressed(_bytes(one), 8, 0, OUT) for one in keys]
        if head is None or self.pushes is None:
            return [*out, self._compressed(_bytes(values), values.itemsize, 0, OUT)]
        name, by = self.pushes
        data = np.concatenate([by.pack(values), head])
        self._note(name, OUT, 4 * values.size, len(data))
        return [*out, self._compressed(data, by.item, QUANTIZED, OUT)]

    def asked(self, arrays: Arrays) -> list[Array]:
        """The arrays of a pull: keys, if it names any."""
        return [self._compressed(_bytes(one), 8, 0, OUT) for one in arrays]

    def answer(self, arrays: Arrays, width: int) -> list[Array]:
        """The arrays of an answer: keys if any, then values."""
        *keys, values = arrays
        out = [self._compressed(_bytes(one), 8, 0, IN) for one in keys]
        if self.pulls is not None and values.dtype == np.float32 and len(values):
            name, by = self.pulls
            data = self._answered(by, values.reshape(-1, width))
            # weights are never refused: if one does not fit, they are sent unencoded
            if data is not None:
                self._note(name, IN, values.nbytes, len(data))
                return [*out, self._compressed(data, by.item, QUANTIZED, IN)]
        return [*out, self._compressed(_bytes(values), values.itemsize, 0, IN)]

    def _answered(self, by: Quantizer, values: Values) -> Bytes | None:
        try:
            found = by.shorten(values, None)
            return None if found is None else np.concatenate([by.pack(found[0]), found[1]])
        except BadFilter:
            self.failed += 1
            return None

    def opened_push(self, arrays: Arrays, rows: int, ahead: int, width: int, form: Wire) -> list[Array]:
        """Decode a push; the ``rows`` and ``ahead`` of its header have been checked."""
        found = self.opened_pull(arrays[:-1], max(rows, ahead, 0))
        return [*found, *(self._values(one, rows, width, form, self.pushes, OUT) for one in arrays[-1:])]

    def opened_pull(self, arrays: Arrays, rows: int) -> list[Array]:
        return [self._released(one, 8, 8 * rows) for one in arrays]

    def opened_answer(self, arrays: Arrays, rows: int, width: int, form: Wire) -> list[Array]:
        found = self.opened_pull(arrays[:-1], rows)
        return [*found, *(self._values(one, rows, width, form, self.pulls, IN) for one in arrays[-1:])]

    # ------------------------------------------------------------ bytes

    def _compressed(self, data: Bytes, item: int, mark: int, way: int) -> Bytes:
        for i, (name, one) in enumerate(self._compressors):
            try:
                out = one.press(data, item) if len(data) else None
            except BadFilter:
                if way == OUT:
                    raise
                out, self.failed = None, self.failed + 1
            if out is None:
                continue
            shorter = len(out) < len(data)
            self._note(name, way, len(data), len(out) if shorter else len(data))
            if shorter:
                data, item, mark = out, 1, mark | 1 << i
        return np.append(data, np.uint8(mark))

    def _values(
        self, array: Array, rows: int, width: int, form: Wire, by: tuple[str, Quantizer] | None, way: int
    ) -> Array:
        mark = int(array[-1]) if len(array) and array.dtype == np.uint8 else 0
        if mark & QUANTIZED:
            if by is None:
                raise BadValues("values came quantized, and this table has no filter that does it")
            size, item = by[1].size(rows, width), by[1].item
        else:
            item = 4 if form == "float32" else 2
            size = item * rows * width
        data = self._decompressed(array, mark & ~QUANTIZED, item, size, way)
        if len(data) != size:
            raise self._wrong(mark)(f"values came in {len(data):,} bytes, {rows} rows of width {width} need {size:,}")
        if not mark & QUANTIZED:
            return data.view(np.float32 if item == 4 else np.uint16)
        assert by is not None
        self._note(by[0], way, 4 * rows * width, size) if way == IN else None
        try:
            values = by[1].restore(data, rows, width)
        except BadFilter:
            raise
        except Exception as error:
            raise BadValues(f"filter {by[0]!r} cannot restore what came: {error}") from None
        if values.shape != (rows, width) or values.dtype != np.float32:
            raise BadValues(f"filter {by[0]!r} restores {values.dtype} of shape {values.shape}: needs float32 rows")
        return np.ascontiguousarray(values).reshape(-1)

    def _released(self, array: Array, item: int, most: int) -> Array:
        mark = int(array[-1]) if len(array) and array.dtype == np.uint8 else 0
        data = self._decompressed(array, mark, item, most, IN)
        if len(data) % 8:
            raise self._wrong(mark)(f"keys came in {len(data):,} bytes, which is no whole number of keys")
        return data.view(np.uint64)

    def _decompressed(self, array: Array, mark: int, item: int, most: int, way: int) -> Bytes:
        if array.dtype != np.uint8 or not len(array):
            raise BadValues("an array that was to go through filters came without a word on how it did")
        data: Bytes = array[:-1]
        if mark >> len(self._compressors):
            raise BadValues(f"an array was compressed by filters that this table does not have ({mark:#x})")
        for i in reversed(range(len(self._compressors))):
            if not mark & 1 << i:
                continue
            name, one = self._compressors[i]
            before = 1 if mark & ((1 << i) - 1) else item
            size = len(data)
            try:
                data = one.release(data, before, most)
            except BadFilter:
                raise
            except Exception as error:
                raise BadValues(f"filter {name!r} cannot undo what came: {error}") from None
            if data.dtype != np.uint8 or data.ndim != 1 or len(data) > most:
                raise (BadFilter if isinstance(one, UserFilter) else BadValues)(
                    f"filter {name!r} made {len(data):,} bytes of what came, at most {most:,} were announced"
                )
            if way == IN and self.flow is not None:
                self._note(name, way, len(data), size)
        if len(data) > most:
            raise BadValues(f"an array of {len(data):,} bytes, at most {most:,} were announced")
        return data if data.flags.aligned and data.flags.c_contiguous and not data.ctypes.data % 8 else data.copy()

    def _wrong(self, mark: int) -> type[BadValues]:
        """The error to raise: a user's filter would fail again, damaged data can be re-sent."""
        short = [self.pushes, self.pulls] if mark & QUANTIZED else []
        by = [*(one for i, one in enumerate(self._compressors) if mark & 1 << i), *filter(None, short)]
        return BadFilter if any(isinstance(one, UserFilter) for _, one in by) else BadValues

    def _note(self, name: str, way: int, before: int, after: int) -> None:
        if self.flow is not None:
            self.flow.add(name, way, before, after)


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _only(found: list[tuple[str, Quantizer]], what: str) -> tuple[str, Quantizer] | None:
    if len(found) > 1:
        raise Invalid(
            f"filters {found[0][0]!r} and {found[1][0]!r} both shorten {what}: leave one of them out, or let it "
            f"be for one way only ({found[0][0]}: pushes=0 or pulls=0)"
        )
    return found[0] if found else None
