"""A page about a model shows every figure, for any weights, and no line is too long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console, Group

from shoal.cli import query
from shoal.errors import ClusterError, Unanswered
from shoal.inspect.query import SavedModel
from shoal.models.linear import Linear
from shoal.models.trained import Trained
from shoal.views.live_state import POINTS
from shoal.views.query import QueryHistory, QuerySnapshot, facts, line, look, page
from shoal.wire.messages import RunProgress

COURSE = RunProgress(50, 100, 10, 50, False, 500, 12.5, 12.5, 1, 1, "", "", False, {}, {})


def kept(weights: Any) -> SavedModel:
    table = np.append(np.asarray(weights, np.float32), np.float32(0.25))
    return SavedModel(Trained(table, Linear(), len(table) - 1), "runs/x", None)


def shown(seen: QuerySnapshot, width: int = 100, **more: Any) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(Group(*page(seen, width, **more)), soft_wrap=False)
    return capture.get()


def test_a_page_says_how_the_model_is() -> None:
    text = shown(look(kept([0, 1, -3, 0, 2]), 2))
    assert "runs/x  table weights  as its run has left it" in text
    assert "6 weights   4 not zero (66.67%)   3 positive   1 negative" in text
    assert "l1 6.25   l2 3.75   largest 3" in text
    assert "2     -3.0000  ████████████████████████" in text and "4      2.0000  ████████████████" in text


def test_the_histogram_has_negative_weights_on_the_left_and_the_smallest_in_the_middle() -> None:
    lines = shown(look(kept([-4, -4, -4, -0.25, 2, 1]), 0)).splitlines()
    at = next(i for i, one in enumerate(lines) if "in the tallest" in one)
    assert "3 in the tallest" in lines[at]
    assert lines[at + 1] == "  ██"  # three weights of -4: the highest bar
    assert lines[at + 6] == "  ██      ██ ██  ████"
    assert lines[at + 8] == "  -8      ±0.25       8"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize(
    "weights",
    [
        [],
        [0.0, 0.0],
        [-0.0],
        [np.inf, -np.inf, np.nan, 1.0],
        np.ldexp(1.0, range(-140, 127)),
        [1e-45, -1e-45],
        np.random.default_rng(0).normal(size=5_000),
    ],
    ids=["nothing", "zeros", "minus zero", "strange", "all sizes", "tiny", "many"],
)
def test_any_weights_are_shown_at_any_width(weights: Any, width: int) -> None:
    with np.errstate(over="ignore"):
        seen = look(kept(weights), 12)
    history = QueryHistory()
    for second in range(5):
        history.add(seen, float(second))
    text = shown(seen, width, history=history, note="no answer now")
    if width >= 80:
        assert all(len(one) <= width for one in text.splitlines())
    assert "no answer now" in " ".join(text.split())
    assert facts(seen)["weights"] == len(weights) + 1 and line(seen)


def test_weights_that_are_no_numbers_are_told_and_come_first() -> None:
    seen = look(kept([np.nan, 1.0, np.inf]), 2)
    assert "2 weights not finite" in shown(seen)
    assert [one[0] for one in seen.top] == [0, 2]


def test_many_looks_are_thinned_out_over_the_whole_time() -> None:
    history, seen = QueryHistory(), look(kept([1.0]), 0)
    for second in range(10_000):
        history.add(seen, float(second))
    points = history.l2.points
    assert len(points) <= POINTS and points[0][0] < 100 and points[-1][0] > 9_800


# ---------------------------------------------------------------- watching


@dataclass
class Played:
    """A live model that gives prepared answers."""

    answers: Iterator[Any]
    where: str = "ipc://x"
    table: str = "weights"
    live: bool = True
    span: tuple[int, bool] = (3, False)
    closed: bool = field(default=False)

    def ask(self, question: Any, keys: Any = slice(None), *, servers: Any = None, **settings: Any) -> Any:
        return kept([1.0, 2.0]).ask(question, keys, **settings)

    def course(self) -> RunProgress | None:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.structs.replace(COURSE, ended=answer)

    def name(self, key: int, place: int) -> str:
        return str(key)

    def close(self) -> None:
        self.closed = True


def looks(*answers: Any) -> Iterator[tuple[QuerySnapshot, str]]:
    return query._looks(Played(iter(answers)), "ipc://x", 1, 0.0)


def test_a_look_that_is_not_answered_is_said_and_the_next_one_is_shown() -> None:
    gone = Unanswered("look", "coordinator", 2.0)
    notes = [note for _, note in looks(False, gone, False, gone, gone, True)]
    assert [bool(note) for note in notes] == [False, True, False, True, True, False]


def test_who_does_not_answer_three_times_is_gone() -> None:
    gone = Unanswered("look", "coordinator", 2.0)
    with pytest.raises(ClusterError, match="nobody answers at ipc://x any more"):
        list(looks(False, gone, gone, gone))
    with pytest.raises(Unanswered):
        list(looks(gone))  # it never responded
