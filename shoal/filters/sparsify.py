"""Sparsifiers: send the rows of a push that matter most; the client keeps the others.

Rows are the unit, since keys name rows: a row is sent if any of its values is large enough.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.errors import Invalid
from shoal.filters.base import Mask, RegisteredFilter, Sparsifier
from shoal.keys import Values


class Significant(Sparsifier):
    """Rows that changed by more than a threshold since they were last sent."""

    bounds = {"threshold": (0.0, math.inf)}

    def check(self) -> None:
        if (threshold := self.settings.threshold) >= float(np.finfo(np.float32).max):
            raise Invalid(f"filter 'significant', threshold={threshold:g}: nothing would ever be sent; take less")

    def choose(self, values: Values, seed: int) -> Mask:
        chosen: Mask = _largest(values) > np.float32(self.settings.threshold)
        return chosen


class Skip(Sparsifier):
    """All rows but a random share."""

    bounds = {"share": (0.0, 1.0)}

    def check(self) -> None:
        if self.settings.share >= 1:
            raise Invalid("filter 'skip', share=1: nothing would ever be sent; a share below 1 is needed")

    def choose(self, values: Values, seed: int) -> Mask:
        drawn: Mask = np.random.default_rng(seed).random(len(values), np.float32) >= self.settings.share
        return drawn


class Top(Sparsifier):
    """The rows with the largest values: a number of them, or a share."""

    bounds = {"k": (0.0, 1e12), "share": (0.0, 1.0)}
    whole = ("k",)

    def check(self) -> None:
        if self.settings.k == 0 and self.settings.share == 0:
            raise Invalid("filter 'top' would never send anything: it needs k above 0, or a share above 0")

    def choose(self, values: Values, seed: int) -> Mask:
        rows = len(values)
        most = int(self.settings.k) or math.ceil(self.settings.share * rows)
        if most >= rows:
            return np.ones(rows, np.bool_)
        chosen = np.zeros(rows, np.bool_)
        chosen[np.argpartition(_largest(values), rows - most)[rows - most :]] = True
        return chosen


def _largest(values: Values) -> Values:
    sizes: Values = np.abs(values)
    return sizes.reshape(-1) if values.shape[1] == 1 else sizes.max(axis=1)


KNOWN = {
    "significant": RegisteredFilter("significant", Significant, {"threshold": 1e-4}),
    "skip": RegisteredFilter("skip", Skip, {"share": 0.5}),
    "top": RegisteredFilter("top", Top, {"k": 0.0, "share": 0.1}),
}
