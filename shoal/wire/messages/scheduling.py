"""Messages of workers and the evaluator to the scheduler of a run."""

from __future__ import annotations

from shoal.wire.messages.base import NO_CLOCK, Count, Numbered, Signed

# slots from the first up to, not including, the second, counted over all passes
Run = tuple[Count, Count]


class Want(Numbered, frozen=True, tag="want"):
    """Worker to coordinator: "these slots are counted, and I have room for more"."""

    incarnation: Count
    more: Count
    counted: list[Run] = []
    back: list[Run] = []  # I shall not compute these: I am leaving
    refused: dict[Count, str] = {}  # slots whose gradient cannot be pushed, and why
    examples: Count = 0  # in the slots counted now
    loss: float = 0.0  # summed over them, each before its own update
    sent: Count = 0  # bytes, in this life
    received: Count = 0
    leaving: bool = False
    holds: list[Run] | None = None  # dealt to me, and none of the above
    spent: list[Count] = []  # microseconds since the last of these, by kind (see nodes.spent)
    spans: list[tuple[Count, Count, Count]] = []  # some: kind, microseconds ago, microseconds long
    filtered: dict[str, list[Count]] = {}  # in this life, see filters.chain.Flow
    left: tuple[float, float] = (0.0, 0.0)  # norms of what filters left for later, and lost
    newer: Count = 0  # slots, dealt again, that read weights after their step


class Deal(Numbered, frozen=True, tag="deal"):
    """Coordinator: "compute these, in this order"."""

    slots: list[Run]
    again: list[Run] = []  # were dealt before, and somebody may wait for them: first
    late: list[Run] = []  # others were faster with these: leave them
    void: list[Count] = []  # nobody can compute these: push them empty
    over: str = ""  # nothing will come any more, and why; or you are asked to leave


class EvaluationReady(Numbered, frozen=True, tag="ready"):
    """Evaluator to coordinator: "I have these weights, this is my result; what next?"."""

    incarnation: Count
    holds: Signed = -1  # the evaluation whose weights are here
    found: Signed = -1  # the one whose loss follows
    loss: float = 0.0
    metrics: dict[str, float | None] = {}
    error: str = ""  # it cannot be evaluated, and why
    spans: list[tuple[Count, Count, Count]] = []  # as in Want
    clock: Signed = NO_CLOCK  # of these weights: later than asked for, if that was past


class EvaluateNow(Numbered, frozen=True, tag="judge"):
    """Coordinator: "evaluate the model now"; or, if the number is negative, "not yet"."""

    number: Signed = -1
    clock: Signed = NO_CLOCK  # as the model is after so many steps, where the table knows steps
    over: bool = False  # this was the last one


SchedulingMessage = Want | Deal | EvaluationReady | EvaluateNow
