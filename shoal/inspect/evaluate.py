"""Evaluates the model of a running or finished run on other rows, without slowing the run.

    evaluator = ModelEvaluator("runs/first", "a9a")     the run's job describes the model
    evaluator = ModelEvaluator(address, "a9a", job, "/weights", group="b")

It joins as a client (of a group, if one is named that may read the table) and pulls the whole
table. In an asynchronous run that is not a snapshot of one moment. Of a finished run it reads the
model file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.client import KV, connect_by
from shoal.data.datasets import NAMED, DataSource, load
from shoal.errors import Invalid, Unanswered
from shoal.inspect.query import MODEL
from shoal.inspect.status import ADDRESS, address_of, look_at, safety_for
from shoal.job import Job
from shoal.keys import KeyValues, Values
from shoal.models.learner import Learner, Metrics, learner_of
from shoal.models.linear import Linear
from shoal.tables import TABLE

_WITHIN = 30.0  # seconds, to read the whole model


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    rows: int
    loss: float
    metrics: Metrics
    steps: int | None = None  # steps counted so far, if a run reports them
    live: bool = False  # the run is still training


class ModelEvaluator(contextlib.AbstractContextManager["ModelEvaluator"]):
    """Evaluates one model, repeatedly."""

    def __init__(
        self,
        where: str,
        data: str,
        job: Job | None = None,
        table: str = TABLE,
        group: str = "",
        name: str | None = None,
        *,
        keys: str | None = None,
        insecure: bool = False,
    ) -> None:
        self._where, self._table, self._address = where, table, ""
        folder = Path(where)
        if job is None and "://" in where:
            raise Invalid(f"{where} does not say what its model is: give the job of that run too (--job JOB.toml)")
        self.job = job or Job.load(folder / "job.toml")
        self._kept = folder / MODEL if "://" not in where else None
        if self._kept is None or not self._kept.is_file() or (folder / ADDRESS).exists():
            self._address = address_of(where)
        self._safety = safety_for(where, keys, insecure) if self._address else None
        self._kv: KV | None = None
        if self._safety is not None:
            with contextlib.closing(look_at(self._address, self._safety)) as looking:
                about = looking.describe()
            # A group's run is reached by its scheduler, its model by its host cluster.
            at = about.manager or self._address
            self._kv = connect_by(self._safety, at, name=name, group=group or about.group)
        try:
            self._prepare(data)
        except BaseException:
            self.close()
            raise

    def _prepare(self, data: str) -> None:
        features, asked = self._features(), self.job.data
        if data in NAMED:
            made = asked.features if data == asked.source else None  # of a synthetic set
            source = DataSource(data, hash_bits=asked.hash_bits, rows=asked.rows, features=made)
        else:  # all rows, read like those of the run
            source = DataSource(data, data, format=asked.format, hash_bits=asked.hash_bits)
        self._data = load(source, self.job.seed)
        if features is not None and self._data.features > features:
            rows = f"{data} has {self._data.features:,} features"
            raise Invalid(f"{rows}, and the model {features:,}: they are not the same ids")
        trained, has = self.job.data.source, self._data.features
        other = data in NAMED and trained in NAMED and data != trained
        self.note = ""  # a warning if these rows and this model seem unrelated
        if features is not None and (other or 2 * has < features):
            both = f"the model was trained on {trained} and has {features:,} features, {data} has {has:,}"
            self.note = f"{both}: unless their ids mean the same, these figures mean nothing"
        self._learner: Learner = learner_of(self.job.model, self._data.train, self.job.seed)

    def _features(self) -> int | None:
        """The number of features of a linear model, from its table or file."""
        if not isinstance(self.job.model, Linear):
            return None
        if self._kv is None:
            return len(self._from_file()) - self.job.model.bias
        tables = self._kv.tables()
        if self._table not in tables:
            raise Invalid(f"no table {self._table!r} at {self._where} (tables: {', '.join(sorted(tables)) or 'none'})")
        return tables[self._table].span - self.job.model.bias

    def look(self) -> EvaluationResult:
        steps = None
        if self._address:
            with contextlib.closing(look_at(self._address, self._safety)) as looking, contextlib.suppress(Unanswered):
                course = looking.look().course
                steps = None if course is None else course.steps
        weights = self._from_file() if self._kv is None else self._pulled(self._kv)
        loss, metrics = self._learner.evaluate(self._data.test, weights)
        return EvaluationResult(self._data.test.rows, loss, metrics, steps, self._kv is not None)

    def _pulled(self, kv: KV) -> Values:
        pulled: Any = kv.pull(self._table, slice(None), exact=True).result(_WITHIN)
        if not isinstance(pulled, KeyValues):
            return pulled  # type: ignore[no-any-return]
        weights: Values = np.zeros(kv.tables()[self._table].span, np.float32)
        weights[pulled.keys] = pulled.values  # type: ignore[index]
        return weights

    def _from_file(self) -> Values:
        assert self._kept is not None
        if isinstance(self.job.model, Linear):
            from shoal.models.trained import Trained

            return Trained.load(self._kept).table
        return self._learner.read(self._kept)

    def close(self) -> None:
        if self._kv is not None:
            self._kv.close()

    def __exit__(self, *exception: object) -> None:
        self.close()
