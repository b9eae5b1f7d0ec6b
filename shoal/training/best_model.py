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
from shoal.models.learner import Learner
from shoal.models.trained import facts_of
from shoal.nodes.evaluator import Judgement


class BestModel:
    """One file, written by whoever judges, on the thread that judges."""

    def __init__(self, path: Path, learner: Learner, listener: Callable[[RunEvent], None]) -> None:
        self._path, self._learner, self._listener = path, learner, listener
        self._warned = False

    def write(self, judged: Judgement) -> None:
        found = {"number": judged.number, "loss": judged.loss, "metrics": judged.metrics}
        try:
            self._learner.keep(judged.weights).save(self._path, judged=msgspec.json.encode(found).decode())
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._listener(Warned(seconds=0.0, what=f"cannot write {self._path.name}: {error.strerror}"))

    def read(self) -> Judgement | None:
        """None if there is none, or it is damaged: the next one is the best."""
        try:
            weights = self._learner.read(self._path)
            found = msgspec.json.decode(facts_of(self._path)["judged"])
            return Judgement(int(found["number"]), weights, float(found["loss"]), dict(found["metrics"]))
        except (Invalid, msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None
