"""Weights that a dense table starts with, from a file: every server reads its own segments of it.

The file is float32, little-endian, row after row, and nothing else; its length and its checksum are held against the
table's description before anything is believed. Optimizer state starts at 0, as it always does.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.errors import Invalid
from shoal.files import Disk
from shoal.keys import KeyRange, Values
from shoal.limits import MB
from shoal.store.image import SegmentImage
from shoal.store.table.update import rule_named
from shoal.tables import Given
from shoal.wire import messages as m


def images(disk: Disk, table: m.TablePlaces, segments: Sequence[int]) -> list[SegmentImage]:
    """These segments, as they are at the very beginning."""
    spec, initial = table.spec, table.spec.initial
    assert isinstance(initial, Given)
    weights = _read(disk, initial, spec.span * spec.width)
    ends = [*table.starts, spec.span]
    words = spec.width * (1 + rule_named(spec.update.name).state)
    found = []
    for segment in segments:
        keys = KeyRange(ends[segment], ends[segment + 1])
        rows: Values = np.zeros((len(keys), words), np.float32)
        rows[:, : spec.width] = weights[keys.start * spec.width : keys.stop * spec.width].reshape(-1, spec.width)
        found.append(SegmentImage(segment, keys, m.SegmentBooks(0), rows))
    return found


def _read(disk: Disk, initial: Given, count: int) -> Values:
    try:
        with disk.open(Path(initial.path)) as file:
            size = file.seek(0, 2)
            if size != 4 * count:
                raise Invalid(
                    f"{initial.path} has {size:,} bytes, the table's weights are {4 * count:,}: write it again"
                )
            file.seek(0)
            weights: Values = np.empty(count, "<f4")
            rest = weights.data.cast("B")
            while len(rest) and (some := file.readinto(rest[: 64 * MB])):  # type: ignore[attr-defined]
                rest = rest[some:]
    except OSError as error:
        raise Invalid(
            f"{initial.path} cannot be read ({error.strerror or error}): write the weights again; servers of other hosts need that "
            f"folder, too"
        ) from None
    if zlib.crc32(weights.data) != initial.crc32:
        raise Invalid(f"{initial.path} is not what the table was described with (another checksum): write it again")
    if not np.isfinite(weights).all():
        raise Invalid(f"{initial.path} has values that are no finite numbers: give weights that are")
    return weights
