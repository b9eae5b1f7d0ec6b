"""Lossless compressors for the arrays of messages. Sizes are bounded before allocation.

LZ4 and Zstandard get all first bytes, then all second bytes, and so on: the first bytes of
neighbouring numbers are similar, the last are not.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from shoal.errors import Invalid
from shoal.filters.base import Bytes, Compressor, RegisteredFilter


class Delta(Compressor):
    """Encodes sorted keys as differences."""

    compiled = True

    def press(self, data: Bytes, item: int) -> Bytes | None:
        if item != 8:
            return None
        from shoal.filters import kernels

        keys = data.view(np.uint64)
        out = np.empty(10 * len(keys), np.uint8)
        size = kernels.encode_deltas(keys, out)
        return None if size < 0 else out[:size]

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        from shoal.filters import kernels

        if item != 8:
            raise ValueError("only keys have differences")
        keys = np.empty(min(most // 8, len(data)), np.uint64)
        found = kernels.decode_deltas(np.ascontiguousarray(data), keys)
        if found < 0:
            raise ValueError("differences that make no sorted keys, or too many of them")
        return keys[:found].view(np.uint8)


class _Codec(Compressor):
    module = ""

    def check(self) -> None:
        _imported(self.module)


class LZ4(_Codec):
    """LZ4: fast."""

    module = "lz4.block"

    def press(self, data: Bytes, item: int) -> Bytes | None:
        return _array(_imported(self.module).compress(planes(data, item), store_size=False))

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        lz4 = _imported(self.module)
        try:
            found = lz4.decompress(data, uncompressed_size=most)
        except lz4.LZ4BlockError:
            raise ValueError("bytes that LZ4 did not make, or too many of them") from None
        return merged(_array(found), item)


class Zstd(_Codec):
    """Zstandard: small."""

    module = "zstandard"
    bounds = {"level": (1, 19)}
    whole = ("level",)

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._compress: Any = None

    def press(self, data: Bytes, item: int) -> Bytes | None:
        if self._compress is None:
            self._compress = _imported(self.module).ZstdCompressor(level=int(self.settings.level)).compress
        return _array(self._compress(planes(data, item)))

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        zstd = _imported(self.module)
        data = np.ascontiguousarray(data)
        try:
            # the header says how much memory it needs
            size = zstd.get_frame_parameters(data).content_size
            if size > most:
                raise ValueError(f"{size:,} bytes are announced, at most {most:,} can be")
            return merged(_array(zstd.ZstdDecompressor().decompress(data)), item)
        except zstd.ZstdError:
            raise ValueError("bytes that Zstandard did not make") from None


def planes(data: Bytes, item: int) -> Bytes:
    """All first bytes of elements, then all second ones, ...; an incomplete element stays last."""
    if item == 1:
        return np.ascontiguousarray(data)
    whole = len(data) - len(data) % item
    return np.concatenate([data[:whole].reshape(-1, item).T.reshape(-1), data[whole:]])


def merged(data: Bytes, item: int) -> Bytes:
    """Undo ``planes``."""
    if item == 1:
        return data
    whole = len(data) - len(data) % item
    return np.concatenate([data[:whole].reshape(item, -1).T.reshape(-1), data[whole:]])


def _array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        name = "lz4" if module.startswith("lz4") else "zstd"
        raise Invalid(f"filter {name!r} needs a package that is not here: pip install 'shoal[compress]'") from None


KNOWN = {
    "delta": RegisteredFilter("delta", Delta, {}),
    "lz4": RegisteredFilter("lz4", LZ4, {}),
    "zstd": RegisteredFilter("zstd", Zstd, {"level": 1.0}),
}
