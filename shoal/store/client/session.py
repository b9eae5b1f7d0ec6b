"""What one client knows: its identity, the newest view, its clock, and the numbers it gives.

Operations read it to write their requests, the dispatcher to know where to send them. Nothing here
sends.
"""

from __future__ import annotations

import math
from collections import Counter

from shoal.errors import UnknownTable
from shoal.filters.chain import Flow
from shoal.store.client.filtering import ClientFilters
from shoal.store.client.key_cache import KeyCache
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.wire import messages as m
from shoal.wire.messages.groups import seen


class Session:
    """The state of one client. ``reset`` begins another incarnation of it."""

    def __init__(self, name: str, role: str = "client", coordinator: str = "coordinator") -> None:
        self.name, self.role, self.coordinator = name, role, coordinator
        self.group = ""  # of workers: table names are relative to its namespace
        self.view = m.View(0, 0, 0, [], [])
        self.layouts: dict[str, Layout] = {}
        self.counts: Counter[str] = Counter()
        self.key_cache = KeyCache()
        self.filters: dict[int, ClientFilters] = {}  # by table
        self._by_number: dict[int, Layout] = {}
        self._names: dict[int, str] = {}  # of all tables there ever were, for errors
        self.reset()

    def reset(self) -> None:
        """This incarnation is over; the next one starts from nothing."""
        self.incarnation = 0
        self.clock = 0  # steps pushed
        self.floor = 0  # the clock at which this spell began: this worker has no steps up to it
        self.spell = 0  # how often this worker has parked
        self.working = False  # has entered some table in this spell
        self.entered: dict[int, Task] = {}  # tables entered in this spell, and the pull that did it
        self.parking: list[Task] = []  # the last park: an entering pull follows it
        self.reads: dict[int, dict[str, list[int]]] = {}  # table -> server -> pulled versions
        self.requests = 0  # numbers given in this incarnation
        self._numbers = 0  # given in this client's own stream
        self._open: dict[int, None] = {}  # numbers that may still be sent, in order
        self.key_cache.clear()
        self.key_cache.counts.clear()
        for filters in self.filters.values():
            filters.flow.by.clear()
            if filters.feedback is not None:
                filters.feedback.forget()

    def next_request(self) -> int:
        """A number that no other request of any incarnation of this client has."""
        self.requests += 1
        return self.incarnation << 32 | self.requests

    def next_number(self) -> int:
        """The next number of this client's own stream of pushes."""
        self._numbers += 1
        self._open[self._numbers - 1] = None
        return self._numbers - 1

    def close_number(self, number: int) -> None:
        self._open.pop(number, None)

    @property
    def lowest_open(self) -> int:
        """All numbers of the own stream below this one are closed."""
        return next(iter(self._open), self._numbers)

    def take_view(self, view: m.View, incarnation: int) -> None:
        self.view, self.incarnation = view, incarnation
        tables = {placed.number: placed for placed in view.tables}
        known = {}
        for number, placed in tables.items():
            old = self._by_number.get(number)
            known[number] = old if old is not None and old.placed == placed else Layout(placed)
        if any(number in known and known[number].since != old.since for number, old in self._by_number.items()):
            self.key_cache.clear()  # a list that is split differently is another list
        self._by_number = known
        self._names.update({number: placed.name for number, placed in tables.items()})
        self.layouts = {seen(layout.name, self.group): layout for layout in known.values()}

    def layout(self, table: str) -> Layout:
        layout = self.layouts.get(table)
        if layout is None:
            raise UnknownTable(table, sorted(self.layouts))
        return layout

    def layout_of(self, number: int) -> Layout:
        layout = self._by_number.get(number)
        if layout is None:  # it is gone, even if another one has its name by now
            raise UnknownTable(self._names.get(number, f"number {number}"), sorted(self.layouts), dropped=True)
        return layout

    @property
    def since(self) -> int:
        """The view in which a primary of any table last changed."""
        return max((layout.since for layout in self._by_number.values()), default=0)

    def filters_of(self, layout: Layout) -> ClientFilters | None:
        if not layout.spec.filters:
            return None
        # Any thread may prepare a call. If two come first at once, one object wins: the residual of
        # the other would be lost.
        found = self.filters.get(layout.number)
        return found or self.filters.setdefault(layout.number, ClientFilters(layout.spec, Flow()))

    def filter_bytes(self) -> dict[str, list[int]]:
        """Bytes into and out of filters in this incarnation, and bytes that key handles saved."""
        found, saved = Flow.summed(one.flow for one in self.filters.values()), [*self.key_cache.stats().values()]
        return {**found, "handles": saved} if any(saved) else found

    def remainder_norms(self) -> tuple[float, float]:
        """The norms of the residuals that filters hold, and of what they lost."""
        feedbacks = [one.feedback for one in self.filters.values() if one.feedback is not None]
        return math.fsum(one.norm for one in feedbacks), math.fsum(one.lost for one in feedbacks)

    def held_back(self) -> dict[str, float]:
        """Tables of which filters hold something back for a later push, and its norm."""
        named = {layout.number: name for name, layout in self.layouts.items()}
        sizes = {number: 0.0 if one.feedback is None else one.feedback.norm for number, one in self.filters.items()}
        return {named[number]: size for number, size in sizes.items() if size > 0 and number in named}
