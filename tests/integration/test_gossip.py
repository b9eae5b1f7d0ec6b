"""Workers that each have a model average with their neighbours, as documented."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.data.datasets import load
from shoal.data.slots import Slots
from shoal.errors import Invalid
from shoal.events import Evaluated, Gone, Joined, Linked, Progress, Resumed, RunEvent, Saved, Stopped, Warned
from shoal.job import Job
from shoal.models.learner import learner_of
from shoal.settings_tree import changed
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.model import GossipLocalModel, assign_rows
from shoal.testing.watch import Watched, watch
from shoal.training.local_checkpoint import LocalCheckpoints

JOB = {
    "data": {"source": "rcv1-like", "rows": 1_000, "features": 1_000, "batch": 20},  # fifty slots
    "strategy": "gossip",
    "stop": {"epochs": 2},
    "workers": 4,
    "launch": {"how": "threads"},
}
Floats = npt.NDArray[np.float32]


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


@cache
def plain() -> Watched:
    return watch(job())


def by_hand(of: Job, room: int) -> list[Floats]:
    """Compute the same algorithm in a few lines: rounds, each worker in turn, so many slots."""
    assert isinstance(of.strategy, Gossip)
    train = load(of.data, of.seed).train
    mixing, slots = of.strategy.graph(of.workers, of.seed).mixing(), Slots(train.rows, of.data.batch, of.seed)
    learners = [learner_of(of.model, train, of.seed, number) for number in range(of.workers)]
    cores = [GossipLocalModel(of, train, learner, slots, number, None) for number, learner in enumerate(learners)]
    parts = Shards(slots, of.workers, assign_rows(of, train, of.workers)[1])
    lists: dict[int, list[int]] = {rank: [] for rank in range(of.workers)}
    while room:
        for rank, ids in parts.plan(room).items():
            lists[rank] += ids.tolist()
            room -= len(ids)
        parts.settle(parts.living)
    for number in range(max(map(len, lists.values()))):
        before = [core.weights for core in cores]
        for i, core in enumerate(cores):
            if number < len(lists[i]):
                core.gradient(lists[i][number])
            core.mix(mixing[i, i], [(mixing[i, j], before[j]) for j in range(of.workers) if j != i and mixing[i, j]])
            if number < len(lists[i]):
                core.step()
    return [core.weights for core in cores]


@pytest.mark.variants(slow=["complete"])
@pytest.mark.parametrize("topology", ["ring", "star", "complete"])
def test_a_round_is_a_mean_by_the_weights_and_a_step_with_the_gradient_of_before(topology: str) -> None:
    """The weights are those of the algorithm in a few lines.

    Each worker has ten slots, so it is known who has which slot in which round.
    """
    of = job(strategy__topology=topology, stop__epochs=1, workers=5)
    run = watch(of)
    expected = np.mean([one.astype(np.float64) for one in by_hand(of, 50)], axis=0)
    assert np.allclose(run.weights, expected, rtol=0, atol=1e-6)
    assert np.abs(run.weights).max() > 1e-3


def test_it_tells_who_hears_whom_before_the_first_slot_and_how_soon_all_agree() -> None:
    events = plain().events
    linked = next(event for event in events if isinstance(event, Linked))
    assert linked.links == [(0, 1), (0, 3), (1, 2), (2, 3)] and abs(linked.gap - 2 / 3) < 1e-9
    assert linked.nodes == [f"worker-{number}" for number in range(4)] and len(linked.parts) == 1
    assert events.index(linked) < next(i for i, event in enumerate(events) if isinstance(event, Evaluated))
    assert len(plain().all(Joined)) == 4


def test_every_evaluation_has_the_best_and_the_worst_model_and_their_distance() -> None:
    first, *later = plain().all(Evaluated)
    assert first.spread["distance"] == 0.0 and first.spread["best"] == first.spread["worst"] == first.test_loss
    assert first.spread["rounds"] == 0
    for event in later:
        assert event.spread["best"] <= event.spread["worst"]
        assert event.spread["distance"] > 0 < event.spread["rounds"]
        # This is the loss of the mean, and the loss is convex.
        assert event.test_loss <= event.spread["worst"]


def test_where_time_and_bytes_went_is_told() -> None:
    run = watch(job(emulate__per_example=2e-5))
    spent = [event.spent for event in run.all(Progress)]
    assert sum(one.get("compute", 0.0) for one in spent) >= 2 * 1_000 * 2e-5
    rounds, weights = run.all(Evaluated)[-1].spread["rounds"], run.weights.nbytes
    # Each worker receives two models, or its round is not done.
    assert run.outcome.received >= rounds * 4 * 2 * weights
    # Bytes are counted once they are sent. A worker that has received all models of a round
    # reports it as done, while its own messages of this round may still be unsent. Its messages of
    # the round before were received, or nobody would have sent it anything in this one.
    assert run.outcome.sent >= (rounds - 1) * 4 * 2 * weights


@pytest.mark.variants(slow=["star"])
@pytest.mark.parametrize("topology", ["ring", "torus", "star"])
def test_without_learning_all_agree_as_fast_as_was_predicted(topology: str) -> None:
    """The run is evaluated after every round, from where only the slowest mode is left."""
    rounds = {"evaluate__every": 4 / 50, "stop__epochs": 1}
    run = watch(job(strategy__topology=topology, strategy__start="own", update__rule="sgd", update__step=0.0, **rounds))
    told = {round(event.spread["rounds"]): event.spread["distance"] for event in run.all(Evaluated)}
    assert isinstance(run.job.strategy, Gossip)
    second = run.job.strategy.graph(4, 0).second
    assert told[0] > 0.1 and sorted(told) == list(range(len(told)))
    for number in range(2, 6):
        assert abs(told[number + 1] / told[number] - second) < 0.1 * second


def test_in_a_complete_graph_all_agree_after_one_round() -> None:
    run = watch(
        job(
            strategy__topology="complete", strategy__start="own", update__rule="sgd", update__step=0.0,
            evaluate__every=4 / 50, stop__epochs=1,
        )
    )  # fmt: skip
    told = [event.spread["distance"] for event in run.all(Evaluated)]
    assert told[1] < 1e-6 * told[0]


# ---------------------------------------------------------------- disconnected graphs


def edges(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_graph_that_falls_apart_is_refused_with_its_pieces_named(tmp_path: Path) -> None:
    apart = edges(tmp_path / "apart.txt", "0 1", "2 3")
    with pytest.raises(Invalid, match=r"0 1 \| 2 3.*--allow-disconnected"):
        watch(job(strategy__topology="file", strategy__edges=apart))


@pytest.mark.slow
def test_labels_split_over_two_groups_make_two_models_and_over_one_graph_one(tmp_path: Path) -> None:
    """A disconnected graph cannot agree (S3-10): the worst loss and the distance stay."""
    apart = edges(tmp_path / "apart.txt", "0 1", "2 3")
    given = {"strategy__split": "label", "stop__epochs": 6, "update__rule": "sgd", "update__step": 0.3}
    fallen = watch(
        job(strategy__topology="file", strategy__edges=apart, strategy__allow_disconnected=True, **given)
    ).all(Evaluated)[-1]
    together = watch(job(strategy__topology="complete", **given)).all(Evaluated)[-1]
    assert fallen.spread["distance"] > 5 * together.spread["distance"]
    assert fallen.spread["worst"] > together.spread["worst"] + 0.1


def test_links_of_a_file_are_kept_with_the_run_which_goes_on_with_them_whatever_the_file_says(tmp_path: Path) -> None:
    ring, told = edges(tmp_path / "links.txt", "0 1", "1 2", "2 3", "0 3"), list[RunEvent]()
    of = job(strategy__topology="file", strategy__edges=ring, checkpoint__every=0.001, checkpoint__keep=3)
    shoal.run.run.execute(of, tmp_path / "run")
    assert (tmp_path / "run" / "topology.txt").read_text() == "0 1\n0 3\n1 2\n2 3\n"
    edges(tmp_path / "links.txt", "0 1", "0 2", "0 3")
    shoal.train(resume=tmp_path / "run", epochs=3, on_event=told.append)
    assert [one.links for one in told if isinstance(one, Linked)] == [[(0, 1), (0, 3), (1, 2), (2, 3)]]
    assert any("links.txt has changed since the run began" in one.what for one in told if isinstance(one, Warned))
    (tmp_path / "links.txt").unlink()
    shoal.train(resume=tmp_path / "run", epochs=4)


def test_a_rule_that_would_undo_every_mean_is_refused() -> None:
    for strategy in ("gossip", "peer-to-peer"):
        with pytest.raises(Invalid, match=r"ftrl makes them of what it keeps alone.*update.rule=adagrad"):
            watch(job(strategy=strategy, update__rule="ftrl"))


# ---------------------------------------------------------------- one-way links


def test_shares_that_travel_one_way_come_to_the_mean_of_all() -> None:
    """Push-sum: nobody learns, and every worker ends with the mean of all initial models."""
    run = watch(
        job(
            strategy__topology="one-way", strategy__start="own", update__rule="sgd", update__step=0.0,
            evaluate__every=4 / 50, stop__epochs=5,
        )
    )  # fmt: skip
    evaluations = run.all(Evaluated)
    assert evaluations[-1].spread["distance"] < 1e-4 * evaluations[0].spread["distance"]
    assert abs(evaluations[-1].test_loss - evaluations[0].test_loss) < 1e-6
    assert run.all(Linked)[0].directed


def test_a_one_way_ring_learns() -> None:
    run = watch(job(strategy__topology="one-way", stop__epochs=3, update__step=0.3))
    assert run.loss < run.losses[0] - 0.05
    run.check_counted_once()


def test_meetings_need_links_that_go_both_ways() -> None:
    with pytest.raises(Invalid, match=r"strategy\.mode=sync"):
        watch(job(strategy__topology="one-way", strategy__mode="async"))


# ---------------------------------------------------------------- pairs of workers


def test_two_at_a_time_learn_too_and_keep_near_each_other() -> None:
    run = watch(job(strategy__mode="async", stop__epochs=3, update__step=0.3))
    run.check_counted_once()
    assert run.loss < run.losses[0] - 0.05
    last = run.all(Evaluated)[-1].spread
    assert "rounds" not in last and 0 < last["distance"] < np.linalg.norm(run.weights)


# ---------------------------------------------------------------- assignment of rows


@pytest.mark.variants(slow=["shuffled"])
@pytest.mark.parametrize("split", ["label", "dirichlet", "shuffled"])
def test_whoever_has_which_rows_every_row_is_learned_once_a_pass(split: str) -> None:
    run = watch(job(strategy__split=split))
    run.check_counted_once()
    assert run.outcome.examples == 2_000


# ---------------------------------------------------------------- resume, transports, failures


def test_a_run_is_kept_and_taken_up_again_from_the_mean_by_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Save again at once, however long a busy disk takes for a checkpoint.
    monkeypatch.setattr(LocalCheckpoints, "rest", 0)
    settings = {"checkpoint.every": 0.01, "data.rows": 1_000, "data.features": 1_000, "data.batch": 20}
    settings["emulate.per_example"] = 2e-4

    def stop(event: RunEvent) -> None:
        if isinstance(event, Saved) and event.steps >= 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shoal.train(
            "rcv1-like", strategy="gossip", workers=4, epochs=4, out=tmp_path / "run", settings=settings, on_event=stop
        )
    run = shoal.train(resume=tmp_path / "run", workers=3)
    (resumed,) = (event for event in run.events if isinstance(event, Resumed))
    assert 50 <= resumed.steps < 200
    assert (run.summary["steps"], run.summary["examples"]) == (200, 4_000)
    assert any("begins from the mean of all" in event.what for event in run.events if isinstance(event, Warned))
    passes = [event.passes for event in run.events if isinstance(event, Evaluated)]
    assert passes[-1] == 4.0


def test_processes_over_tcp_learn_what_threads_do() -> None:
    run = watch(job(launch__how="processes", launch__transport="tcp", stop__epochs=None, stop__steps=4))
    threads = watch(job(stop__epochs=None, stop__steps=4))
    assert np.allclose(run.weights, threads.weights, rtol=0, atol=1e-6)
    assert run.outcome.sent > 0 < run.outcome.received


def test_a_loss_that_runs_away_ends_it_and_says_so() -> None:
    run = watch(job(update__rule="sgd", update__step=1e38, model__loss="squared"))
    assert run.outcome.failed and not run.all(Gone)


def test_one_worker_alone_is_a_serial_run() -> None:
    run = watch(job(workers=1))
    run.check_counted_once()
    assert run.all(Evaluated)[-1].spread["distance"] == 0.0


def test_a_link_that_takes_time_makes_a_round_take_as_long() -> None:
    run = watch(job(emulate__link=0.02, stop__epochs=None, stop__steps=20))
    # A lower bound: five rounds, one message after the other.
    assert run.outcome.seconds >= 5 * 0.02
    assert run.job.emulate.words() == "emulated links (20 ms for a message)"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_network_gossips(mode: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    given = {"data": {"source": "digits", "batch": 32}, "model": "linear", "strategy": {"name": "gossip", "mode": mode}}
    run = watch(Job.of({**given, "stop": {"epochs": 3}, "update": {"step": 0.01}, "workers": 3}))
    run.check_counted_once()
    accuracy = run.all(Evaluated)[-1].metrics["accuracy"]
    assert accuracy is not None and accuracy > 0.8


@pytest.mark.slow
def test_what_a_module_raises_in_a_worker_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    """The worker's process ends with the error; if all raise it, the run fails with it."""
    pytest.importorskip("torch")
    (tmp_path / "broken.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer, self.calls = nn.Linear(4, 2), 0\n\n"
        "    def forward(self, x):\n"
        "        self.calls += self.training\n"
        "        if self.calls > 3:\n"
        "            raise RuntimeError('not today')\n"
        "        return self.layer(x)\n"
    )
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    of = Job.of(
        {
            "data": {"source": str(tmp_path / "rows.npz"), "batch": 10},
            "model": f"{tmp_path / 'broken.py'}:Net",
            "strategy": "gossip",
            "workers": 2,
        }
    )
    run = watch(of)
    assert run.outcome.failed and "not today" in run.outcome.why and "no worker is left" in run.outcome.why
    assert len(run.all(Gone)) == 2 and [event.why for event in run.all(Stopped)] == [run.outcome.why]
