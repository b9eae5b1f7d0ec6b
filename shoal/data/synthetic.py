"""Makes synthetic rows of any number: like click logs, or like news texts.

Row i is a function of (seed, i), so every worker makes the same one, and a larger set begins with
the smaller one. Test rows have distant numbers and the same true weights. Labels come from sparse
true weights with noise: a good linear model does well and none is perfect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch
from shoal.errors import Invalid
from shoal.limits import FEATURES

TEST_FROM = 1 << 40  # test rows are numbered from here on
SAMPLE_FROM = 1 << 41  # rows from here on calibrate the scale of the labels
SAMPLE = 20_000
FEWEST_FEATURES = 1_000

COUNTERS = tuple(range(8, 60, 4))  # sizes of the 13 fields of bucketed counts
CATEGORIES, SMALLEST = 26, 10  # smallest field of ids; sizes grow geometrically
# the spread of the margins: how predictable clicks are
CLICK_RATE, CLICK_SPREAD = 0.2, 1.75

# The share of RCV1's rows with its k-th commonest term: (k, share), linear in between in log-log.
TERMS = (
    (1, 0.438), (3, 0.346), (11, 0.25), (31, 0.19), (101, 0.1137), (301, 0.0526), (1_001, 0.0164), (3_001, 0.0033),
    (10_001, 3.5e-4), (20_001, 6.5e-5), (47_236, 4e-6),
)  # fmt: skip
RCV1_FEATURES = 47_236
LOG_MEAN, LOG_SPREAD = 4.16, 0.695  # of the logarithm of a text's length in words
POSITIVE, NOISE = 0.45, 0.04


class SyntheticSource(Protocol):
    features: int

    def rows(self, first: int, count: int) -> Batch:
        """Rows first..first + count."""


class Clicks:
    """39 fields, one feature of each per row: 13 of small counts, 26 of ids."""

    def __init__(self, seed: int, features: int | None = None) -> None:
        self.features = _features(features, 1_000_000)
        self._seed = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
        self._starts = np.concatenate(([0], np.cumsum(_field_sizes(self.features)))).astype(np.int64)
        self._scale, self._bias = 1.0, 0.0
        _, margins = self._make(SAMPLE_FROM, SAMPLE)
        self._scale = CLICK_SPREAD / max(float(margins.std()), 1e-9)
        self._bias = _bias_for(margins * self._scale, CLICK_RATE)

    def rows(self, first: int, count: int) -> Batch:
        return self._make(first, count)[0]

    def _make(self, first: int, count: int) -> tuple[Batch, npt.NDArray[np.float64]]:
        from shoal.data import synthetic_kernels

        fields = len(self._starts) - 1
        columns, labels = np.empty(count * fields, np.uint32), np.empty(count, np.float32)
        margins = np.empty(count, np.float64)
        synthetic_kernels.clicks(first, self._seed, self._starts, self._scale, self._bias, columns, margins, labels)
        return Batch(np.arange(count + 1, dtype=np.int64) * fields, columns, None, labels), margins


class Texts:
    """Bags of words with RCV1's term frequencies and lengths: about 76 of 47,236 terms per row."""

    def __init__(self, seed: int, features: int | None = None) -> None:
        from shoal.data import kernels, synthetic_kernels

        self.features = _features(features, RCV1_FEATURES)
        self._seed = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
        ranks, shares = (np.log(np.array(column)) for column in zip(*TERMS, strict=True))
        places = np.arange(1, self.features + 1) * (RCV1_FEATURES / self.features)
        present = np.exp(np.interp(np.log(np.maximum(places, 1.0)), ranks, shares))
        chance = -np.log1p(-present)  # over all draws of a text, a word occurs with the given share
        self._cumulated = np.cumsum(chance) / chance.sum()
        self._cumulated[-1] = 2.0  # an upper end, despite rounding
        self._guide = np.searchsorted(
            self._cumulated, np.arange(synthetic_kernels.GUIDE) / synthetic_kernels.GUIDE, "right"
        ).astype(np.int64)
        order = np.empty(self.features, np.int64)
        # so that a term's number is independent of its frequency
        kernels.permute(0, self.features, self._seed, order)
        self._ids = order.astype(np.uint32)
        self._rarity = np.empty(self.features)
        self._rarity[order] = -np.log(present)
        self._level = 0.0
        _, margins = self._make(SAMPLE_FROM, SAMPLE)
        self._level = float(np.quantile(margins, 1 - POSITIVE))

    def rows(self, first: int, count: int) -> Batch:
        return self._make(first, count)[0]

    def _make(self, first: int, count: int) -> tuple[Batch, npt.NDArray[np.float64]]:
        from shoal.data import synthetic_kernels

        indptr, labels, margins = np.empty(count + 1, np.int64), np.empty(count, np.float32), np.empty(count)
        room = 120 * count + synthetic_kernels.LONGEST
        while True:
            columns, values = np.empty(room, np.uint32), np.empty(room, np.float32)
            made = synthetic_kernels.texts(
                first, self._seed, self._cumulated, self._guide, self._rarity, self._ids, LOG_MEAN, LOG_SPREAD,
                self._level, NOISE, indptr, columns, values, margins, labels,
            )  # fmt: skip
            if made == count:
                used = int(indptr[count])
                return Batch(indptr, columns[:used].copy(), values[:used].copy(), labels), margins
            room *= 2


MAKERS: dict[str, Callable[[int, int | None], SyntheticSource]] = {"clicks": Clicks, "rcv1-like": Texts}


def _features(features: int | None, default: int) -> int:
    if features is None:
        return default
    if not FEWEST_FEATURES <= features <= FEATURES:
        raise Invalid(f"features = {features:,}: synthetic sets have {FEWEST_FEATURES:,} to {FEATURES:,}")
    return features


def _field_sizes(features: int) -> npt.NDArray[np.int64]:
    """The sizes of the count fields, then geometric sizes that add up to the rest."""
    rest = features - sum(COUNTERS)
    steps = np.arange(CATEGORIES)
    low, high = 1.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if SMALLEST * (middle**steps).sum() < rest else (low, middle)
    sizes = np.floor(SMALLEST * low**steps).astype(np.int64)
    sizes[-1] += rest - sizes.sum()
    return np.concatenate((np.array(COUNTERS, np.int64), sizes))


def _bias_for(margins: npt.NDArray[np.float64], rate: float) -> float:
    """The bias at which the mean probability of these margins is ``rate``."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((1 / (1 + np.exp(-(margins + middle)))).mean())
        low, high = (middle, high) if mean < rate else (low, middle)
    return low
