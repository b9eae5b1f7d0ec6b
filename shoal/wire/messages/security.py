"""Messages about keys."""

from __future__ import annotations

from shoal.wire.messages.base import Count, Message

__all__ = ["Allowed"]


class Allowed(Message, frozen=True, tag="allowed"):
    """Coordinator to listening nodes: "only these keys may call you".

    For each its role, name, key, the group it is bound to (or none), and its expiry (0: never).
    """

    keys: list[tuple[str, str, str, str, Count]]


SecurityMessage = Allowed
