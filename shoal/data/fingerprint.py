"""Whether two hosts have the same rows: a short text that differs if the packed sets do.

Packed files are the same wherever the same rows were read by the same settings. Large ones are not
read whole: pieces from all over each are, and its length counts. So it finds another set, another
version or another seed, not one byte that was changed on purpose.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PIECES = 64
PIECE = 1 << 16  # bytes


def fingerprint(folder: Path) -> str:
    """Of a packed set of rows: all its arrays, and not what it says of itself, which has paths in it."""
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
    """Where the pieces begin: everywhere, or spread from the first byte to the last."""
    if size <= PIECES * PIECE:
        return list(range(0, size, PIECE))
    return [(size - PIECE) * i // (PIECES - 1) for i in range(PIECES)]
