"""Chooses the rows that a worker trains on: a new shard in every epoch.

All workers derive the same order from the seed and the epoch, and worker r takes every world-th row
from the r-th on. If that is uneven, the order wraps around, so that all make equally many steps: at
most world - 1 rows are seen twice in an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch

from shoal.errors import Invalid


class ShardSampler(torch.utils.data.Sampler[int]):
    """For ``DataLoader(data, sampler=...)``. Every iteration over it is the next epoch."""

    def __init__(self, data: Sized, rank: int, world: int, shuffle: bool = True, seed: int = 0) -> None:
        self._rows = len(data)
        if self._rows < world:
            raise Invalid(f"{self._rows} rows for {world} workers: start fewer workers, or give them more rows")
        self._rank, self._world, self._shuffle, self._seed = rank, world, shuffle, seed
        self._pass = 0

    def set_epoch(self, number: int) -> None:
        """Set the epoch, as in torch's own sampler."""
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
