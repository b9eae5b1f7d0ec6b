"""STUB of prox until columns' is merged."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.keys import KeyList


class Blocks:
    def __init__(self, starts: Any) -> None:
        self.starts = np.asarray(starts, np.uint64)

    @classmethod
    def cut(cls, by: str, n: int, counts: Any, bias: bool, rows: int) -> Blocks:
        keys = len(counts) + bias
        if by == "range":
            return cls([keys * i // n for i in range(n + 1)])
        total = np.cumsum(np.append(counts.astype(np.int64), [rows] * bias) + 1)
        inner = np.searchsorted(total, total[-1] * np.arange(1, n) / n) + 1
        return cls([0, *np.minimum(inner, keys), keys])

    def __len__(self) -> int:
        return len(self.starts) - 1


class Columns:
    def __init__(self, rows: Any, blocks: Blocks, bias: bool, features: int) -> None:
        self.rows = len(rows.labels)
        self.labels = np.where(rows.labels > 0, 1.0, -1.0)
        n = len(rows.columns)
        at = np.repeat(np.arange(self.rows), np.diff(rows.indptr))
        cols = rows.columns.astype(np.int64)
        vals = np.ones(n, np.float32) if rows.values is None else np.asarray(rows.values)
        if bias:
            at = np.concatenate([at, np.arange(self.rows)])
            cols = np.concatenate([cols, np.full(self.rows, features)])
            vals = np.concatenate([vals, np.ones(self.rows, np.float32)])
        order = np.lexsort((at, cols))
        at, cols, vals = at[order], cols[order], vals[order].astype(np.float64)
        self.keys, first = np.unique(cols.astype(np.uint64), return_index=True)
        indptr = np.append(first, len(cols))
        self.listed = KeyList(self.keys)
        cuts = np.searchsorted(self.keys, blocks.starts)
        self._cuts = cuts
        self.blocks = []
        for b in range(len(blocks)):
            lo, hi = indptr[cuts[b]], indptr[cuts[b + 1]]
            place = np.repeat(np.arange(cuts[b + 1] - cuts[b]), np.diff(indptr[cuts[b] : cuts[b + 1] + 1]))
            self.blocks.append((place, at[lo:hi], vals[lo:hi]))
        self.nbytes = 24 * len(cols)
        self.nonzeros = len(cols)

    def keys_of(self, block: int) -> Any:
        return self.keys[self._cuts[block] : self._cuts[block + 1]]


class Standing:
    def __init__(self, columns: Columns, delay: int = 0) -> None:
        self.columns = columns
        self.margins = np.zeros(columns.rows)
        self.weights = np.zeros(len(columns.keys), np.float32)
        self.delay = delay

    def cost(self, block: int) -> int:
        return len(self.columns.blocks[block][0])

    def _own(self, block: int) -> Any:
        c = self.columns._cuts
        return self.weights[c[block] : c[block + 1]]

    def places(self, block: int, everything: bool) -> Any:
        w = self._own(block)
        return np.arange(len(w)) if everything else np.flatnonzero(~((w == 0) & np.signbit(w)))

    def take(self, block: int, places: Any, weights: Any) -> None:
        own = self._own(block)
        change = np.zeros(len(own))
        change[places] = weights.astype(np.float64) - own[places]
        place, at, vals = self.columns.blocks[block]
        self.margins += np.bincount(at, vals * change[place], minlength=len(self.margins))
        own[places] = weights

    def refresh(self, weights: Any) -> None:
        self.margins[:] = 0
        self.weights[:] = 0
        c = self.columns._cuts
        for b in range(len(self.columns.blocks)):
            self.take(b, np.arange(c[b + 1] - c[b]), weights[c[b] : c[b + 1]])

    def gradient(self, block: int, everything: bool) -> Any:
        y, m = self.columns.labels, self.margins
        ym = y * m
        loss = float(np.logaddexp(0, -ym).sum())
        p = 1 / (1 + np.exp(ym))
        place, at, vals = self.columns.blocks[block]
        n = len(self._own(block))
        g = np.bincount(place, vals * (-y * p)[at], minlength=n)
        q = np.maximum(p * (1 - p), 0.05)
        per_row = np.bincount(at, minlength=len(m)).max(initial=1) ** 0.5 * (1 + self.delay)
        u = np.bincount(place, vals**2 * q[at], minlength=n) * per_row + 1e-6
        places = self.places(block, everything)
        return loss, places, np.stack([g, u], 1)[places].astype(np.float32)


def judge(train: Any, bias: bool, weights: Any, l1: float, l2: float) -> dict[str, float]:
    rows = train.slice(0, train.rows)
    col = Columns(rows, Blocks([0, train.features + bias]), bias, train.features)
    one = Standing(col)
    one.refresh(weights[col.keys])
    loss, _, values = one.gradient(0, True)
    w = weights[col.keys].astype(np.float64)
    g = values[:, 0] + l2 * w
    off = np.where(w != 0, np.abs(g + l1 * np.sign(w)), np.maximum(0, np.abs(g) - l1))
    return {
        "objective": loss + l1 * np.abs(weights).sum(dtype=np.float64) + l2 / 2 * float((w**2).sum()),
        "violation": float(off.max(initial=0)) / (l1 or 1.0),
        "nonzero": int((weights != 0).sum()),
    }
