"""What is said about keys. Part of the page that ``messages`` is."""

from __future__ import annotations

from shoal.wire.base import Message


class Allowed(Message, frozen=True):
    """Coordinator to whoever listens: "these keys may call you, and no others" (role, name and key of each)."""

    keys: list[tuple[str, str, str]]
