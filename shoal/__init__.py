"""A parameter server in Python that keeps training when any of its processes is killed.

    import shoal

    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Sparse(keys=1_000_000, update=shoal.AdaGrad(step=0.1)))
        kv.push("w", keys, gradients).result()
        weights = kv.pull("w", keys).result()

Names are imported when they are first used, so that ``import shoal`` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers only: lazy imports keep commands fast to start

__version__ = "0.1.0"
__all__ = [
    "FTRL", "KV", "LZ4", "SGD", "AdaGrad", "Adam", "AdamW", "Assign", "BFloat16", "Cluster", "Constant",
    "DeltaKeys", "Dense", "Each", "Float16", "Found", "Given", "Int8", "Job", "KeyList", "KeyRange",
    "KeyValues", "Momentum", "Nesterov", "Normal", "OneBit", "RMSProp", "Run", "ShoalError", "Significant",
    "Skip", "Sparse", "Step", "Sum", "Task", "Timing", "TopK", "Trained", "Uniform", "Zstd", "connect",
    "filter", "local", "query", "question", "serve", "train", "update",
]  # fmt: skip

if TYPE_CHECKING:
    from typing import Any

    from shoal.client import KV
    from shoal.errors import ShoalError
    from shoal.filters import LZ4, BFloat16, DeltaKeys, Float16, Int8, OneBit, Significant, Skip, TopK, Zstd, filter
    from shoal.inspect.query import query
    from shoal.job import Job
    from shoal.keys import KeyList, KeyRange, KeyValues
    from shoal.launch.cluster import Cluster
    from shoal.launch.local import connect, local
    from shoal.launch.remote_node import serve
    from shoal.models.trained import Trained
    from shoal.run.finished import Run
    from shoal.run.run import train
    from shoal.store.client.task import Task
    from shoal.store.query import Found, question
    from shoal.store.table.update import (
        FTRL,
        SGD,
        AdaGrad,
        Adam,
        AdamW,
        Assign,
        Momentum,
        Nesterov,
        RMSProp,
        Sum,
        update,
    )
    from shoal.tables import Constant, Dense, Each, Given, Normal, Sparse, Step, Uniform
    from shoal.timing import Timing

_WHERE = {
    "shoal.errors": "ShoalError",
    "shoal.keys": "KeyList KeyRange KeyValues",
    "shoal.filters": "BFloat16 DeltaKeys Float16 Int8 LZ4 OneBit Significant Skip TopK Zstd filter",
    "shoal.job": "Job",
    "shoal.launch.remote_node": "serve",
    "shoal.launch.cluster": "Cluster",
    "shoal.launch.local": "connect local",
    "shoal.inspect.query": "query",
    "shoal.models.trained": "Trained",
    "shoal.client": "KV",
    "shoal.run.finished": "Run",
    "shoal.run.run": "train",
    "shoal.store.query": "Found question",
    "shoal.store.client.task": "Task",
    "shoal.store.table.update": "FTRL SGD AdaGrad Adam AdamW Assign Momentum Nesterov RMSProp Sum update",
    "shoal.tables": "Constant Dense Each Given Normal Sparse Step Uniform",
    "shoal.timing": "Timing",
}
_HOME = {name: module for module, names in _WHERE.items() for name in names.split()}


if not TYPE_CHECKING:  # with it, mypy would accept any name and any module of this package

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            value = _imported(_HOME[name], name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def _imported(module: str, name: str) -> Any:
    """Import a module with Ctrl-C deferred: msgspec 0.22 may crash on it (segmentation fault)."""
    import importlib
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
