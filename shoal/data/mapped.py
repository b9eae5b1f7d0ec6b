"""The packed set of a run, for a process that starts while the run goes on.

Whoever has mapped a set keeps it, also when its files are deleted. A process that starts later,
such as a worker in the place of one that was killed, may find the cache emptied: it packs the set
again from its source, to the same place. If the source is no longer what it was when the run
began, that is refused: the rows would be others.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.data.csr_file import CsrFile
from shoal.data.dense_file import META, DenseFile, open_rows
from shoal.errors import Invalid

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset, DataSource


def train_rows(folder: Path, source: DataSource, seed: int) -> CsrFile | DenseFile:
    """The rows to train on, which lie in this folder or come from that source."""
    try:
        return open_rows(folder)
    except Invalid:
        if (folder / META).exists() or (folder / "meta.json").exists():
            raise  # damaged, not deleted: it says what to do
    return _packed_again(folder.parent, source, seed).train


def whole_set(folder: Path, source: DataSource, seed: int) -> Dataset:
    """The same, with the rows to test on."""
    from shoal.data.datasets import Dataset

    try:
        return Dataset.open(folder)
    except Invalid:
        if (folder / "facts.json").exists():
            raise
    return _packed_again(folder, source, seed)


def _packed_again(folder: Path, source: DataSource, seed: int) -> Dataset:
    from shoal.data.datasets import entry_of, load

    if entry_of(source, seed) != folder.name:
        raise Invalid(
            f"no packed set in {folder}, and {source.source} is not what it was when the run began: end the run, and start it again"
        )
    print(f"shoal: packing {source.source} again: {folder} is not there any more", file=sys.stderr)
    # what an interrupted rm left of it is no use to anybody
    shutil.rmtree(folder, ignore_errors=True)
    return load(source, seed, folder.parent)
