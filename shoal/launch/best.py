"""The best model of a run so far, on disk: whatever happens to the run, it is there.

It is a model file as any other, and says besides when it was judged and what was found. It is written whole or not at all; a
disk that is full is a warning, once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal.errors import Invalid
from shoal.events import RunEvent, Warned
from shoal.models.linear import Linear
from shoal.models.trained import Trained, facts_of
from shoal.nodes.evaluator import Judged


class Best:
    """One file, written by whoever judges, on the thread that judges."""

    def __init__(self, path: Path, model: Linear, features: int, listener: Callable[[RunEvent], None]) -> None:
        self._path, self._model, self._features, self._listener = path, model, features, listener
        self._warned = False

    def write(self, judged: Judged) -> None:
        found = {"number": judged.number, "loss": judged.loss, "metrics": judged.metrics}
        try:
            model = Trained(judged.weights, self._model, self._features)
            model.save(self._path, judged=msgspec.json.encode(found).decode())
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._listener(Warned(seconds=0.0, what=f"cannot write {self._path.name}: {error.strerror}"))

    def read(self) -> Judged | None:
        """None if there is none, or it is damaged: the next one is the best."""
        try:
            model = Trained.load(self._path)
            found = msgspec.json.decode(facts_of(self._path)["judged"])
            if (model.linear, model.features) != (self._model, self._features):
                return None
            return Judged(int(found["number"]), model.table, float(found["loss"]), dict(found["metrics"]))
        except (Invalid, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None
