"""Types that more than one thread may decode: their fields are looked up when their module is imported, not when the first one comes.

msgspec looks them up at the first use, without a lock: two threads that do so at once, two runs that begin in one program, end the process by a
segmentation fault (0.22). Afterwards nothing is looked up any more, and any number of threads may decode.
"""

from __future__ import annotations

from typing import Any

import msgspec


def look_up(*kinds: Any) -> None:
    """To be said at the end of the module that has them, where every name in their fields is there."""
    for kind in kinds:
        msgspec.json.Decoder(kind)
