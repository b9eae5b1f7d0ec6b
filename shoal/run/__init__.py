"""A run from its start to its end: its folder, how it is resumed, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.run.finished import Run as Run
    from shoal.run.run import execute as execute
    from shoal.run.run import train as train

PUBLIC = ("finished", "folder", "resume", "run")


def __getattr__(name: str) -> Any:
    """Import ``Run``, ``execute`` and ``train`` on first use."""
    if name not in ("Run", "execute", "train"):
        raise AttributeError(f"module 'shoal.run' has no attribute {name!r}")
    from shoal.run import run

    return getattr(run, name)
