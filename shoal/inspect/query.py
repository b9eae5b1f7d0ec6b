"""Queries a model: on the servers of an active run, or in the file of a finished one.

shoal.query("runs/clicks-logistic-async-1", "top", k=5)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, ClusterError, Invalid, Unanswered
from shoal.inspect.anonymous_client import AnonymousClient
from shoal.inspect.status import (
    ADDRESS,
    address_of,
    look_at,
    transport_to,
)
from shoal.job import Job
from shoal.keys import KeyRange, Keys, Values, as_range
from shoal.models.linear import Linear
from shoal.models.trained import Trained
from shoal.models.trained_module import TrainedModule
from shoal.nodes.strategy import TABLE
from shoal.security.safety import Safety
from shoal.store.query import Question, question_named
from shoal.tables import Sparse
from shoal.wire import messages as m

MODEL = "model.safetensors"  # the model file in a run's folder


class QueriedModel(Protocol):
    """A model that can be queried."""

    where: str
    table: str
    live: bool

    def ask(
        self,
        question: Question | str,
        keys: Any = slice(None),
        *,
        servers: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> Any: ...

    def course(self) -> m.RunProgress | None:
        """The progress of its run."""

    @property
    def span(self) -> tuple[int, bool]:
        """The number of possible rows, and whether only pushed ones exist."""

    def name(self, key: int, place: int) -> str:
        """The name of a weight, if known."""

    def close(self) -> None: ...


class HasModel(Protocol):
    """A finished run."""

    model: Any


def query(
    where: str | os.PathLike[str] | Trained | TrainedModule | HasModel,
    question: Question | str = "overview",
    *,
    table: str | None = None,
    keys: Any = slice(None),
    servers: str | Sequence[str] | None = None,
    **settings: Any,
) -> Any:
    """Query a model without changing it.

    ``where`` is a run's folder (active or finished), the address of a coordinator, a ``Run`` or a
    trained model. Queries are "overview", "count", "norms", "nonzeros", "top", "histogram", and
    your own functions under ``@shoal.question()``. ``servers`` limits it to what these hold.
    """
    asked = opened(where, table)
    try:
        return asked.ask(question, keys, servers=servers, **settings)
    except Unanswered:
        if not asked.live or not is_over(asked.where):
            raise
    finally:
        asked.close()
    return opened(where, table).ask(question, keys, servers=servers, **settings)


def opened(
    where: str | os.PathLike[str] | Trained | TrainedModule | HasModel,
    table: str | None = None,
    keys: str | None = None,
    insecure: bool = False,
) -> QueriedModel:
    """Open the model there; the caller closes it. ``keys``, ``insecure``: as for ``connect``."""
    model = getattr(where, "model", None) if not isinstance(where, Trained | TrainedModule) else where
    if isinstance(model, Trained | TrainedModule):
        return SavedModel(model, repr(model), table)
    if not isinstance(where, str | os.PathLike):
        raise Invalid(f"{where!r} has no model that could be asked: give a run, its folder, an address or a model")
    place = os.fspath(where)
    if "://" in place:
        return LiveModel(place, place, table, keys, insecure)
    folder = Path(place)
    file = folder if folder.is_file() else folder / MODEL
    if file.is_file() and not (folder / ADDRESS).exists():
        return SavedModel(_trained(file), place, table)
    try:
        return LiveModel(address_of(place), place, table, keys, insecure)
    except (ClusterError, Unanswered):
        if file.is_file() and not (folder / ADDRESS).exists():  # it has just ended
            return SavedModel(_trained(file), place, table)
        if (folder / "summary.json").exists():
            raise ClusterError(f"the run in {place} has ended and left no model ({MODEL}): train again") from None
        raise


def is_over(where: str) -> bool:
    """Whether the run in this folder has ended and left its model."""
    folder = Path(where)
    return "://" not in where and (folder / "summary.json").exists() and not (folder / ADDRESS).exists()


def _group_at(address: str, safety: Safety) -> str:
    """The group of the run: a key that is bound to a group queries as its member."""
    if not safety.has_keys:
        return ""
    with contextlib.closing(look_at(address, safety)) as looking:
        return looking.describe().group


class LiveModel:
    """A model on the servers of a cluster."""

    live = True

    def __init__(
        self, address: str, where: str, table: str | None, keys: str | None = None, insecure: bool = False
    ) -> None:
        self.where = where
        safety = Safety.chosen(keys, insecure, at=address)
        self._visit = AnonymousClient(transport_to(address, safety, _group_at(address, safety)))
        try:
            self._layout = self._visit.layout(table)
        except BaseException:
            self._visit.close()
            raise
        self.table = self._layout.name
        self._model = _model_of(Path(where)) if where != address and self.table == TABLE else None

    def ask(
        self,
        question: Question | str,
        keys: Any = slice(None),
        *,
        servers: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> Any:
        return self._visit.ask(question, self.table, keys, servers=servers, **settings)

    def course(self) -> m.RunProgress | None:
        return self._visit.course()

    @property
    def span(self) -> tuple[int, bool]:
        return self._layout.spec.span, isinstance(self._layout.spec, Sparse)

    def name(self, key: int, place: int) -> str:
        if isinstance(self._model, Linear) and self._model.bias and key == self._layout.spec.span - 1:
            return "bias"
        return f"{key}[{place}]" if self._layout.spec.width > 1 else str(key)

    def close(self) -> None:
        self._visit.close()


class SavedModel:
    """A model in a file."""

    live, table = False, TABLE

    def __init__(self, model: Trained | TrainedModule, where: str, table: str | None) -> None:
        if table not in (None, TABLE):
            raise Invalid(f"table {table!r}: of a run that has ended only the model is left, leave --table away")
        self.where, self._model = where, model
        self._names: list[tuple[int, str, tuple[int, ...]]] = []  # where each tensor begins
        if isinstance(model, Trained):
            self._weights: Values = model.table.reshape(-1, 1)
            return
        floats = {name: one for name, one in model.tensors.items() if one.dtype.kind == "f"}
        begins = accumulate((one.size for one in floats.values()), initial=0)
        self._names = [(at, name, one.shape) for at, (name, one) in zip(begins, floats.items(), strict=False)]
        flat = [one.astype(np.float32).reshape(-1) for one in floats.values()]
        self._weights = np.concatenate([np.empty(0, np.float32), *flat]).reshape(-1, 1)

    def ask(
        self,
        question: Question | str,
        keys: Any = slice(None),
        *,
        servers: str | Sequence[str] | None = None,
        **settings: Any,
    ) -> Any:
        if servers is not None:
            raise Invalid("servers=: a run that has ended has none; leave it out")
        one = question_named(question) if isinstance(question, str) else question
        span = as_range(keys, len(self._weights))
        if span is None or span.stop > len(self._weights):
            raise BadKeys(
                f"keys={keys!r}: a range of keys from 0 to {len(self._weights)} is needed, such as slice(0, 100)"
            )
        chosen = one.settings(settings)
        return one.whole([one.ask(self._pieces(span), chosen)], chosen)

    def _pieces(self, span: KeyRange) -> Iterator[tuple[Keys, Values]]:
        for at in range(span.start, span.stop, limits.CALL_PIECE):
            upto = min(at + limits.CALL_PIECE, span.stop)
            rows = self._weights[at:upto].view()
            rows.flags.writeable = False
            yield np.arange(at, upto, dtype=np.uint64), rows

    def course(self) -> None:
        return None

    @property
    def span(self) -> tuple[int, bool]:
        return len(self._weights), False

    def name(self, key: int, place: int) -> str:
        if isinstance(self._model, Trained):
            return "bias" if self._model.linear.bias and key == self._model.features else str(key)
        start, name, shape = next(one for one in reversed(self._names) if one[0] <= key)
        index = ", ".join(map(str, np.unravel_index(key - start, shape))) if shape else ""
        return f"{name}[{index}]" if shape else name

    def close(self) -> None:
        return


def _trained(file: Path) -> Any:
    from shoal.models.learner import trained

    return trained(file)


def modules_of(where: str) -> tuple[str, ...]:
    """The modules that the servers of this run imported, from its folder."""
    job = _job(Path(where))
    return () if job is None else tuple(job.launch.modules)


def _model_of(folder: Path) -> Any:
    job = _job(folder)
    return None if job is None else job.model


def _job(folder: Path) -> Job | None:
    try:
        return Job.load(folder / "job.toml")
    except Invalid:
        return None
