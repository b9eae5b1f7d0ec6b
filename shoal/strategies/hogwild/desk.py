"""The desk: an int64 array by which the workers of a Hogwild run share slots and count.

A line is a cache line: two cells on one line would be as slow as one cell for two workers.
"""

from __future__ import annotations

from shoal.data.batch import Ids

LINE = 8  # int64 in a cache line
CURSOR, LIMIT, STOP, LOCK, CANARY = range(5)  # lines of the desk
CELLS = 8  # from this line on, one for each worker
# In a worker's line: slots and rows done, what it added to the canary, updates since.
SLOTS, ROWS, BEATS, TURNS = range(4)


def desk(workers: int) -> tuple[int, int]:
    return CELLS + workers, LINE


def lost(shared: Ids) -> tuple[int, int]:
    """Of the updates of the canary, how many were made and how many of them are not in it."""
    made = int(shared[CELLS:, BEATS].sum())
    return made, made - int(shared[CANARY, 0])
