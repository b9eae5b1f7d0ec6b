"""A PyTorch loop trains on the servers.

The workers are threads here, which behave like processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import BadValues, Invalid

torch = pytest.importorskip("torch")

from shoal.torch.loop import ServerLoop, distribute  # noqa: E402
from shoal.torch.rank import Place  # noqa: E402

OPTIMIZERS: list[tuple[str, Callable[..., Any]]] = [
    ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
    ("decay", lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
    ("momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01)),
    ("nesterov", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    ("adagrad", lambda p: torch.optim.Adagrad(p, lr=0.1)),
    ("rmsprop", lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, weight_decay=0.01)),
    ("adam", lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01)),
    ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01)),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[shoal.Cluster]:
    with shoal.local(servers=2) as one:
        yield one


class Net(torch.nn.Module):
    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, hidden, bias=False)  # batch-norm has a bias
        self.norm = torch.nn.BatchNorm1d(hidden)
        self.second = torch.nn.Linear(hidden, 3)

    def forward(self, rows: Any) -> Any:
        return self.second(torch.relu(self.norm(self.first(rows))))


def net(seed: int = 0, hidden: int = 6) -> Any:
    torch.manual_seed(seed)
    return Net(hidden)


def rows(seed: int = 1, count: int = 32) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    given = torch.randn(count, 5, generator=generator)
    return given, (given[:, 0] > 0).long() + (given[:, 1] > 0).long()


def step(model: Any, optimizer: Any, given: tuple[Any, Any]) -> float:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(given[0]), given[1])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def weights(model: Any) -> Any:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).numpy()


def together(*works: Callable[[], Any]) -> list[Any]:
    """Runs each in a thread of its own; returns their results, or raises the first error."""
    found: list[Any] = [None] * len(works)

    def run(place: int, work: Callable[[], Any]) -> None:
        try:
            found[place] = work()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


@pytest.mark.variants(
    slow=["nesterov-<lambda>", "adagrad-<lambda>", "rmsprop-<lambda>", "adam-<lambda>", "adamw-<lambda>"]
)
@pytest.mark.parametrize(("name", "make"), OPTIMIZERS)
def test_one_worker_makes_the_steps_of_plain_pytorch(
    cluster: shoal.Cluster, name: str, make: Callable[..., Any]
) -> None:
    plain, ours = net(), net()
    by_hand, served = make(plain.parameters()), make(ours.parameters())
    served = distribute(ours, served, name=name, place=Place(cluster, 0, 1))
    for seed in range(5):
        assert step(plain, by_hand, rows(seed)) == pytest.approx(step(ours, served, rows(seed)), abs=1e-5)
    np.testing.assert_allclose(weights(ours), weights(plain), atol=1e-5)


def test_a_large_model_has_long_rows_and_makes_the_same_steps(cluster: shoal.Cluster) -> None:
    plain = torch.nn.Linear(5, 13_200, bias=False)
    ours = torch.nn.Linear(5, 13_200, bias=False)
    ours.load_state_dict(plain.state_dict())
    by_hand, served = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (plain, ours))
    served = distribute(ours, served, name="large", place=Place(cluster, 0, 1))
    for seed in range(2):
        step(plain, by_hand, rows(seed))
        step(ours, served, rows(seed))
    np.testing.assert_allclose(weights(ours), weights(plain), atol=1e-5)
    table = cluster.client().tables()["large"]
    assert table.width == 256
    assert table.span == 258  # 66,000 numbers, padded to full rows


def test_in_sync_two_workers_make_the_steps_of_one_with_both_batches(cluster: shoal.Cluster) -> None:
    def work(rank: int) -> Any:
        model = torch.nn.Linear(5, 3)
        optimizer = distribute(
            model, torch.optim.Adam(model.parameters(), lr=0.01), sync=True, name="both", place=Place(cluster, rank, 2)
        )
        first = weights(model)
        for seed in range(4):
            step(model, optimizer, rows(10 * seed + rank))
        optimizer.finish()
        return first, weights(model)

    (first, mine), (other, theirs) = together(lambda: work(0), lambda: work(1))
    np.testing.assert_array_equal(first, other)  # they start equal
    np.testing.assert_array_equal(mine, theirs)  # and stay equal
    plain = torch.nn.Linear(5, 3)
    with torch.no_grad():
        plain.weight.copy_(torch.from_numpy(first[:15].reshape(3, 5)))
        plain.bias.copy_(torch.from_numpy(first[15:]))
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    for seed in range(4):
        halves = [rows(10 * seed + rank) for rank in range(2)]
        step(plain, optimizer, (torch.cat([x for x, _ in halves]), torch.cat([y for _, y in halves])))
    np.testing.assert_allclose(weights(plain), mine, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"max_delay": 1}])
def test_without_sync_every_step_of_every_worker_is_an_update(cluster: shoal.Cluster, settings: dict[str, Any]) -> None:
    name = f"each-{settings}"

    def work(rank: int) -> tuple[float, float]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = distribute(model, optimizer, name=name, place=Place(cluster, rank, 2), **settings)
        losses = [step(model, optimizer, rows(seed)) for seed in range(20)]
        optimizer.finish()
        return losses[0], losses[-1]

    for before, after in together(lambda: work(0), lambda: work(1)):
        assert after < before
    facts = cluster.client().stats(name)
    assert facts["counted"] == 2 * 20 * len(facts["servers"])


def test_in_sync_nobody_waits_for_a_worker_that_is_gone(cluster: shoal.Cluster) -> None:
    met = threading.Barrier(2)

    def work(rank: int) -> int:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = distribute(model, optimizer, sync=True, name="gone", place=Place(cluster, rank, 2))
        step(model, optimizer, rows())
        met.wait()
        if rank == 0:
            optimizer._crew.close()  # like a process that ends
            return 1
        for seed in range(3):
            step(model, optimizer, rows(seed))
        optimizer.finish()
        return int(optimizer.steps)

    assert together(lambda: work(0), lambda: work(1)) == [1, 4]


def test_buffers_become_the_mean_over_the_workers(cluster: shoal.Cluster) -> None:
    def work(rank: int) -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = distribute(model, optimizer, name="buffers", place=Place(cluster, rank, 2))
        step(model, optimizer, rows(rank))
        own = model.norm.running_mean.clone()
        optimizer.average_buffers()
        return own, model.norm.running_mean

    (a, mean), (b, other) = together(lambda: work(0), lambda: work(1))
    assert not torch.equal(a, b)
    torch.testing.assert_close(mean, (a + b) / 2)
    torch.testing.assert_close(other, mean)


def test_a_gradient_that_is_not_finite_is_refused_and_the_step_is_not_counted(cluster: shoal.Cluster) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distribute(model, optimizer, sync=True, name="nan", place=Place(cluster, 0, 1))
    assert isinstance(optimizer, ServerLoop)
    before = weights(model)
    model(rows()[0]).sum().backward()
    model.second.weight.grad[0, 0] = float("nan")
    with pytest.raises(BadValues, match=r"gradient of second.weight is not finite .* nothing was sent.*clip"):
        optimizer.step()
    np.testing.assert_array_equal(weights(model), before)
    step(model, optimizer, rows())  # the next step takes its place
    assert optimizer.steps == 1


def test_a_changed_learning_rate_is_not_ignored_in_silence(cluster: shoal.Cluster) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distribute(model, optimizer, name="rate", place=Place(cluster, 0, 1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(model, optimizer, rows())
    schedule.step()
    with pytest.raises(Invalid, match=r"lr is 0.01 now and was 0.1 .* leave the scheduler out, and take"):
        step(model, optimizer, rows())


def test_parameters_that_are_freed_or_added_later_are_not_left_out_in_silence(cluster: shoal.Cluster) -> None:
    model = net()
    model.first.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distribute(model, optimizer, name="later", place=Place(cluster, 0, 1))
    step(model, optimizer, rows())
    model.first.requires_grad_(True)
    with pytest.raises(Invalid, match=r"requires_grad of first.weight was changed: set it before"):
        step(model, optimizer, rows())
    model.first.requires_grad_(False)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(Invalid, match="another group of parameters"):
        step(model, optimizer, rows())


def test_models_that_differ_between_workers_are_refused(cluster: shoal.Cluster) -> None:
    place = Place(cluster, 0, 4)
    model = net()
    distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), name="differ", place=place)
    wider = net(hidden=7)
    with pytest.raises(Invalid, match=r"differs between the workers \(first.weight 7x5 here, first.weight 6x5 there\)"):
        distribute(wider, torch.optim.SGD(wider.parameters(), lr=0.1), name="differ", place=Place(cluster, 1, 4))
    deeper = torch.nn.Sequential(net())
    with pytest.raises(Invalid, match=r"0.first.weight 6x5 here, first.weight 6x5 there"):
        distribute(deeper, torch.optim.SGD(deeper.parameters(), lr=0.1), name="differ", place=Place(cluster, 2, 4))
    other = net()
    with pytest.raises(Invalid, match=r"update differs between workers .* the same settings"):
        distribute(other, torch.optim.SGD(other.parameters(), lr=0.2), name="differ", place=Place(cluster, 3, 4))


def test_frozen_parameters_stay_and_must_be_the_same_everywhere(cluster: shoal.Cluster) -> None:
    def frozen(seed: int) -> Any:
        model = net(seed)
        model.first.requires_grad_(False)
        return model

    model = frozen(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distribute(model, optimizer, name="frozen", place=Place(cluster, 0, 2))
    before = model.first.weight.clone(), model.second.weight.clone()
    step(model, optimizer, rows())
    assert torch.equal(model.first.weight, before[0])
    assert not torch.equal(model.second.weight, before[1])
    other = frozen(1)
    with pytest.raises(Invalid, match=r"first.weight 6x5 \(not trained, checksum .*torch.manual_seed"):
        distribute(other, torch.optim.SGD(other.parameters(), lr=0.1), name="frozen", place=Place(cluster, 1, 2))


def test_tied_and_half_precision_parameters_are_trained(cluster: shoal.Cluster) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 5, bias=False), torch.nn.Linear(5, 5, bias=False)).bfloat16()
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = distribute(model, optimizer, name="tied", place=Place(cluster, 0, 1))
    before = model[0].weight.detach().clone()
    model(rows()[0].bfloat16()).square().mean().backward()
    optimizer.step()
    assert model[1].weight is model[0].weight
    assert not torch.equal(model[0].weight, before)
    assert cluster.client().stats("tied")["rows"] == 25


def test_what_cannot_be_distributed_is_refused_with_the_next_move() -> None:
    model, place = net(), Place("ipc:///nowhere", 0, 1)
    groups = [{"params": [model.first.weight], "lr": 1.0}, {"params": [model.second.weight], "lr": 2.0}]
    stepped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, stepped, rows())
    double = net().double()
    for culprit, optimizer, words in (
        (model, torch.optim.SGD(groups), "2 groups of parameters.*one group"),
        (model, torch.optim.LBFGS(model.parameters()), "LBFGS has no equivalent.*take one of SGD"),
        (model, torch.optim.Adam(model.parameters(), amsgrad=True), "amsgrad=True.*leave amsgrad out"),
        (model, torch.optim.SGD(model.parameters(), lr=0.1, maximize=True), "leave maximize out"),
        (model, stepped, "before the first"),
        (model, torch.optim.SGD(double.parameters(), lr=0.1), "lacks: give it model.parameters"),
        (double, torch.optim.SGD(double.parameters(), lr=0.1), r"float64, .* call model.float\(\)"),
    ):
        with pytest.raises(Invalid, match=words):
            distribute(culprit, optimizer, place=place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(Invalid, match="exclude each other"):
        distribute(model, optimizer, sync=True, max_delay=3, place=place)


def test_values_may_travel_in_half_the_bytes(cluster: shoal.Cluster) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distribute(model, optimizer, wire="bfloat16", name="half", place=Place(cluster, 0, 1))
    losses = [step(model, optimizer, rows()) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert cluster.client().tables()["half"].wire == "bfloat16"


def test_a_server_that_took_part_of_the_model_with_it_is_told_with_the_next_move() -> None:
    from shoal.errors import RunFailed
    from shoal.wire.effects import ProcessEnd

    with shoal.local(servers=2) as own:
        model = net()
        optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), place=Place(own, 0, 1))
        step(model, optimizer, rows())
        own._coordinator.tell(ProcessEnd("server-1", "seen to end"))  # type: ignore[attr-defined]
        with pytest.raises(RunFailed, match=r"server-1 is gone, .* the only copy .*--copies 2"):
            while True:
                step(model, optimizer, rows())


def test_without_pytorch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import shoal.torch

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(shoal.torch), "distribute", raising=False)
    with pytest.raises(Invalid, match=r"shoal.torch needs PyTorch, .* pip install 'shoal\[torch\]'"):
        shoal.torch.distribute  # noqa: B018


def test_without_a_launcher_it_is_plain_pytorch_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHOAL_ADDRESS", raising=False)
    plain, ours = net(), net()
    by_hand = torch.optim.Adam(plain.parameters(), lr=0.01)
    optimizer = distribute(ours, torch.optim.Adam(ours.parameters(), lr=0.01))
    assert "no servers, so this is plain PyTorch" in capsys.readouterr().err
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # works without servers
    for seed in range(3):
        assert step(plain, by_hand, rows(seed)) == pytest.approx(step(ours, optimizer, rows(seed)))
        for group in by_hand.param_groups:
            group["lr"] *= 0.1
        schedule.step()
    optimizer.average_buffers()
    optimizer.finish()
    assert (optimizer.rank, optimizer.world, len(optimizer.sampler(range(10)))) == (0, 1, 10)
    assert optimizer.state_dict()["state"]
    assert capsys.readouterr().err.count("lr is 0.001 now and was 0.01; under shoal launch that is refused: leave") == 1


def test_a_bad_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ADDRESS", "ipc:///somewhere")
    for rank, words in (("7", "rank=7 of 2 workers"), ("one", "no numbers.*shoal launch")):
        monkeypatch.setenv("SHOAL_RANK", rank)
        monkeypatch.setenv("SHOAL_WORLD", "2")
        with pytest.raises(Invalid, match=words):
            Place.here()


def test_the_same_name_twice_is_refused(cluster: shoal.Cluster) -> None:
    place = Place(cluster, 0, 1)
    model = net()
    first = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), name="once", place=place)
    with pytest.raises(Invalid, match="another name="):
        distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), name="once", place=place)
    first.finish()
