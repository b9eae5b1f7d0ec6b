"""Creates a sparse table from saved rows, by way of a temporary checkpoint.

The table is created with its rows, so no worker ever sees it without them. The update's state
begins at 0, and rows that were not saved begin with their initial value.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from shoal.client import KV
from shoal.cluster.placement import segments_of
from shoal.errors import BadKeys
from shoal.files import Disk
from shoal.keys import Keys, Values, as_keys, as_values, mixed
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint.segment_file import write_segment
from shoal.store.image import SegmentImage
from shoal.store.table.update import rule_named
from shoal.tables import Sparse, checked
from shoal.wire.messages.replication import SegmentBooks


def create_with(kv: KV, name: str, spec: Sparse, ids: Any, values: Any) -> None:
    """Create the table with these rows; returns when every server has read its own."""
    keys, rows = _sorted(name, spec, ids, values)
    state = np.zeros((len(rows), spec.width * rule_named(spec.update.name).state), np.float32)
    whole = np.hstack([rows, state])
    ranges = segments_of(spec, max(1, sum(member.startswith("server") for member in kv.members)))
    starts = [one.start for one in ranges]
    ends = np.searchsorted(keys, np.array([*starts[1:], spec.span], np.uint64))
    with tempfile.TemporaryDirectory(prefix="shoal-rows-") as place:
        disk, root, written, at = Disk(), Path(place), [], 0
        number = checkpoint.prepare(disk, root)
        folder = checkpoint.folder_of(root, number)
        for segment, (held, end) in enumerate(zip(ranges, ends.tolist(), strict=True)):
            image = SegmentImage(segment, held, SegmentBooks(0), whole[at:end], keys[at:end])
            written.append(write_segment(disk, folder, name, 0, image))
            at = end
        tables = [checkpoint.SavedTable(0, name, checked(spec), starts)]
        manifest = checkpoint.Manifest(number=number, generation=0, job="", steps=0, tables=tables, segments=written)
        checkpoint.finish(disk, folder, manifest)
        kv.create(name, spec, starts, str(folder))


def _sorted(name: str, spec: Sparse, ids: Any, values: Any) -> tuple[Keys, Values]:
    keys = as_keys(np.asarray(ids))
    rows = as_values(np.asarray(values), len(keys), spec.width)
    if len(keys) and int(keys.max()) >= spec.span:
        raise BadKeys(f"id {keys.max()} of {name!r}: its ids are 0 to {spec.span - 1}")
    keys = mixed(keys) if spec.hashed else keys
    order = np.argsort(keys)
    keys = keys[order]
    if (keys[1:] == keys[:-1]).any():
        raise BadKeys(f"ids of {name!r} are there twice: give each of them one row")
    return keys, rows[order]
