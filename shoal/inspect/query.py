"""Queries a model: on the servers of an active run, or in the file of a finished one.

shoal.query("runs/clicks-logistic-async-1", "top", k=5)
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, ClusterError, Invalid, Refused, TimedOut, Unanswered
from shoal.inspect.status import ADDRESS, PATIENCE, address_of, job_of, look_at, transport_to
from shoal.keys import KeyRange, Keys, Values, as_range
from shoal.models.linear import Linear
from shoal.models.trained import Trained, TrainedModule, trained
from shoal.security.safety import Safety
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.store.query import Question, question_named
from shoal.tables import TABLE, Sparse
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Send

MODEL = "model.safetensors"  # the model file in a run's folder
Servers = str | Sequence[str] | None  # only what these hold
_ASLEEP = 0.05  # longest wait in seconds between two checks for re-sends
_VISITOR = 1  # an incarnation that is not checked, to number requests


class HasModel(Protocol):
    model: Any


def query(
    where: str | os.PathLike[str] | Trained | TrainedModule | HasModel,
    question: Question | str = "overview",
    *,
    table: str | None = None,
    keys: Any = slice(None),
    servers: Servers = None,
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
        return SavedModel(trained(file), place, table)
    try:
        return LiveModel(address_of(place), place, table, keys, insecure)
    except (ClusterError, Unanswered):
        if file.is_file() and not (folder / ADDRESS).exists():  # it has just ended
            return SavedModel(trained(file), place, table)
        if (folder / "summary.json").exists():
            raise ClusterError(f"the run in {place} has ended and left no model ({MODEL}): train again") from None
        raise


def is_over(where: str) -> bool:
    """Whether the run in this folder has ended and left its model."""
    folder = Path(where)
    return "://" not in where and (folder / "summary.json").exists() and not (folder / ADDRESS).exists()


class LiveModel:
    """A model on the servers of a cluster, queried without joining it.

    Requests are split by the view that the coordinator shows to anyone, and servers answer anyone.
    Only members are notified of new views, so this polls the view while it waits. Any thread may
    use it, one at a time.
    """

    live = True

    def __init__(
        self, address: str, where: str, table: str | None, keys: str | None = None, insecure: bool = False
    ) -> None:
        self.where = where
        self._lock = threading.Lock()
        self._client = Client(f"visit-{secrets.token_hex(4)}", seed=secrets.randbits(32))
        self._client.take_view(0, m.View(0, 0, 0, [], []), _VISITOR)
        safety = Safety.chosen(keys, insecure, at=address)
        with contextlib.ExitStack() as opened:
            self._looking = look_at(address, safety)
            opened.callback(self._looking.close)
            # A key that is bound to the group of the run queries as a member of it.
            group = self._looking.describe().group if safety.has_keys else ""
            self._transport = transport_to(address, safety, group)(self._client.session.name)
            opened.callback(self._transport.close)
            self._wait(self._client.refresh(), PATIENCE)
            self._layout = self._client.session.layout(self._default() if table is None else table)
            self._opened = opened.pop_all()
        self.table = self._layout.name
        job = job_of(where) if self.table == TABLE else None
        self._model = None if job is None else job.model

    def _default(self) -> str:
        """The weights, or the only table."""
        known = self._client.session.layouts
        if TABLE in known or len(known) == 1:
            return TABLE if TABLE in known else next(iter(known))
        said = f"name one of {', '.join(sorted(known))}" if known else "there are none yet: ask again in a moment"
        raise Invalid(f"which table? {said}")

    def ask(
        self, question: Question | str, keys: Any = slice(None), *, servers: Servers = None, **settings: Any
    ) -> Any:
        with self._lock:
            self._wait(self._client.refresh(), PATIENCE)
            task = self._client.call(self.table, keys, question, servers=servers, **settings)
            self._wait(task, None)
            return task.result()

    def _wait(self, task: Task, seconds: float | None) -> None:
        began = asked = now = time.monotonic_ns()
        self._send(self._client.submit(now))
        try:
            while not task.done:
                if seconds is not None and now - began > seconds * limits.SECOND:
                    silent = "all servers" if self._client.session.layouts else limits.COORDINATOR
                    raise Unanswered(task.what, silent, seconds)
                if now - asked >= self._client.session.view.timing.resend_first:
                    asked = now
                    self._send([Send(limits.COORDINATOR, m.Refresh(0))])
                for event in self._transport.receive(_ASLEEP):
                    self._take(event)
                now = time.monotonic_ns()
                self._send(self._client.tick(now))
        finally:
            self._client.fail_all(TimedOut(task.what, seconds or 0.0, task.waits_for or "an answer"))
        if task.error is not None:
            raise task.error

    def _take(self, event: Received) -> None:
        now, message, known = time.monotonic_ns(), event.message, self._client.session.view
        if isinstance(message, m.Refusal) and message.request == 0 and message.kind in ("key", "version"):
            raise Refused(event.sender, message.reason)
        if not isinstance(message, m.View) or event.sender != limits.COORDINATOR:
            self._send(self._client.handle(now, event.sender, message, event.arrays))
        elif (message.term, message.number) > (known.term, known.number):
            before, here = (
                {one.name: one.address for one in view.members if one.role == "server"} for view in (known, message)
            )
            for name in before.keys() - here.keys():
                self._transport.disconnect(name)
            for name, address in here.items():
                self._transport.connect(name, address)
            self._send(self._client.take_view(now, message, _VISITOR))

    def _send(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._transport.send(effect.to, effect.message, effect.arrays)
        self._transport.flush()

    def course(self) -> m.RunProgress | None:
        return self._looking.look().course

    @property
    def span(self) -> tuple[int, bool]:
        """The number of possible rows, and whether only pushed ones exist."""
        return self._layout.spec.span, isinstance(self._layout.spec, Sparse)

    def name(self, key: int, place: int) -> str:
        if isinstance(self._model, Linear) and self._model.bias and key == self._layout.spec.span - 1:
            return "bias"
        return f"{key}[{place}]" if self._layout.spec.width > 1 else str(key)

    def close(self) -> None:
        with self._lock:
            self._opened.close()


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
        self, question: Question | str, keys: Any = slice(None), *, servers: Servers = None, **settings: Any
    ) -> Any:
        if servers is not None:
            raise Invalid("servers=: a run that has ended has none; leave it out")
        one = question_named(question) if isinstance(question, str) else question
        span = as_range(keys, len(self._weights))
        if span is None or span.stop > len(self._weights):
            most = len(self._weights)
            raise BadKeys(f"keys={keys!r}: a range of keys from 0 to {most} is needed, such as slice(0, 100)")
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


QueriedModel = LiveModel | SavedModel


def modules_of(where: str) -> tuple[str, ...]:
    """The modules that the servers of this run imported, from its folder."""
    job = job_of(where)
    return () if job is None else tuple(job.launch.modules)
