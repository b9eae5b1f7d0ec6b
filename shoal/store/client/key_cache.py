"""Names key lists by a number once a server has them, so their keys need not travel again.

The first message with a ``KeyList`` carries its keys and a number that the client chose. Once that
is answered, later messages carry the number, the key count and a hash. Each server's share of a
list has a number of its own; tables that are placed alike share it.

A client names at most ``limits.HANDLE_KEYS`` keys per server, and fewer where a server drops lists:
a cache that is too small would always drop a list just before its use. Others are sent in full. A
list that is garbage collected frees its number.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from shoal import limits
from shoal.keys import KeyList, Keys
from shoal.store.client.split import ServerShare
from shoal.store.server.key_lists import crc_of
from shoal.wire import messages as m

Compress = Callable[[list[m.Array]], list[m.Array]]  # compresses keys, where a table has filters
_HandleKey = tuple[int, str, tuple[tuple[int, int], ...]]  # the list, server, slices


class KeyHandle(msgspec.Struct, eq=False):
    """The number of one server's share of one list."""

    which: _HandleKey
    number: int
    rows: int
    crc: int
    known: bool = False


NO_HANDLE = KeyHandle((0, "", ()), 0, 0, 0)


class _ServerHandles(msgspec.Struct):
    max_keys: int  # keys that may have handles there
    keys: int = 0
    last: int = 0  # number given
    free: list[int] = []


class KeyCache:
    """All lists that one incarnation of a client has named."""

    def __init__(self) -> None:
        self.max_keys = limits.HANDLE_KEYS
        self.counts: Counter[str] = Counter()
        self._servers: dict[str, _ServerHandles] = {}
        self._handles: dict[_HandleKey, KeyHandle] = {}
        self._lists: dict[int, tuple[weakref.ref[KeyList], list[_HandleKey]]] = {}
        self._collected: deque[int] = deque()  # collected lists, from any thread
        # By request: handles and keys.
        self._in_flight: dict[int, list[tuple[KeyHandle, ServerShare, Keys]]] = {}

    def handle_for(
        self, request: int, listed: KeyList | None, share: ServerShare, keys: Keys
    ) -> tuple[KeyHandle, list[m.Array]]:
        """The handle of a share of these keys, and the keys unless the server knows the handle."""
        handle = NO_HANDLE if listed is None or listed.keys is not keys else self._handle_of(listed, share)
        self._in_flight.setdefault(request, []).append((handle, share, keys))
        if handle.known:
            self.counts["hits"] += 1
            self.counts["bytes saved"] += 8 * share.rows
            return handle, []
        self.counts["misses"] += handle is not NO_HANDLE
        return handle, [share.take(keys)]

    def with_keys(
        self, message: m.Push | m.Pull, arrays: m.Arrays, compress: Compress = list
    ) -> tuple[m.Message, m.Arrays] | None:
        """The same message with all its keys, since a server forgot some; None if it had them."""
        if not message.known and not (isinstance(message, m.Push) and message.ahead_known):
            return None
        in_flight = self._in_flight.pop(message.request, [])
        for handle, share, _ in in_flight:
            if handle.known:
                self.counts["forgotten"] += 1
                self.counts["bytes saved"] -= 8 * share.rows
                self._give_up(handle)
        keys = compress([share.take(listed) for _, share, listed in in_flight])
        if isinstance(message, m.Push):
            whole: m.Message = msgspec.structs.replace(
                message, handle=0, known=False, crc=0, ahead_handle=0, ahead_known=False, ahead_crc=0
            )
            return whole, [*keys, arrays[-1]]
        return msgspec.structs.replace(message, handle=0, known=False, crc=0), keys

    def answered(self, request: int) -> None:
        """The request was answered: the server has what it was sent."""
        for handle, _, _ in self._in_flight.get(request, ()):
            handle.known = handle is not NO_HANDLE

    def closed(self, request: int) -> None:
        self._in_flight.pop(request, None)

    def clear(self) -> None:
        """Another incarnation, or segments moved: start again."""
        self._servers, self._handles, self._lists = {}, {}, {}

    def stats(self) -> dict[str, int]:
        """Lists sent by number, sent with keys, forgotten by a server; and bytes of keys saved."""
        return {what: self.counts[what] for what in ("hits", "misses", "forgotten", "bytes saved")}

    def _handle_of(self, listed: KeyList, share: ServerShare) -> KeyHandle:
        while self._collected:
            self._free_list(self._collected.popleft())
        which = (listed.which, share.server, tuple(share.slices))
        if (handle := self._handles.get(which)) is not None:
            return handle
        server = self._servers.setdefault(share.server, _ServerHandles(self.max_keys))
        if share.rows < limits.HANDLE_LEAST or server.keys + share.rows > min(server.max_keys, self.max_keys):
            return NO_HANDLE
        if server.free:
            number = server.free.pop()
        else:
            number = server.last = server.last + 1
        server.keys += share.rows
        handle = self._handles[which] = KeyHandle(which, number, share.rows, crc_of(share.take(listed.keys)))
        if listed.which not in self._lists:
            gone, number_of_list = self._collected, listed.which
            self._lists[listed.which] = weakref.ref(listed, lambda _: gone.append(number_of_list)), []
        self._lists[listed.which][1].append(which)
        return handle

    def _free_list(self, listed: int) -> None:
        for which in self._lists.pop(listed, (None, []))[1]:
            if (handle := self._handles.get(which)) is not None:
                self._free(handle)

    def _free(self, handle: KeyHandle) -> _ServerHandles:
        del self._handles[handle.which]
        server = self._servers[handle.which[1]]
        server.keys -= handle.rows
        server.free.append(handle.number)
        return server

    def _give_up(self, handle: KeyHandle) -> None:
        """A server dropped it for want of room: name fewer keys there."""
        if self._handles.get(handle.which) is handle:  # else given up before
            server = self._free(handle)
            server.max_keys = min(server.max_keys, server.keys)
