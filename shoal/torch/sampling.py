"""Which rows of a data set a worker trains on: a part of its own in every pass, another one each time.

All workers draw the same order from the seed and the pass, and worker r takes every world-th of it, from the r-th on. Where
that does not come out even, the order begins again, so that all make equally many steps: no more than world - 1 rows are
seen twice in a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch

from shoal.errors import Invalid


class ShardSampler(torch.utils.data.Sampler[int]):
    """For ``DataLoader(data, sampler=...)``. Every pass over it is another pass; nobody has to say which."""

    def __init__(self, data: Sized, rank: int, world: int, shuffle: bool = True, seed: int = 0) -> None:
        self._rows = len(data)
        if self._rows < world:
            raise Invalid(f"{self._rows} rows for {world} workers: start fewer workers, or give them more rows")
        self._rank, self._world, self._shuffle, self._seed = rank, world, shuffle, seed
        self._pass = 0

    def set_epoch(self, number: int) -> None:
        """Go on with this pass; for loops that say it, as with torch's own sampler."""
        self._pass = number

    def __len__(self) -> int:
        return -(-self._rows // self._world)

    def __iter__(self) -> Iterator[int]:
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed((self._seed << 32) + self._pass)
            order = torch.randperm(self._rows, generator=generator)
        else:
            order = torch.arange(self._rows)
        self._pass += 1
        extra = len(self) * self._world - self._rows
        mine: list[int] = torch.cat([order, order[:extra]])[self._rank :: self._world].tolist()
        return iter(mine)
