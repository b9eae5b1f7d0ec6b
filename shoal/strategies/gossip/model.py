"""What a worker that gossips computes with: a model of its own, and the few things that are done to it.

Only one of them runs at a time (``hands``), on whichever thread. A model that is longer than one frame of a message may be travels in
up to four pieces: ``cut`` and ``whole`` are each other's opposite, and copy nothing that fits into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.errors import Invalid

Floats = npt.NDArray[np.float32]

# A model that runs away is found out where it is judged.
RUNAWAY: dict[str, Any] = {"over": "ignore", "invalid": "ignore"}
_AT_ONCE = 16_384  # numbers
MOST = limits.FRAMES * limits.FRAME_BYTES // 4  # numbers that one message may carry


class GossipModel(Protocol):
    """A model of one's own."""

    @property
    def size(self) -> int:
        """Numbers in the weights."""

    @property
    def slab(self) -> Floats:
        """Weights and what the rule keeps beside them, as they are: whoever sends it makes a copy."""

    @property
    def weights(self) -> Floats:
        """As they are now, in one row; a copy."""

    def gradient(self, slot: int) -> tuple[float, int]:
        """Keep the gradient of a slot at the weights as they are; the sum of its losses, and its rows."""

    def mix(self, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
        """weights <- own * weights + the sum of each weight * what came with it."""

    def add(self, delta: Floats, times: float = 1.0) -> None:
        """weights <- weights + times * delta."""

    def step(self, scale: float = 1.0) -> None:
        """By the rule, with the gradient that was kept; weights move by ``scale`` times what the rule would have them."""


def mix_into(now: Floats, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
    """now <- own * now + the sum of each weight * what came with it: added up in double precision, rounded once.

    Piece by piece, so that what is added up stays in the processor's cache: a third of the time that whole vectors take.
    """
    shaped = [(weight, values.reshape(now.shape)) for weight, values in parts]
    rows = max(1, _AT_ONCE * len(now) // max(1, now.size))
    total, part = (np.empty((rows, *now.shape[1:])) for _ in range(2))
    for start in range(0, len(now), rows):
        some = slice(start, min(start + rows, len(now)))
        sums, one = total[: some.stop - start], part[: some.stop - start]
        np.multiply(now[some], own, out=sums, dtype=np.float64)
        for weight, values in shaped:
            np.multiply(values[some], weight, out=one, dtype=np.float64)
            sums += one
        now[some] = sums


def check_size(numbers: int, what: str = "a model") -> None:
    """Refuse what no message can carry."""
    if numbers > MOST:
        raise Invalid(
            f"{what} of {numbers:,} numbers: gossip sends at most {MOST:,}: take a server, or a smaller model"
        )


def cut(vector: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Pieces that fit into frames; at least one."""
    flat, most = vector.reshape(-1), limits.FRAME_BYTES // vector.itemsize
    if flat.size <= most:
        return (flat,)
    return tuple(flat[at : at + most] for at in range(0, flat.size, most))


def whole(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """What was cut, again."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
