"""Maps the packed set of a run in a process that starts while the run goes on.

A process that has mapped a set keeps it even if its files are deleted. A process that starts
later, such as a replacement worker, may find the cache empty: it packs the set again from its
source, to the same place. It refuses a source that has changed since the run began.
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
    """The training rows, from this folder or else from the source."""
    try:
        return open_rows(folder)
    except Invalid:
        if (folder / META).exists() or (folder / "meta.json").exists():
            raise  # damaged, not deleted: the error has the next move
    return _packed_again(folder.parent, source, seed).train


def whole_set(folder: Path, source: DataSource, seed: int) -> Dataset:
    """The training and test rows, from this folder or else from the source."""
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
    # remove what an interrupted rm left
    shutil.rmtree(folder, ignore_errors=True)
    return load(source, seed, folder.parent)
