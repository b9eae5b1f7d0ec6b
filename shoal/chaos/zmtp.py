"""Just enough of ZeroMQ's wire protocol (ZMTP 3, no keys) to see whole messages go by on a connection.

A connection begins with a greeting of 64 bytes from each side, then each says READY, in which a caller gives its name. What
follows are frames: a byte of flags, one or eight bytes of length, the bytes. Commands (pings) stand between messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

GREETING = 64
MORE, LONG, COMMAND = 1, 2, 4
_READY, _IDENTITY = b"\x05READY", b"identity"

Frames = list[bytes]


class ZmtpStream:
    """One direction of a connection, cut into what can be passed on: bytes of the protocol's own, and whole messages."""

    def __init__(self) -> None:
        self.ready = False  # READY was said
        self.name = ""  # which was said with it
        self._left = bytearray()
        self._greeting = GREETING  # bytes of it that are still to come
        self._parts: Frames = []

    def feed(self, data: bytes) -> list[bytes | Frames]:
        """What is whole by now, in order: bytes to be passed on as they are, or the frames of a message."""
        out: list[bytes | Frames] = []
        if self._greeting:
            head, data = data[: self._greeting], data[self._greeting :]
            self._greeting -= len(head)
            out.append(head)
        self._left += data
        at = 0
        while (found := _frame(self._left, at)) is not None:
            flags, start, stop = found
            body = bytes(self._left[start:stop])
            if flags & COMMAND:
                if body.startswith(_READY):
                    self.ready, self.name = True, _name(body)
                out.append(bytes(self._left[at:stop]))
            else:
                self._parts.append(body)
                if not flags & MORE:
                    out.append(self._parts)
                    self._parts = []
            at = stop
        del self._left[:at]
        return out


def written(frames: Sequence[bytes]) -> bytes:
    """A message as it stands on the wire."""
    out = bytearray()
    for i, frame in enumerate(frames):
        out += head(len(frame), i + 1 < len(frames)) + frame
    return bytes(out)


def handshake(name: str) -> bytes:
    """What a caller of that name says first (a DEALER socket, without keys), if it does not wait for the other side."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0")
    properties = {b"Socket-Type": b"DEALER", b"Identity": name.encode()}
    body = _READY + b"".join(
        bytes((len(key),)) + key + struct.pack(">I", len(value)) + value for key, value in properties.items()
    )
    return greeting.ljust(GREETING, b"\0") + bytes((COMMAND, len(body))) + body


def head(size: int, more: bool) -> bytes:
    """What stands before a frame: its flags and its length."""
    if size < 256:
        return bytes((MORE * more, size))
    return bytes((MORE * more | LONG,)) + struct.pack(">Q", size)


def _frame(data: bytearray, at: int) -> tuple[int, int, int] | None:
    """Flags of the frame that starts there, and where its body is; None if it is not whole yet."""
    if len(data) < at + 2:
        return None
    flags = data[at]
    if flags & LONG:
        if len(data) < at + 9:
            return None
        start, size = at + 9, int.from_bytes(data[at + 1 : at + 9])
    else:
        start, size = at + 2, data[at + 1]
    return (flags, start, start + size) if len(data) >= start + size else None


def _name(ready: bytes) -> str:
    at = len(_READY)
    while at < len(ready):
        length = ready[at]
        key = ready[at + 1 : at + 1 + length]
        at += 1 + length
        size = int.from_bytes(ready[at : at + 4])
        value = ready[at + 4 : at + 4 + size]
        at += 4 + size
        if key.lower() == _IDENTITY:
            return value.partition(b"\0")[0].decode(
                errors="replace"
            )  # what follows says which process of that name it is
    return ""
