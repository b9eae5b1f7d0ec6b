"""The rows of a worker's slots, prepared ahead and cached for the next epoch.

Every worker can read all rows, and holds those of the slots it computed, up to a bound (S4-12).
Rows that do not fit are read again in every pass. The next few slots are made ready on the compute
thread while the loop's own thread computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from shoal import limits
from shoal.data.batch import Local, Localiser
from shoal.data.csr_file import CsrFile
from shoal.data.slots import Slots
from shoal.keys import KeyRange
from shoal.models.inputs import ModelInputs, RowsPiece
from shoal.nodes.worker import Worker
from shoal.store.client.task import Task

_AHEAD = 24  # slots of the queue that are looked at
_AT_ONCE = 200_000  # nonzeros that are made ready in one go
_LARGE = 100_000  # nonzeros of a slot from which a second thread pays
_ORDERS = 3  # passes whose order is remembered


class BatchCache:
    def __init__(self, worker: Worker, data: CsrFile, slots: Slots, bias: bool, room: int) -> None:
        self._worker, self._data, self._slots, self._bias, self._bytes_left = worker, data, slots, bias, room
        self._loop_localiser = Localiser(data.features)  # for the loop
        self._thread_localiser = Localiser(data.features)  # for the compute thread
        self._cached: dict[int, Local] = {}  # by content
        self._ready: dict[int, Local] = {}  # no room to cache these: for one use
        self._order = lru_cache(maxsize=_ORDERS)(slots.contents)  # by epoch
        self._task: Task | None = None
        self._per_slot = max(1, data.nonzeros * slots.batch // max(1, data.rows))  # mean nonzeros

    def local(self, slot: tuple[int, int]) -> Local:
        content = self._content(*slot)
        local = self._cached.get(content) or self._ready.pop(content, None)
        if local is None:
            local = self._read(self._loop_localiser, content)
            self._cache(content, local)
        return local

    def make_ready(self, queue: Iterable[int]) -> None:
        """Start to read the first few of these that are not cached."""
        if self._task is not None or self._per_slot < _LARGE or len(self._cached) == self._slots.per_pass:
            return
        numbers = islice(queue, 1, _AHEAD)  # the very next one is asked for before we could be done
        contents = [self._content(*divmod(number, self._slots.per_pass)) for number in numbers]
        missing = [one for one in contents if one not in self._cached and one not in self._ready]
        if missing:
            some = missing[: max(1, _AT_ONCE // self._per_slot)]
            self._task = self._worker.compute(
                lambda: [self._read(self._thread_localiser, content) for content in some], limits.INLINE_ELEMENTS + 1
            )
            self._task.then(partial(self._are_ready, some))

    def _are_ready(self, contents: list[int], task: Task) -> None:
        self._task = None
        if task.error is None:  # an error comes again where the slot is needed
            for content, local in zip(contents, task.value, strict=True):
                if content not in self._cached and not self._cache(content, local):
                    self._ready[content] = local
                    if len(self._ready) > _AHEAD:  # not used: dealt to another worker
                        del self._ready[next(iter(self._ready))]

    def _read(self, localiser: Localiser, content: int) -> Local:
        return localiser.local(self._data.slice(*self._slots.span(content)), self._bias)

    def _cache(self, content: int, local: Local) -> bool:
        if local.nbytes > self._bytes_left:
            return False
        self._bytes_left -= local.nbytes
        self._cached[content] = local
        return True

    def _content(self, of_pass: int, number: int) -> int:
        return int(self._order(of_pass)[number])


class DenseBatches:
    """Rows for a module: slices of the mapped file, and all weights.

    The seed of a slot follows from the run's seed, its epoch and number: what a module draws
    (dropout) is the same on any worker.
    """

    def __init__(self, data: Any, slots: Slots, keys: int) -> None:
        self._data, self._slots, self._whole = data, slots, KeyRange(0, keys)
        self._inputs = ModelInputs.of(data)

    def local(self, slot: tuple[int, int]) -> RowsPiece:
        start, stop = self._slots.span(self._slots.content(*slot))
        return RowsPiece(self._data, self._inputs, start, stop, seed_of(self._slots.seed, slot), self._whole)

    def make_ready(self, queue: Iterable[int]) -> None:
        """The map is ready as it is."""


def seed_of(seed: int, slot: tuple[int, int]) -> int:
    """Below 2^63, as PyTorch wants it."""
    from shoal.jit import mix

    found = np.uint64(seed)
    for part in slot:
        found = mix(np.uint64(int(found) ^ part))
    return int(found) >> 1
