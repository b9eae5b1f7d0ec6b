"""When rows that are zero again are let go: a function of the change that is made, so that all copies do the same.

A primary's log may say ``evict``: then, in the segments that it names. A table that is updated in steps lets rows go with the last step of a
pass, and with its first, second, fourth, eighth step and so on: that depends on nothing but the step, so the model is the same for any
number of servers.
"""

from __future__ import annotations

from shoal.store.server.ledger import Mask, Numbers
from shoal.tables import Sparse, Step
from shoal.tables import Table as Spec


def ends_sweep(apply: Step, version: Numbers) -> Mask:
    """Which of these versions a segment lets rows go at: ends of passes, and powers of two."""
    due: Mask = (version & (version - 1)) == 0
    per_pass = apply.steps_per_pass()
    return due if per_pass is None else due | (version % per_pass == 0)


def swept_by(spec: Spec, kind: str, version: Numbers, segments: Mask) -> Mask | None:
    """The segments in which a change of this kind lets rows go; ``version`` is the one before it."""
    if not isinstance(spec, Sparse) or not spec.evict:
        return None
    if kind == "evict":
        return segments
    if kind != "step" or not isinstance(spec.apply, Step):
        return None
    due: Mask = segments & ends_sweep(spec.apply, version + 1)
    return due if due.any() else None
