"""Where the rows are of lists of keys that come again, in one table on one server.

A list is known by being the very same array (``handles`` keeps it): so it may travel through logs and steps as plain keys, and
whatever is cut off it is searched for in the usual way. Its keys are checked once, as long as a table lives: its segments do not change.
Rows of a sparse table are searched for at the second use, and again when rows have moved (``layout``). Some keys may have no row yet: then it is
tried again after twice as many uses. Those of a dense one are a subtraction away, which costs no more than to remember them.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.keys import Keys
from shoal.store.table.slab import DenseRows, Rows, SparseRows


@dataclass(slots=True)
class CachedRows:
    """What is known of one list."""

    keys: Keys  # held, so that no other array can have its id
    checked: bool = False
    rows: Rows | None = None
    layout: int = -1  # by which they were found
    uses: int = 0
    again: int = 2  # the use at which they are searched for


class RowCache:
    """All lists that one table has been asked for by number."""

    def __init__(self, part: DenseRows | SparseRows) -> None:
        self._part = part
        self._of: dict[int, CachedRows] = {}  # by id of the array

    def __len__(self) -> int:
        return len(self._of)

    def note(self, keys: Keys) -> bool:
        """This very array will come again. True if that is new."""
        if id(keys) in self._of:
            return False
        self._of[id(keys)] = CachedRows(keys)
        return True

    def forget(self, keys: Keys) -> None:
        self._of.pop(id(keys), None)

    def are_checked(self, keys: Keys) -> bool:
        return id(keys) in self._of and self._of[id(keys)].checked

    def were_checked(self, keys: Keys) -> None:
        if (place := self._of.get(id(keys))) is not None:
            place.checked = True

    def rows(self, keys: Keys) -> Rows | None:
        """The rows of these keys, if they are known or can be by now."""
        place = self._of.get(id(keys))
        if place is None or not place.checked or isinstance(self._part, DenseRows):
            return None
        place.uses += 1
        if place.rows is not None and place.layout == self._part.layout:
            return place.rows
        if place.uses < place.again:
            return None
        place.rows, place.layout = self._part.find(place.keys), self._part.layout
        if place.rows is None:
            place.again = 2 * place.uses
        return place.rows
