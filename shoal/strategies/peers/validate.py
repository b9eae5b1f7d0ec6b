"""What can be said at all in a run: a word with anything else in it is refused where it comes in, by everybody alike.

A word is heard by all or by none, and what it changes is added to everybody's model. So one key beyond the model, one number that is
not finite or slots that do not exist would end the whole run, not the one that said so. Whether a word fits is seen from the word and
the run's own facts alone, never from what was heard before: all come to the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal import limits
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays, tag_of

_MOST = 1 << 50  # of what is added up: bytes, microseconds, numbers of contributions and of versions


@dataclass(frozen=True, slots=True)
class MessageCheck:
    """Of one run."""

    keys: int  # weights; 0: not known
    slots: int  # at most
    batch: int
    parts: int  # of the weights, where they are owned

    def misfit(self, word: p.Word, arrays: Arrays) -> str:
        """What is wrong with it; empty: nothing."""
        match word:
            case p.Learned():
                return self._learned(word) or self.change(arrays)
            case p.Owned(parts):
                wrong = any(part >= self.parts or max(upto.values(), default=0) > _MOST for part, upto in parts)
                return "parts that there are not" if wrong else self.change(arrays)
        if arrays:
            return "a change with a word that has none"
        match word:
            case p.SlotsDealt(slots, again):
                fits = all(self._are_slots(runs) for _, runs in slots) and again <= self.slots
            case p.EvaluationDone():
                numbers = word.seconds, word.now
                fits = word.done <= self.slots and word.rows <= self.slots * self.batch and word.number <= _MOST
                fits = fits and all(map(math.isfinite, numbers)) and len(word.patience) in (0, 4)
            case p.PeerLeaving():
                fits = self._are_slots(word.back)
            case p.OwnersChanged(version, lives, others):
                fits = len(lives) == self.parts and len(others) <= limits.PEERS and version <= _MOST
            case p.Yielded(version):
                fits = version <= _MOST
            case _:
                return ""
        return "" if fits else f"{tag_of(type(word))} with numbers that cannot be"

    def change(self, arrays: Arrays) -> str:
        """Of weights; none is one, too."""
        if not arrays:
            return ""
        if len(arrays) != 2 or len(arrays[0]) != len(arrays[1]):
            return f"{' and '.join(str(len(one)) for one in arrays)} numbers: one value for each key is needed"
        keys, values = arrays
        if self.keys and len(keys) and int(keys.max()) >= self.keys:
            return f"key {keys.max()}: this model has {self.keys:,} weights"
        with np.errstate(invalid="ignore"):  # a sum of doubles: singles that are finite never leave it
            finite = math.isfinite(float(values.sum(dtype=np.float64)))
        return "" if finite else "values that are not finite"

    def _learned(self, word: p.Learned) -> str:
        counted = sum(stop - first for first, stop in word.slots)
        numbers = (*word.spent, *word.moved, word.part)
        if not self._are_slots(word.slots) or word.rows > counted * self.batch:
            return "slots that there are not"
        return "" if math.isfinite(word.loss) and max(numbers) <= _MOST else "figures that cannot be"

    def _are_slots(self, runs: Sequence[p.Run]) -> bool:
        return all(first < stop <= self.slots for first, stop in runs)
