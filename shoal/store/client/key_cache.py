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
_Which = tuple[int, str, tuple[tuple[int, int], ...]]  # the list, server, slices


class KeyHandle(msgspec.Struct, eq=False):
    """The number of one server's share of one list."""

    which: _Which
    number: int
    rows: int
    crc: int
    known: bool = False


NOTHING = KeyHandle((0, "", ()), 0, 0, 0)


class _ServerHandles(msgspec.Struct):
    most: int  # keys that may have handles there
    kept: int = 0
    last: int = 0  # number given
    free: list[int] = []


class KeyCache:
    """All lists that one incarnation of a client has named."""

    def __init__(self) -> None:
        self.most = limits.HANDLE_KEYS
        self.counts: Counter[str] = Counter()
        self._servers: dict[str, _ServerHandles] = {}
        self._names: dict[_Which, KeyHandle] = {}
        self._lists: dict[int, tuple[weakref.ref[KeyList], list[_Which]]] = {}
        self._gone: deque[int] = deque()  # collected lists, from any thread
        # By request: handles and keys.
        self._flying: dict[int, list[tuple[KeyHandle, ServerShare, Keys]]] = {}

    def handle_for(
        self, request: int, listed: KeyList | None, share: ServerShare, keys: Keys
    ) -> tuple[KeyHandle, list[m.Array]]:
        """The handle of a share of these keys, and the keys unless the server knows the handle."""
        name = NOTHING if listed is None or listed.keys is not keys else self._name(listed, share)
        self._flying.setdefault(request, []).append((name, share, keys))
        if name.known:
            self.counts["hits"] += 1
            self.counts["bytes saved"] += 8 * share.rows
            return name, []
        self.counts["misses"] += name is not NOTHING
        return name, [share.take(keys)]

    def with_keys(
        self, message: m.Push | m.Pull, arrays: m.Arrays, compress: Compress = list
    ) -> tuple[m.Message, m.Arrays] | None:
        """The same message with all its keys, since a server forgot some; None if it had them."""
        if not message.known and not (isinstance(message, m.Push) and message.ahead_known):
            return None
        flying = self._flying.pop(message.request, [])
        for name, share, _ in flying:
            if name.known:
                self.counts["forgotten"] += 1
                self.counts["bytes saved"] -= 8 * share.rows
                self._give_up(name)
        keys = compress([share.take(listed) for _, share, listed in flying])
        if isinstance(message, m.Push):
            whole: m.Message = msgspec.structs.replace(
                message, handle=0, known=False, crc=0, ahead_handle=0, ahead_known=False, ahead_crc=0
            )
            return whole, [*keys, arrays[-1]]
        return msgspec.structs.replace(message, handle=0, known=False, crc=0), keys

    def answered(self, request: int) -> None:
        """The request was answered: the server has what it was sent."""
        for name, _, _ in self._flying.get(request, ()):
            name.known = name is not NOTHING

    def closed(self, request: int) -> None:
        self._flying.pop(request, None)

    def clear(self) -> None:
        """Another incarnation, or segments moved: start again."""
        self._servers, self._names, self._lists = {}, {}, {}

    def figures(self) -> dict[str, int]:
        """Lists sent by number, sent with keys, forgotten by a server; and bytes of keys saved."""
        return {what: self.counts[what] for what in ("hits", "misses", "forgotten", "bytes saved")}

    def _name(self, listed: KeyList, share: ServerShare) -> KeyHandle:
        while self._gone:
            self._let_go(self._gone.popleft())
        which = (listed.which, share.server, tuple(share.slices))
        if (name := self._names.get(which)) is not None:
            return name
        server = self._servers.setdefault(share.server, _ServerHandles(self.most))
        if share.rows < limits.HANDLE_LEAST or server.kept + share.rows > min(server.most, self.most):
            return NOTHING
        if server.free:
            number = server.free.pop()
        else:
            number = server.last = server.last + 1
        server.kept += share.rows
        name = self._names[which] = KeyHandle(which, number, share.rows, crc_of(share.take(listed.keys)))
        if listed.which not in self._lists:
            gone, number_of_list = self._gone, listed.which
            self._lists[listed.which] = weakref.ref(listed, lambda _: gone.append(number_of_list)), []
        self._lists[listed.which][1].append(which)
        return name

    def _let_go(self, listed: int) -> None:
        for which in self._lists.pop(listed, (None, []))[1]:
            if (name := self._names.get(which)) is not None:
                self._free(name)

    def _free(self, name: KeyHandle) -> _ServerHandles:
        del self._names[name.which]
        server = self._servers[name.which[1]]
        server.kept -= name.rows
        server.free.append(name.number)
        return server

    def _give_up(self, name: KeyHandle) -> None:
        """A server dropped it for want of room: name fewer keys there."""
        if self._names.get(name.which) is name:  # else of a former placement, or given up already
            server = self._free(name)
            server.most = min(server.most, server.kept)
