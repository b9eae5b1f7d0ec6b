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

if TYPE_CHECKING:
    from typing import Any

    from shoal.client import KV as KV
    from shoal.errors import ShoalError as ShoalError
    from shoal.filters import LZ4 as LZ4
    from shoal.filters import BFloat16 as BFloat16
    from shoal.filters import DeltaKeys as DeltaKeys
    from shoal.filters import Float16 as Float16
    from shoal.filters import Int8 as Int8
    from shoal.filters import OneBit as OneBit
    from shoal.filters import Significant as Significant
    from shoal.filters import Skip as Skip
    from shoal.filters import TopK as TopK
    from shoal.filters import Zstd as Zstd
    from shoal.filters import filter as filter
    from shoal.inspect.query import query as query
    from shoal.job import Job as Job
    from shoal.keys import KeyList as KeyList
    from shoal.keys import KeyRange as KeyRange
    from shoal.keys import KeyValues as KeyValues
    from shoal.launch.cluster import Cluster as Cluster
    from shoal.launch.local import connect as connect
    from shoal.launch.local import local as local
    from shoal.launch.remote_node import serve as serve
    from shoal.models.trained import Trained as Trained
    from shoal.run.finished import Run as Run
    from shoal.run.run import train as train
    from shoal.store.client.task import Task as Task
    from shoal.store.query import Found as Found
    from shoal.store.query import question as question
    from shoal.store.table.update import FTRL as FTRL
    from shoal.store.table.update import SGD as SGD
    from shoal.store.table.update import AdaGrad as AdaGrad
    from shoal.store.table.update import Adam as Adam
    from shoal.store.table.update import AdamW as AdamW
    from shoal.store.table.update import Assign as Assign
    from shoal.store.table.update import Momentum as Momentum
    from shoal.store.table.update import Nesterov as Nesterov
    from shoal.store.table.update import RMSProp as RMSProp
    from shoal.store.table.update import Sum as Sum
    from shoal.store.table.update import update as update
    from shoal.tables import Constant as Constant
    from shoal.tables import Dense as Dense
    from shoal.tables import Each as Each
    from shoal.tables import Given as Given
    from shoal.tables import Normal as Normal
    from shoal.tables import Sparse as Sparse
    from shoal.tables import Step as Step
    from shoal.tables import Uniform as Uniform
    from shoal.timing import Timing as Timing

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
__all__ = sorted(_HOME)


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
