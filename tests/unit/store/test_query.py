"""A question is registered, refused, run over pieces, and its results are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.errors import Invalid
from shoal.keys import KeyRange, mixed
from shoal.store import query as door
from shoal.store.query import (
    Found,
    Question,
    question,
    question_named,
)
from shoal.store.table.table import ServerTable, row_views
from shoal.tables import Dense, Normal, Sparse


@pytest.fixture(autouse=True)
def _forgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(door, "_questions", {})
    yield


def cut(weights: Any, most: int = 3) -> Iterator[tuple[Any, Any]]:
    rows = np.asarray(weights, np.float32).reshape(len(weights), 1)
    for at in range(0, len(rows), most):
        piece = rows[at : at + most]
        yield np.arange(at, at + len(piece), dtype=np.uint64), piece


def asked(one: Question, weights: Any, **settings: float) -> Any:
    given = one.settings(settings)
    return one.whole([one.ask(cut(weights), given)], given)


def test_a_question_is_known_by_the_name_of_its_function_and_takes_settings() -> None:
    @question(join="sum", above=0.5)
    def heavy(keys: Any, weights: Any, settings: Any) -> Any:
        return (np.abs(weights) > settings.above).sum()

    assert question_named("heavy") is heavy
    assert asked(heavy, [0.1, -2, 0.7, 3, 1.5]).numbers.tolist() == [4]
    assert asked(heavy, [0.1, -2, 0.7, 3, 1.5], above=1).numbers.tolist() == [3]


def test_pieces_are_put_together_number_by_number() -> None:
    @question(join=("sum", "min", "max"))
    def extent(keys: Any, weights: Any, settings: Any) -> Any:
        return [len(weights), weights.min(), weights.max()]

    assert asked(extent, [3, 1, 4, 1, 5, 9, -2, 6]).numbers.tolist() == [8, -2, 9]


def test_keys_with_values_are_put_one_after_another_and_sorted() -> None:
    @question()
    def negative(keys: Any, weights: Any, settings: Any) -> Any:
        below = weights[:, 0] < 0
        return below.sum(), keys[below][::-1], weights[below][::-1]

    found = asked(negative, [3, -1, -4, 1, -5, 9, -2])
    assert (found.numbers.tolist(), found.keys.tolist(), found.values.ravel().tolist()) == (
        [4], [1, 2, 4, 6], [-1, -4, -5, -2]
    )  # fmt: skip


def test_the_largest_are_kept_by_size_and_of_equals_the_first_by_key() -> None:
    @question(join="largest", k=3)
    def rows(keys: Any, weights: Any, settings: Any) -> Any:
        return (), keys, weights

    assert asked(rows, [1, -5, 2, 5, 5, 0, 5]).keys.tolist() == [1, 3, 4]
    assert asked(rows, [1, -5, 2], k=1).keys.tolist() == [1]  # one piece is cut, too


def test_a_function_of_ones_own_may_put_the_pieces_together() -> None:
    def both(found: list[Found], settings: Any) -> Found:
        return Found(np.concatenate([one.numbers for one in found]))

    @question(join=both, finish=lambda found, settings: found.numbers.tolist())
    def firsts(keys: Any, weights: Any, settings: Any) -> Any:
        return weights[0]

    assert asked(firsts, [7, 1, 2, 8, 1, 2, 9]) == [7, 8, 9]


def test_where_there_are_no_rows_nothing_is_found_and_the_function_is_not_called() -> None:
    @question()
    def never(keys: Any, weights: Any, settings: Any) -> Any:
        raise AssertionError

    found = asked(never, [])
    assert not found and len(found.numbers) == 0


def test_numba_compiles_a_question() -> None:
    from numba import njit

    def total(keys: Any, weights: Any, settings: Any) -> Any:
        found = 0.0
        for i in range(len(keys)):
            found += float(keys[i]) * weights[i, 0]
        return found

    made = question()(njit(total))
    assert question_named("total") is made
    table = ServerTable(Sparse(keys=100, width=2), [KeyRange(0, 100)])
    table.push(np.array([3, 50], np.uint64), np.array([[2, 0], [1, 0]], np.float32))
    assert made.ask(row_views(table, KeyRange(0, 100), 64), made.settings({})).numbers.tolist() == [56]


# ---------------------------------------------------------------- failures


def broken(keys: Any, weights: Any, settings: Any) -> Any:
    return 1 / 0


def leaving(keys: Any, weights: Any, settings: Any) -> Any:
    raise SystemExit(3)


class Own(BaseException):
    """An exception that no `except Exception` catches."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise Own


def interrupting(keys: Any, weights: Any, settings: Any) -> Any:
    raise KeyboardInterrupt


def revolting(keys: Any, weights: Any, settings: Any) -> Any:
    raise Own("enough")


def unprintable(keys: Any, weights: Any, settings: Any) -> Any:
    raise Unprintable


def unwritable(keys: Any, weights: Any, settings: Any) -> Any:
    raise OSError("no file \udc80 here")


def imaginary(keys: Any, weights: Any, settings: Any) -> Any:
    return np.array([1 + 2j])


def nothing(keys: Any, weights: Any, settings: Any) -> Any:
    return None


def writing(keys: Any, weights: Any, settings: Any) -> Any:
    weights[0] = 7
    return 0


def speaking(keys: Any, weights: Any, settings: Any) -> Any:
    return "many"


def shapeless(keys: Any, weights: Any, settings: Any) -> Any:
    return 0, keys, weights[:1]


def endless(keys: Any, weights: Any, settings: Any) -> Any:
    return np.zeros(limits.CALL_NUMBERS + 1)


def uneven(keys: Any, weights: Any, settings: Any) -> Any:
    return np.zeros(len(keys))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (broken, "question 'broken' failed: ZeroDivisionError: division by zero (test_query.py, line"),
        (leaving, "question 'leaving' failed: SystemExit: 3"),
        (interrupting, "question 'interrupting' failed: KeyboardInterrupt (test_query.py, line"),
        (revolting, "question 'revolting' failed: Own: enough"),
        (unprintable, "question 'unprintable' failed: Unprintable: it cannot be printed (test_query.py, line"),
        (unwritable, "question 'unwritable' failed: OSError: no file ? here"),
        (imaginary, "complex128 is no number"),
        (nothing, "None is no number"),
        (writing, "read-only"),
        (speaking, "return numbers, or (numbers, keys, values)"),
        (shapeless, "one row for each key is needed"),
        (endless, "an answer has at most 16,384"),
        (uneven, "always return as many"),
    ],
)
def test_a_function_that_does_wrong_is_refused_with_the_place_and_changes_nothing(
    function: Callable[..., Any], said: str
) -> None:
    made = question()(function)
    table = ServerTable(Dense(rows=10, initial=Normal(1.0)), [KeyRange(0, 10)])
    before = table.pull(KeyRange(0, 10))
    # In the main thread Ctrl-C belongs to the user.
    with ThreadPoolExecutor(1) as server, pytest.raises(Invalid) as refused:
        server.submit(made.ask, row_views(table, KeyRange(0, 10), 4), made.settings({})).result()
    assert said in str(refused.value)
    str(refused.value).encode()
    assert (table.pull(KeyRange(0, 10)) == before).all()


@pytest.mark.parametrize("at", ["join", "finish"])
@pytest.mark.parametrize("raised", [Own("enough"), Unprintable(), SystemExit(3), OSError("\udc80")])
def test_what_puts_things_together_and_fails_is_an_answer_too(at: str, raised: BaseException) -> None:
    def fails(found: Any, settings: Any) -> Any:
        raise raised

    made = question(**{at: fails})(broken)  # type: ignore[arg-type]
    some = Found(np.ones(1))
    with (
        ThreadPoolExecutor(1) as server,
        pytest.raises(Invalid, match=f"putting it together failed: {type(raised).__name__}"),
    ):
        server.submit(made.whole, [some, some], made.settings({})).result()


def test_ctrl_c_in_the_main_thread_is_the_users() -> None:
    made = question()(interrupting)
    with pytest.raises(KeyboardInterrupt):
        made.ask(cut(np.ones(2), 2), made.settings({}))


def test_an_answer_that_grows_piece_by_piece_is_bounded() -> None:
    @question()
    def everything(keys: Any, weights: Any, settings: Any) -> Any:
        return 0, keys, weights

    given = everything.settings({})
    with pytest.raises(Invalid, match="return fewer"):
        everything.ask(cut(np.ones(limits.CALL_KEYS + 1), 10_000), given)


def test_what_is_found_is_a_copy_of_the_rows() -> None:
    @question()
    def everything(keys: Any, weights: Any, settings: Any) -> Any:
        return 0, keys, weights

    table = ServerTable(Dense(rows=4), [KeyRange(0, 4)])
    found = everything.ask(row_views(table, KeyRange(0, 4), 64), everything.settings({}))
    table.push(KeyRange(0, 4), np.ones(4, np.float32))
    assert found.values.ravel().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"join": "mean"}, "needs 'sum', 'min', 'max', 'largest'"),
        ({"join": ("sum", "largest")}, "needs 'sum', 'min', 'max', or"),
        ({"join": 3}, "needs a word, a tuple of words, or a function"),
        ({"join": "largest"}, "k: question(join='largest', k=10)"),
        ({"above": "x"}, "needs a finite number"),
        ({"servers": 1}, "another name is needed"),
        ({"_x": 1}, "without leading underscore"),
        ({"lambda": 1}, "no Python keyword"),
        ({"a b": 1}, "needs a name"),
    ],
)
def test_a_question_that_cannot_be_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        question(**settings)(broken)
    assert said in str(refused.value)


def test_names_are_ones_own() -> None:
    def norms(keys: Any, weights: Any, settings: Any) -> Any:
        return 0

    def short(keys: Any, weights: Any) -> Any:
        return 0

    with pytest.raises(Invalid, match="one of shoal's own"):
        question()(norms)
    with pytest.raises(Invalid, match="needs \\(keys, weights, settings\\)"):
        question()(short)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="a function made by `def`"):
        question()(len)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="did you mean 'norms'"):
        question_named("norm")
    with pytest.raises(Invalid, match="has no setting 'l'"):
        question_named("top").settings({"l": 3})
    with pytest.raises(Invalid, match="an answer has 1 to"):
        question_named("top").settings({"k": 2.5})


# ---------------------------------------------------------------- rows, in pieces


def test_the_rows_of_a_dense_range_come_with_their_keys_whatever_lies_between_the_segments() -> None:
    table = ServerTable(Dense(rows=100, width=2), [KeyRange(10, 20), KeyRange(50, 60)])
    table.push(KeyRange(0, 100), np.arange(40, dtype=np.float32).reshape(20, 2))
    found = list(row_views(table, KeyRange(15, 55), 6))
    assert [keys.tolist() for keys, _ in found if keys is not None] == [[15, 16, 17], [18, 19], [50, 51, 52], [53, 54]]
    assert np.concatenate([rows for _, rows in found])[:, 0].tolist() == [10, 12, 14, 16, 18, 20, 22, 24, 26, 28]


def test_the_rows_of_a_sparse_range_are_the_live_ones_and_hashed_keys_are_the_users() -> None:
    table = ServerTable(Sparse(keys=100), [KeyRange(0, 100)])
    table.push(np.array([3, 40, 99], np.uint64), np.array([1, 2, 3], np.float32))
    ((keys, rows),) = row_views(table, KeyRange(4, 100), 64)
    assert keys is not None and (keys.tolist(), rows.ravel().tolist()) == ([40, 99], [2, 3])
    assert list(row_views(table, KeyRange(5, 40), 64)) == []
    hashed = ServerTable(Sparse(hashed=True), [KeyRange(0, limits.KEY_LIMIT)])
    stored = np.sort(mixed(np.array([3, 40, 99], np.uint64)))
    hashed.push(stored, np.array([1, 2, 3], np.float32))
    ((ids, _),) = row_views(hashed, KeyRange(0, limits.KEY_LIMIT), 64)
    assert ids is not None and sorted(ids.tolist()) == [3, 40, 99]
    assert [keys for keys, _ in row_views(table, KeyRange(0, 100), 1, named=False)] == [None] * 3
