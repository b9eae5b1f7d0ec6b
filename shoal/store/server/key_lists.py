"""Key lists that clients have sent before and now name by a number.

This is key caching (Li et al., OSDI 2014, section 4). A list belongs to one incarnation of a
client. It is found by (incarnation, number), and only if its length and hash match the request;
otherwise the server answers ``Forgot`` and the client sends the keys. A list is stored once,
however many tables use it. When they take too many bytes the least recently used go, and all of a
client that has left. A named list is checked against a table like one that was sent, the first
time.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np

from shoal import limits
from shoal.errors import BadKeys
from shoal.keys import Keys
from shoal.store.table.table import ServerTable
from shoal.wire import messages as m

_ENTRY = 512  # bytes per list, beside its keys


def crc_of(keys: Keys) -> int:
    """A 61-bit hash of a list, its order included."""
    from shoal.store.table import kernels

    return int(kernels.hash_keys(np.ascontiguousarray(keys))) >> 3


@dataclass(slots=True, eq=False)
class StoredKeyList:
    keys: Keys
    crc: int
    tables: list[weakref.ref[ServerTable]] = field(default_factory=list)

    @property
    def size(self) -> int:
        # Its keys, and their rows in each table.
        return _ENTRY + self.keys.nbytes * (1 + len(self.tables))


class KeyLists:
    """All lists that one server knows."""

    def __init__(self, most: int | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        self._max_bytes = limits.HANDLE_BYTES if most is None else most
        # By incarnation and number, the least recently used first.
        self._lists: dict[tuple[int, int], StoredKeyList] = {}

    def __len__(self) -> int:
        return len(self._lists)

    def resolve(self, message: m.Push | m.Pull, arrays: m.Arrays, table: ServerTable) -> m.Arrays | None:
        """The arrays of a message with all its keys; None if it names an unknown list."""
        ahead = isinstance(message, m.Push) and message.ahead > 0
        if not message.handle and not (ahead and message.ahead_handle):  # type: ignore[union-attr]
            return arrays
        who, values = message.incarnation, 1 if isinstance(message, m.Push) else 0
        sent, keys = list(arrays[: len(arrays) - values]), list[m.Array]()
        if ahead:
            assert isinstance(message, m.Push)
            named = message.ahead_handle, message.ahead_known, message.ahead, message.ahead_crc
            found = self._find_or_store(who, *named, sent)
            if found is None:
                return None
            keys += self._keys_for(table, found)
        if message.start < 0:
            found = self._find_or_store(who, message.handle, message.known, message.count, message.crc, sent)
            if found is None:
                return None
            keys += self._keys_for(table, found)
        if sent and not values:
            raise BadKeys("a pull names a list that is known here, and brings keys as well: one of the two is needed")
        # The caller checks the number of arrays.
        return [*keys, *sent, *arrays[len(arrays) - values :]]

    def drop_departed(self, incarnations: Container[int]) -> None:
        for key in [key for key in self._lists if key[0] not in incarnations]:
            self._drop(key)

    def facts(self, what: str = "handles") -> dict[str, int]:
        return {f"{what} {fact}": count for fact, count in [("kept", len(self)), *sorted(self.counts.items())]}

    def _find_or_store(
        self, who: int, number: int, known: bool, count: int, crc: int, sent: list[m.Array]
    ) -> StoredKeyList | list[m.Array] | None:
        """The list that a request names, or the one it brings, taken out of ``sent``."""
        if known:
            listed = self._lists.pop((who, number), None)
            if listed is not None:
                self._lists[who, number] = listed  # used just now
            if listed is None or listed.crc != crc or len(listed.keys) != count:
                self.counts["forgotten"] += 1
                return None
            self.counts["used"] += 1
            return listed
        if not sent:
            return []
        keys = sent.pop(0)
        if not number or keys.dtype != np.uint64 or keys.nbytes + _ENTRY > self._max_bytes // 2:
            return [keys]
        return self._store((who, number), keys)

    def _store(self, key: tuple[int, int], keys: Keys) -> StoredKeyList:
        crc, before = crc_of(keys), self._lists.get(key)
        if before is not None and before.crc == crc and len(before.keys) == len(keys):
            self._lists[key] = self._lists.pop(key)
            return before  # resent
        self._drop(key)
        # A copy: what came may be part of a larger message buffer.
        listed = self._lists[key] = StoredKeyList(keys.copy(), crc)
        self.bytes += listed.size
        self.counts["taken"] += 1
        self._make_room()
        return listed

    def _keys_for(self, table: ServerTable, found: StoredKeyList | list[m.Array]) -> list[m.Array]:
        if not isinstance(found, StoredKeyList):
            return found
        if table.row_cache.register(found.keys):
            before = found.size
            found.tables = [one for one in found.tables if one() is not None]
            found.tables.append(weakref.ref(table))
            self.bytes += found.size - before
            self._make_room()
        return [found.keys]

    def _make_room(self) -> None:
        while self.bytes > self._max_bytes and len(self._lists) > 1:
            self.counts["let go"] += 1
            self._drop(next(iter(self._lists)))

    def _drop(self, key: tuple[int, int]) -> None:
        listed = self._lists.pop(key, None)
        if listed is None:
            return
        self.bytes -= listed.size
        for reference in listed.tables:
            if (table := reference()) is not None:
                table.row_cache.forget(listed.keys)
