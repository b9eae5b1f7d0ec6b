"""The rows of an embedding are on the servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import BadKeys, BadValues, Invalid

torch = pytest.importorskip("torch")

from shoal.torch.embedding import Embedding, EmbeddingBag  # noqa: E402


@pytest.fixture(scope="module")
def kv() -> Iterator[shoal.KV]:
    with shoal.local(servers=2) as cluster:
        yield cluster.client()


def counted(kv: shoal.KV, name: str) -> Any:
    return kv.stats(name)["rows"]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_is_trained_as_one_of_torch(kv: shoal.KV, mode: str) -> None:
    ours = EmbeddingBag(50, 4, mode, name=f"bag-{mode}", update=shoal.SGD(step=0.5), kv=kv)
    plain = torch.nn.EmbeddingBag(50, 4, mode=mode)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor(ours.rows(np.arange(50))))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    flat, offsets = torch.tensor([3, 1, 3, 49, 7, 7]), torch.tensor([0, 2, 2])
    for ids, begin in ((torch.tensor([[3, 1, 3], [49, 7, 7]]), None), (flat, offsets)):
        for bag in (plain, ours):
            bag(ids, begin).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    np.testing.assert_allclose(ours.rows(np.arange(50)), plain.weight.detach().numpy(), atol=1e-6)
    assert counted(kv, f"bag-{mode}") == 4  # rows that were in no batch do not exist


def test_values_weigh_the_rows_of_a_bag(kv: shoal.KV) -> None:
    bag = EmbeddingBag(9, 1, "sum", name="weighed", update=shoal.SGD(step=1.0), initial=shoal.Constant(1.0), kv=kv)
    out = bag(torch.tensor([2, 5]), torch.tensor([0]), torch.tensor([3.0, 0.5]))
    assert out.shape == (1, 1)
    assert float(out.detach()) == 3.5
    out.sum().backward()
    np.testing.assert_allclose(bag.rows([2, 5]).ravel(), [-2.0, 0.5])


def test_any_id_has_a_row_where_they_are_hashed(kv: shoal.KV) -> None:
    table = Embedding(None, 3, name="hashed", initial=shoal.Uniform(-1.0, 1.0, seed=4), kv=kv)
    ids = torch.tensor([[2**62, 5], [5, 0]])
    rows = table(ids)
    assert rows.shape == (2, 2, 3)
    assert torch.equal(rows[0, 1], rows[1, 0])
    assert not torch.equal(rows[0, 0], rows[1, 1])
    rows.sum().backward()
    assert not np.allclose(table.rows([5]), rows[0, 1].detach().numpy())


def test_nothing_is_pushed_in_eval_or_without_gradients(kv: shoal.KV) -> None:
    table = Embedding(10, 2, name="quiet", kv=kv)
    with torch.no_grad():
        table(torch.tensor([1, 2]))
    table.eval()
    table(torch.tensor([1, 2])).sum().backward()
    table.flush()
    assert counted(kv, "quiet") == 0
    table.train()
    table(torch.tensor([1, 2])).sum().backward()
    table.flush()
    assert counted(kv, "quiet") == 2


@pytest.mark.parametrize("count", [None, 1_000])
def test_rows_that_were_kept_begin_another_table(kv: shoal.KV, count: int | None) -> None:
    one = Embedding(count, 3, name=f"kept-{count}", kv=kv)
    last = 999 if count else 2**62
    one(torch.tensor([last, 5, 0, 5])).sum().backward()
    ids, rows = one.all_rows()
    assert ids.tolist() == [0, 5, last]
    np.testing.assert_array_equal(rows.numpy(), one.rows(ids))
    swapped = ids.flip(0), rows.flip(0)
    for _ in range(2):  # the second finds an existing table
        other = EmbeddingBag(count, 3, "sum", name=f"again-{count}", start=swapped, kv=kv)
    np.testing.assert_array_equal(other.rows([5, last, 0]), rows.numpy()[[1, 2, 0]])
    assert counted(kv, other.name) == 3
    # A row that was not saved starts with its initial value, and all rows can be trained.
    for table in (one, other):
        table(torch.tensor([[7, 5]])).sum().backward()
    np.testing.assert_array_equal(one.rows([7]), other.rows([7]))
    assert other.all_rows()[0].tolist() == [0, 5, 7, last]
    assert not np.array_equal(other.rows([5]), rows.numpy()[1:2])


def test_kept_rows_that_cannot_be_are_refused(kv: shoal.KV) -> None:
    for ids, rows, words in (
        ([1, 10], torch.zeros(2, 2), "id 10 of 'not': its ids are 0 to 9"),
        ([1, 1], torch.zeros(2, 2), "are given twice"),
        ([1, 2], torch.zeros(2, 3), r"values have shape \(2, 3\): these keys need \(2, 2\)"),
        ([1], torch.full((1, 2), float("nan")), "not finite"),
    ):
        with pytest.raises(Invalid, match=words):
            Embedding(10, 2, name="not", start=(torch.tensor(ids), rows), kv=kv)
    assert "not" not in kv.tables()


def test_a_state_dict_without_the_rows_says_so(kv: shoal.KV, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(Embedding(10, 2, name="left out", kv=kv), torch.nn.Linear(2, 1))
    for _ in range(2):
        assert list(model.state_dict()) == ["1.weight", "1.bias"]
    assert capsys.readouterr().err.count("rows of 'left out' are on the servers and not in this state_dict: save") == 1


def test_no_ids_at_all_are_fine(kv: shoal.KV) -> None:
    table = Embedding(10, 2, name="empty", kv=kv)
    assert table(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 2)


def test_bad_ids_gradients_and_settings_are_refused(kv: shoal.KV) -> None:
    table = Embedding(10, 2, name="bad", kv=kv)
    with pytest.raises(BadKeys, match="key 10 of table 'bad': its keys are 0 to 9"):
        table(torch.tensor([10]))
    with pytest.raises(Invalid, match="whole numbers are needed"):
        table(torch.tensor([1.5]))
    with pytest.raises(BadValues, match="gradient of 'bad' is not finite"):
        (table(torch.tensor([1])) * float("inf")).sum().backward()
    with pytest.raises(Invalid, match=r"'bad' is there with width=2, and this one has 3: give all workers the same"):
        Embedding(10, 3, name="bad", kv=kv)
    with pytest.raises(Invalid, match="needs 'sum' or 'mean'"):
        EmbeddingBag(10, 3, "max", name="max", kv=kv)


def test_without_a_launcher_rows_are_kept_in_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.torch import embedding

    monkeypatch.delenv("SHOAL_ADDRESS", raising=False)
    monkeypatch.setattr(embedding, "_shared", [])
    monkeypatch.setattr(embedding, "_private", [])
    first, second = Embedding(10, 2, name="a"), Embedding(10, 2, name="b")
    assert capsys.readouterr().err.count("rows are kept in this process") == 1
    assert first._kv is second._kv
    first(torch.tensor([1])).sum().backward()
    first.flush()
    embedding._private[0].close()
