"""Encodes messages to bytes and decodes them, checking everything that was received.

A header is a mark, the protocol version, a checksum of the rest, a checksum of the arrays behind it
(zero: none), and a msgpack struct of a closed union. The checksums matter: a flipped bit could name
another slot or worker, or change a weight. Nothing received is unpickled, imported or evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import Damaged, OtherVersion, WireError
from shoal.limits import FRAME_BYTES, FRAMES, HEADER_BYTES, PROTOCOL
from shoal.user_code import readable
from shoal.wire import messages as m
from shoal.wire.messages.base import tag_of

MARK = 0x53  # "S"
HEAD = 10  # bytes before the struct
_REST = 6  # bytes before what the header's own checksum is of
_PREFIX = bytes((MARK, PROTOCOL))

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(m.AnyMessage)
_dtypes: dict[str, np.dtype[Any]] = {"k": np.dtype("<u8"), "v": np.dtype("<f4")}
_dtypes |= {kind.upper(): dtype for kind, dtype in _dtypes.items()}
_byte = np.dtype("u1")
_short = np.dtype("<u2")  # a value in 16 bits, of whichever form


def encode(message: m.Message, arrays: Sequence[m.Array | memoryview | bytes] = ()) -> bytes:
    """The header of a message; with ``arrays`` it has their checksum."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:  # a text from outside, such as a file name
        body = _encoder.encode(_readable(msgspec.to_builtins(message, builtin_types=(bytes,))))
    return sealed(body, checksum(arrays) if arrays else 0)


def _readable(value: Any) -> Any:
    """The message with texts that are valid UTF-8."""
    match value:
        case str():
            return readable(value)
        case dict():
            return {_readable(name): _readable(one) for name, one in value.items()}
        case list() | tuple():
            return [_readable(one) for one in value]
    return value


def sealed(body: bytes, behind: int = 0) -> bytes:
    """A header around this struct; ``behind`` is the checksum of the arrays, if any."""
    rest = behind.to_bytes(4, "little") + body
    return b"".join((_PREFIX, crc32(rest).to_bytes(4, "little"), rest))


def decode(header: bytes | memoryview, frames: Sequence[memoryview | bytes] = ()) -> tuple[m.Message, m.Arrays]:
    """Decode and check a message and its arrays; raises WireError."""
    message = decode_header(header)
    if len(frames) > FRAMES:
        raise WireError(f"more than {FRAMES} arrays behind one header")
    kinds = type(message).frames
    needed = sum(kind.islower() for kind in kinds)
    if not needed <= len(frames) <= len(kinds):
        raise WireError(f"a {name_of(message)} comes with {needed} to {len(kinds)} arrays, this one has {len(frames)}")
    # Optional arrays come first, so a message with fewer arrays lacks the first ones.
    last = len(kinds) - len(frames)
    arrays = [_array(frame, _dtype(message, kinds[last + i])) for i, frame in enumerate(frames)]
    check_arrays(header, frames)
    return message, tuple(arrays)


def check_arrays(header: bytes | memoryview, frames: Sequence[memoryview | bytes]) -> None:
    """Raises Damaged if the arrays do not match the header's checksum."""
    if (behind := int.from_bytes(header[_REST:HEAD], "little")) and behind != checksum(frames):
        raise Damaged("arrays whose checksum is wrong: they were damaged on their way")


def _dtype(message: m.Message, kind: str) -> np.dtype[Any]:
    if isinstance(message, m.Push | m.Pull | m.Values) and message.filtered:
        return _byte  # the table's filters decode it
    short = kind == "V" and isinstance(message, m.Push | m.Values) and message.form != "float32"
    return _short if short else _dtypes[kind]


def decode_header(header: bytes | memoryview) -> m.Message:
    if len(header) < 3 or header[0] != MARK:
        raise WireError(f"{len(header)} bytes that do not start like a message of shoal")
    if header[1] != PROTOCOL:
        raise OtherVersion(int(header[1]), PROTOCOL)
    if len(header) > HEADER_BYTES:
        raise WireError(f"a header of {len(header):,} bytes, at most {HEADER_BYTES:,} are allowed")
    if len(header) < HEAD or crc32(header[_REST:]) != int.from_bytes(header[2:_REST], "little"):
        raise WireError("a header whose checksum is wrong: it was damaged on its way")
    try:
        message: m.Message = _decoder.decode(header[HEAD:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"a header that does not decode: {error}") from None
    return message


def too_large(header: bytes, arrays: m.Arrays) -> str:
    """Why the message is too large to send; else empty. libzmq would silently disconnect."""
    if len(header) > HEADER_BYTES:
        return f"a header of {len(header):,} bytes, at most {HEADER_BYTES:,} are allowed"
    if len(arrays) > FRAMES:
        return f"more than {FRAMES} arrays behind one header"
    return next((_long(array.nbytes) for array in arrays if array.nbytes > FRAME_BYTES), "")


def _long(size: int) -> str:
    return f"an array of {size:,} bytes, at most {FRAME_BYTES:,} are allowed"


def _array(frame: memoryview | bytes, dtype: np.dtype[Any]) -> m.Array:
    size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
    if size > FRAME_BYTES:
        raise WireError(_long(size))
    if size % dtype.itemsize:
        raise WireError(f"an array of {size:,} bytes, which is no whole number of {dtype.itemsize}-byte elements")
    array: m.Array = np.frombuffer(frame, dtype)
    return array if array.flags.aligned else array.copy()


def name_of(message: m.Message) -> str:
    return tag_of(type(message))


_ROW = 521  # words
_WORD = 8  # bytes
_LONG = 16_384  # bytes: from here on adding up is faster


def checksum(arrays: Sequence[npt.NDArray[Any] | memoryview | bytes]) -> int:
    """The checksum of the arrays and their lengths. Never zero, which stands for none.

    A short array has the CRC-32 of its bytes. A long one is cut into rows of 521 words (4 KB; a
    prime, so that swapped memory pages do not cancel out), and the sums of the columns have the
    CRC-32: about ten times as fast. Damage in two places more than 4 KB apart is missed if it
    cancels out bit by bit in the same column.
    """
    total = 0
    for array in arrays:
        size = array.nbytes if isinstance(array, np.ndarray | memoryview) else len(array)
        total = _add(array, size, crc32(size.to_bytes(8, "little"), total))
    return total or 1


def _add(array: Any, size: int, total: int) -> int:
    if size < _LONG:
        return crc32(array, total) if size else total
    octets: Any = np.frombuffer(array, np.uint8)
    whole = size - size % (_ROW * _WORD)
    sums = np.add.reduce(octets[:whole].view("<u8").reshape(-1, _ROW), axis=0)
    return crc32(octets[whole:], crc32(sums, total))
