"""A small click model by hand: only push and pull, no ``shoal.train``.

Three workers train it on two server processes. Each worker takes the next slot (a minibatch), pulls
the weights of the features that occur in it, computes a gradient and pushes it back. The servers
run AdaGrad on the rows that were touched. No worker is more than two steps ahead of the slowest.
"""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np

import shoal

FEATURES, ROWS, NONZERO, SLOT, PASSES, WORKERS = 200_000, 60_000, 20, 500, 3, 3


def make_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of active features, by a power law as in click logs; clicks from a sparse truth."""
    rng = np.random.default_rng(seed)
    truth = np.where(rng.random(FEATURES) < 0.3, rng.normal(0, 1.0, FEATURES), 0.0)
    rows = np.minimum(FEATURES - 1, rng.zipf(1.3, (ROWS, NONZERO)) - 1)
    clicks = rng.random(ROWS) < 1 / (1 + np.exp(-truth[rows].sum(axis=1)))
    return rows, clicks.astype(np.float32)


def loss(weights: np.ndarray, rows: np.ndarray, clicks: np.ndarray) -> float:
    margins = weights[rows].sum(axis=1)
    return float(np.mean(np.logaddexp(0, margins) - clicks * margins))


def work(kv: shoal.KV, rows: np.ndarray, clicks: np.ndarray, slots: itertools.count[int], most: int) -> None:
    per_pass = len(rows) // SLOT
    while (slot := next(slots)) < most:
        part = slice(slot % per_pass * SLOT, (slot % per_pass + 1) * SLOT)
        keys, places = np.unique(rows[part], return_inverse=True)
        places = places.reshape(rows[part].shape)
        weights = kv.pull("model", keys).result()
        error = 1 / (1 + np.exp(-weights[places].sum(axis=1))) - clicks[part]
        gradient = np.bincount(places.ravel(), np.repeat(error / SLOT, NONZERO), len(keys))
        kv.push("model", keys, gradient).result()
    kv.park().result()


def main() -> None:
    rows, clicks = make_rows(seed=7)
    held_out, rows = rows[:10_000], rows[10_000:]
    truth, clicks = clicks[:10_000], clicks[10_000:]
    print("starting 2 servers (the first start on a machine compiles kernels, once) ...", flush=True)
    with shoal.local(servers=2, processes=True) as cluster:
        kv = cluster.client()
        model = shoal.Sparse(keys=FEATURES, update=shoal.AdaGrad(step=0.1), max_delay=2)
        kv.create("model", model)
        slots, per_pass = itertools.count(), len(rows) // SLOT
        everything = np.arange(FEATURES)
        print(f"{len(rows):,} rows, {FEATURES:,} features, {WORKERS} workers, bounded delay 2")
        print(f"  before    loss {loss(kv.pull('model', everything).result(), held_out, truth):.4f}")
        start = time.perf_counter()
        for number in range(1, PASSES + 1):
            slots = itertools.count((number - 1) * per_pass)
            workers = [cluster.worker() for _ in range(WORKERS)]
            threads = [
                threading.Thread(target=work, args=(one, rows, clicks, slots, number * per_pass)) for one in workers
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for one in workers:
                one.close()
            now = loss(kv.pull("model", everything).result(), held_out, truth)
            print(f"  pass {number}    loss {now:.4f}  after {time.perf_counter() - start:.1f} s", flush=True)
        seconds = time.perf_counter() - start
        facts = kv.stats("model")
        stale = facts["staleness"]
        print(
            f"{PASSES * len(rows) / seconds:,.0f} rows/s, {PASSES * per_pass} slots pushed, {facts['rows']:,} rows alive"
        )
        print("other pushes that a server counted between a pull and its push (staleness):")
        print("  " + ", ".join(f"{age}: {n} times" for age, n in enumerate(stale) if n))
        live = kv.pull("model", slice(0, 8)).result()
        print(
            "the hottest features: " + ", ".join(f"{k}: {v:+.3f}" for k, v in zip(live.keys, live.values, strict=True))
        )
    print("done, and nothing is left running; `shoal train clicks` does all this in one line")


if __name__ == "__main__":
    main()
