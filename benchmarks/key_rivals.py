"""Other ways to keep a number for each of many keys, in one process and without messages; ``keys`` races them.

    python dict      one Python object for each key and each value
    sorted arrays    numpy: searchsorted, and everything is merged when keys are new
    numba dict       a typed dictionary and a compiled loop over the keys of a push

None of them keeps optimizer state, checks anything or survives anything: they are what one would write on an afternoon.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from shoal.keys import KeyRange, Keys, Values
from shoal.limits import KEY_LIMIT
from shoal.store.table.table import ServerTable
from shoal.tables import Sparse


class Rival(Protocol):
    """Adds what is pushed to what it has; a key that it does not have reads as 0."""

    def push(self, keys: Keys, values: Values) -> None: ...

    def pull(self, keys: Keys) -> Values: ...


class Ours:
    """The rows of a table, without client, server or copies: what a server has at its heart."""

    def __init__(self) -> None:
        self._table = ServerTable(Sparse(keys=KEY_LIMIT), [KeyRange(0, KEY_LIMIT)])

    def push(self, keys: Keys, values: Values) -> None:
        self._table.push(keys, values)

    def pull(self, keys: Keys) -> Values:
        return self._table.pull(keys).reshape(-1)


class PythonDict:
    def __init__(self) -> None:
        self._found: dict[int, float] = {}

    def push(self, keys: Keys, values: Values) -> None:
        found = self._found
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            found[key] = found.get(key, 0.0) + value

    def pull(self, keys: Keys) -> Values:
        found = self._found
        return np.array([found.get(key, 0.0) for key in keys.tolist()], np.float32)


class SortedArrays:
    def __init__(self) -> None:
        self._keys: Keys = np.empty(0, np.uint64)
        self._values: Values = np.empty(0, np.float32)

    def push(self, keys: Keys, values: Values) -> None:
        places, known = self._find(keys)
        self._values[places[known]] += values[known]
        if known.all():
            return
        new = np.concatenate([self._keys, keys[~known]])
        order = np.argsort(new, kind="stable")
        self._keys, self._values = new[order], np.concatenate([self._values, values[~known]])[order]

    def pull(self, keys: Keys) -> Values:
        places, known = self._find(keys)
        out = np.zeros(len(keys), np.float32)
        out[known] = self._values[places[known]]
        return out

    def _find(self, keys: Keys) -> tuple[Any, Any]:
        places = np.searchsorted(self._keys, keys)
        inside = places < len(self._keys)
        known = inside.copy()
        known[inside] = self._keys[places[inside]] == keys[inside]
        return places, known


class NumbaDict:
    def __init__(self) -> None:
        from numba import njit, types
        from numba.typed import Dict

        self._found = Dict.empty(types.uint64, types.float32)

        @njit  # type: ignore[misc, unused-ignore]
        def push(found: Any, keys: Any, values: Any) -> None:
            for i in range(len(keys)):
                found[keys[i]] = found.get(keys[i], np.float32(0)) + values[i]

        @njit  # type: ignore[misc, unused-ignore]
        def pull(found: Any, keys: Any, out: Any) -> None:
            for i in range(len(keys)):
                out[i] = found.get(keys[i], np.float32(0))

        self._push, self._pull = push, pull
        nothing = np.empty(0, np.uint64), np.empty(0, np.float32)
        push(self._found, *nothing)  # compiled before the race
        pull(self._found, *nothing)

    def push(self, keys: Keys, values: Values) -> None:
        self._push(self._found, keys, values)

    def pull(self, keys: Keys) -> Values:
        out = np.empty(len(keys), np.float32)
        self._pull(self._found, keys, out)
        return out


RIVALS: dict[str, type[Rival]] = {
    "shoal's rows": Ours,
    "numba dict": NumbaDict,
    "sorted arrays": SortedArrays,
    "python dict": PythonDict,
}
