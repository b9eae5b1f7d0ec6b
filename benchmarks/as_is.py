"""A filter that changes nothing, so that runs without filters are counted alike."""

from __future__ import annotations

from shoal.filters import Bytes, Compressor, filter


@filter()
class as_is(Compressor):
    """What is pressed by it stays as it is, and gets the one byte that says so."""

    def press(self, data: Bytes, item: int) -> Bytes | None:
        return None

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        return data
