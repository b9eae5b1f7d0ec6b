"""The base class and field types of all messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Sequence[Array]
EVERYWHERE = 1 << 30  # above any segment number
NO_CLOCK = -1

# Numbers in headers are bounded when decoded, so that the sum of two fits in 64 bits.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
Signed = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]

# Vector clocks: for keys in [first, second), how often each node has pushed to them.
Events = list[tuple[int, int, dict[int, Count]]]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every message. Tags are explicit: renaming a class changes no byte."""

    frames: ClassVar[str] = ""  # arrays behind the header: k keys, v values; capital: optional


class Numbered(Message, frozen=True):
    """A request, or an answer, which has the number of its request."""

    request: int


def tag_of(kind: type[msgspec.Struct]) -> str:
    """The name of a message on the wire, in errors and in traces."""
    return str(kind.__struct_config__.tag)
