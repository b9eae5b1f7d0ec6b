"""A filter that changes nothing, so that the bytes of a run without filters are counted as those of all others are."""

from __future__ import annotations

from shoal.filters import Bytes, Compressor, filter


@filter()
class as_is(Compressor):
    """What is pressed by it stays as it is, and gets the one byte that says so."""

    def press(self, data: Bytes, item: int) -> Bytes | None:
        return None

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        return data
