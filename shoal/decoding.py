"""Makes message types safe to decode in several threads.

msgspec (0.22) resolves the fields of a type at its first use, without a lock: two threads that do
so at once (two runs that start in one program) crash the process. So modules resolve their types
when they are imported; after that any number of threads may decode.
"""

from __future__ import annotations

from typing import Any

import msgspec


def resolve_types(*kinds: Any) -> None:
    """Resolve the fields of these types; call it at the end of their module."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
