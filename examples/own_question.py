"""A question of your own, asked where the rows are: which groups of keys weigh how much?

    python examples/own_question.py

In a cluster of processes the function is in a module that the servers are started with:

    shoal.local(..., modules=["own_question"])
"""

from __future__ import annotations

from typing import Any

import numpy as np

import shoal


@shoal.question(join="sum", groups=4)
def mass(keys: Any, weights: Any, settings: Any) -> Any:
    """The sum of all |weights|, by key modulo the number of groups."""
    groups = int(settings.groups)
    return np.bincount((keys % groups).astype(np.int64), np.abs(weights).sum(axis=1), groups)


def main() -> None:
    with shoal.local(servers=3) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Sparse(keys=1_000_000))
        kv.push("w", np.arange(0, 999_000, 333), np.linspace(-1, 1, 3_000)).result()
        print("by group:", kv.call("w", slice(None), mass).result().numbers.round(1).tolist())
        print("rows on two of three:", kv.call("w", slice(None), "count", servers=["server-0", "server-1"]).result())
        print("norms:", kv.call("w", slice(None), "norms").result())
        for key, _, weight in kv.call("w", slice(None), "top", k=3).result():
            print(f"  {key:6}  {weight:+.4f}")


if __name__ == "__main__":
    main()
