"""What is said about keys. Part of the page that ``messages`` is."""

from __future__ import annotations

from shoal.wire.messages.base import Count, Message

__all__ = [
    "Allowed",
]


class Allowed(Message, frozen=True, tag="allowed"):
    """Coordinator to whoever listens: "these keys may call you, and no others".

    Of each its role, its name, the key, the group that it is confined to (or none), and until when it is good (0: for ever).
    """

    keys: list[tuple[str, str, str, str, Count]]


SecurityMessage = Allowed
