"""A short text that tells whether two hosts have the same packed rows.

The same rows read with the same settings make the same packed files. Of large files only samples
and the length are read. So it detects another set, version or seed, but not a single byte changed
on purpose.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PIECES = 64
PIECE = 1 << 16  # bytes


def fingerprint(folder: Path) -> str:
    """The fingerprint of the arrays of a packed set; its description has paths and is left out."""
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            continue
        size = path.stat().st_size
        found.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            for at in _places(size):
                file.seek(at, os.SEEK_SET)
                found.update(file.read(PIECE))
    return found.hexdigest()


def _places(size: int) -> list[int]:
    """Where the samples begin: everywhere, or spread from the first byte to the last."""
    if size <= PIECES * PIECE:
        return list(range(0, size, PIECE))
    return [(size - PIECE) * i // (PIECES - 1) for i in range(PIECES)]
