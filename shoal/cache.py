"""Where shoal keeps what it can make again: compiled kernels, packed data sets.

$SHOAL_CACHE, or $XDG_CACHE_HOME/shoal, or ~/.cache/shoal      private to the user, or else not used
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def cache_folder() -> Path | None:
    """The folder, or None: what others could write to is neither imported from nor believed."""
    try:
        if chosen := os.environ.get("SHOAL_CACHE"):
            folder = Path(chosen)
        else:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except (OSError, RuntimeError):
        return None
    private = facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder.absolute() if private and os.access(folder, os.W_OK | os.X_OK) else None
