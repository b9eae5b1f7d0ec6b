"""What every message is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy.typing as npt

__all__ = [
    "EVERYWHERE",
    "NO_CLOCK",
    "Array",
    "Arrays",
    "Count",
    "Message",
    "Signed",
]

Array = npt.NDArray[Any]
Arrays = Sequence[Array]
EVERYWHERE = 1 << 30  # above any segment number
NO_CLOCK = -1

# Numbers in headers are bounded where they are decoded, so that no sum of two of them leaves 64 bits.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
Signed = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]

# Vector clocks: keys from the first up to, not including, the second, and how often each node has pushed to them.
Events = list[tuple[int, int, dict[int, Count]]]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every message. Each has a tag of its own on the wire, so renaming a class changes no byte."""

    frames: ClassVar[str] = ""  # the arrays behind the header: k for keys, v for values, capital if it may be missing


def tag_of(kind: type[msgspec.Struct]) -> str:
    """The name of a message on the wire, which is also what people read in errors and traces."""
    return str(kind.__struct_config__.tag)
