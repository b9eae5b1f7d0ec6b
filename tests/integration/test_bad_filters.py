"""A user's filter that fails, at a client or a server, is named to the caller.

The client and all servers keep working.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal import filters
from shoal.errors import BadFilter, BadValues
from shoal.filters import Compressor, Quantizer, Sparsifier
from shoal.launch.cluster import Cluster
from tests.support import PATIENCE

NO_HEAD = np.empty(0, np.uint8)


class Own(BaseException):
    """An exception that no `except Exception` catches."""

    def __str__(self) -> str:
        raise Own


class failing_choice(Sparsifier):
    def choose(self, values: Any, seed: int) -> Any:
        raise Own


class wordy_choice(Sparsifier):
    def choose(self, values: Any, seed: int) -> Any:
        return ["no"] * len(values)


class writing_choice(Sparsifier):
    def choose(self, values: Any, seed: int) -> Any:
        values[:] = 0
        return np.ones(len(values), np.bool_)


class _Half(Quantizer):
    item = 2

    def shorten(self, values: Any, seed: int | None) -> Any:
        return values.astype(np.float16), NO_HEAD

    def size(self, rows: int, width: int) -> Any:
        return 2 * rows * width

    def restore(self, packed: Any, rows: int, width: int) -> Any:
        return packed.view(np.float16).astype(np.float32).reshape(rows, width)


class leaving_at_size(_Half):
    def size(self, rows: int, width: int) -> Any:
        raise SystemExit(3)


class lying_about_size(_Half):
    def size(self, rows: int, width: int) -> Any:
        return 2 * rows * width + 2


class shortening_to_junk(_Half):
    def shorten(self, values: Any, seed: int | None) -> Any:
        return 7


class restoring_nothing(_Half):
    def restore(self, packed: Any, rows: int, width: int) -> Any:
        return None


class unable_to_answer(_Half):
    """A filter that fails on servers only, because only servers shorten without a seed."""

    def shorten(self, values: Any, seed: int | None) -> Any:
        if seed is None:
            raise OSError("no file \udc80")
        return super().shorten(values, seed)


class answering_junk(_Half):
    def shorten(self, values: Any, seed: int | None) -> Any:
        return (values, None) if seed is None else super().shorten(values, seed)


class unreadable_answers(_Half):
    directions = ("pulls",)

    def restore(self, packed: Any, rows: int, width: int) -> Any:
        raise ValueError("what is this?")


class unable_to_press(Compressor):
    def press(self, data: Any, item: int) -> Any:
        raise Own

    def release(self, data: Any, item: int, most: int) -> Any:
        return data


class releasing_nothing(Compressor):
    def press(self, data: Any, item: int) -> Any:
        return data[:1].copy()

    def release(self, data: Any, item: int, most: int) -> Any:
        return None


class writing_press(Compressor):
    def press(self, data: Any, item: int) -> Any:
        data[:] = 0
        return data[:1]

    def release(self, data: Any, item: int, most: int) -> Any:
        return data


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with shoal.local(servers=2, copies=2) as cluster:
        yield cluster


@pytest.fixture
def kv(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("shoal.filters._known", {})
    with cluster.client() as kv:
        yield kv
        # The client still works, and so do all servers.
        kv.create("other", shoal.Sparse(keys=900, filters=[shoal.Int8(), shoal.DeltaKeys()]))
        assert kv.push_pull("other", [1, 800], [1.0, 1.0]).result(PATIENCE).tolist() == [1.0, 1.0]
        kv.drop("other")
        kv.drop("t")


def table(kv: Any, kind: type[Any]) -> None:
    kv.create("t", shoal.Dense(rows=900, filters=[filters.filter()(kind)()]))


@pytest.mark.variants(
    slow=[
        "shortening_to_junk-shortens to int: (codes, head) is needed",
        "restoring_nothing-restores nothing: float32 of shape (900, 1) is needed",
        "unable_to_press-failed to press bytes: Own",
        "releasing_nothing-undoes what came as nothing: an array of uint8 is needed",
        "writing_press-failed to press bytes: ValueError",
    ]
)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (failing_choice, "failed to choose rows: Own: it cannot be printed"),
        (wordy_choice, "answers with shape (900,) of <U2: one truth value for each row"),
        (writing_choice, "failed to choose rows: ValueError: assignment destination is read-only"),
        (leaving_at_size, "failed to say a size: SystemExit: 3"),
        (lying_about_size, "values came in"),
        (shortening_to_junk, "shortens to int: (codes, head) is needed"),
        (restoring_nothing, "restores nothing: float32 of shape (900, 1) is needed"),
        (unable_to_press, "failed to press bytes: Own"),
        (releasing_nothing, "undoes what came as nothing: an array of uint8 is needed"),
        (writing_press, "failed to press bytes: ValueError"),
    ],
)
def test_a_filter_that_fails_on_a_push_is_named_and_nothing_is_counted(kv: Any, kind: type[Any], said: str) -> None:
    table(kv, kind)
    with pytest.raises(BadValues) as refused:
        kv.push("t", slice(0, 900), np.ones(900)).result(PATIENCE)
    assert said in str(refused.value)
    assert not kv.pull("t", slice(0, 900), exact=True).result(PATIENCE).any()
    assert kv.stats("t")["filters"]["left"] == 0


@pytest.mark.parametrize("kind", [unable_to_answer, answering_junk])
def test_a_server_whose_filter_fails_answers_without_it_and_tells(kv: Any, kind: type[Any]) -> None:
    table(kv, kind)
    kv.push("t", slice(0, 900), np.ones(900)).result(PATIENCE)
    assert kv.pull("t", slice(0, 900)).result(PATIENCE).tolist() == [1.0] * 900
    assert kv.push_pull("t", [3, 700], [1.0, 1.0]).result(PATIENCE).tolist() == [2.0, 2.0]
    # The pull fails on two servers, the push_pull on one or both.
    assert kv.stats("t")["filters failed"] >= 3


def test_an_answer_that_cannot_be_read_fails_its_task_and_what_was_pushed_is_counted(kv: Any) -> None:
    table(kv, unreadable_answers)
    for _ in range(2):
        with pytest.raises(
            BadFilter, match=r"'unreadable_answers' failed to restore what came: ValueError: what is this"
        ):
            kv.pull("t", [1, 800]).result(PATIENCE)
    with pytest.raises(BadFilter, match="failed to restore what came"):
        kv.push_pull("t", [1, 800], [1.0, 1.0]).result(PATIENCE)
    assert kv.pull("t", [1, 800], exact=True).result(PATIENCE).tolist() == [1.0, 1.0]


MODULE = """
import os
import shoal
from shoal.filters import Compressor

AT_CLIENT = os.environ.get("TEST_CLIENT") == str(os.getpid())

@shoal.filter(check=0)
class faint(Compressor):
    def check(self):
        if self.settings.check and not AT_CLIENT:
            raise BaseException("not here \\udc80")
    def press(self, data, item):
        if not AT_CLIENT:
            raise KeyboardInterrupt
    def release(self, data, item, most):
        return data
"""


def test_server_processes_outlive_a_filter_that_fails_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faint_filters.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TEST_CLIENT", str(os.getpid()))
    monkeypatch.delitem(sys.modules, "faint_filters", raising=False)
    monkeypatch.setattr("shoal.filters._known", {})
    with shoal.local(servers=1, processes=True, modules=["faint_filters"]) as cluster, cluster.client() as kv:
        import faint_filters  # type: ignore[import-not-found]

        pids = dict(cluster.pids)
        with pytest.raises(shoal.ShoalError, match=r"server-0: BaseException: not here \?"):
            kv.create("bad", shoal.Dense(rows=9, filters=[faint_filters.faint(check=1)]))
        kv.create("t", shoal.Dense(rows=9, filters=[faint_filters.faint()]))
        assert kv.push_pull("t", [1, 8], [1.0, 1.0]).result(PATIENCE).tolist() == [1.0, 1.0]
        assert kv.stats("t")["filters failed"] == 1
        assert cluster.pids == pids
