"""Every strategy passes one suite, on threads and on processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.serial_fit import serial_fit
from shoal.data.slots import Slots
from shoal.simulation.reference import serial
from shoal.testing.conformance import Candidate, Check, plain, suite

# Three workers that learn alone take a third of the steps each: they are compared with the serial
# run at a step size with which it learns fast.
AVERAGING = (("strategy.every", 4), ("update.step", 1.0))
GLOO = Candidate(
    "averaging", "processes", settings=(("strategy.over", "gloo"), *AVERAGING), tolerance=0.04, survives=False
)
ALLREDUCE = Candidate("allreduce", "processes", survives=False)
OVER_GLOO = (GLOO, ALLREDUCE)
STRATEGIES = [
    Candidate("sync", exact=True),
    Candidate("sync", settings=(("strategy.slots_per_step", 1),), exact=True),
    Candidate("bounded"),
    Candidate("async"),
    Candidate("averaging", settings=AVERAGING, tolerance=0.04),
]
# Every row is a step, so a pass learns more than one of the serial run, whose steps are slots. The
# difference is smaller where the serial run learns fast.
EXAMPLE = (("update.step", 1.0),)
SLOWLY = (("emulate.per_example", 2e-5),)  # else it is over before a worker can be killed
HOGWILD = [
    Candidate("hogwild", settings=EXAMPLE, tolerance=0.04, sends=False),
    Candidate("hogwild", settings=(("strategy.way", "batched"),), sends=False),
    Candidate("hogwild", settings=(("strategy.way", "batched"), ("workers", 1)), exact=True, sends=False),
    Candidate("hogwild", "processes", settings=(*EXAMPLE, *SLOWLY), tolerance=0.04, sends=False),
]
# The penalty is so small that these few rows are soon overfitted; the KKT filter is in use.
BLOCKS = (("update.l1", 0.02), ("strategy.recheck", 2), ("evaluate.every", 1.0))
BLOCK_PROXIMAL = [
    Candidate("block-proximal", settings=BLOCKS, exact=True),
    Candidate("block-proximal", settings=(*BLOCKS, ("strategy.max_delay", 2), ("strategy.blocks", 16)), exact=True),
    Candidate("block-proximal", "processes", settings=BLOCKS, exact=True),
]
# Each of three workers has a model of its own, and takes a third of the steps: they are compared
# with the serial run at a step size with which it learns fast.
FAST = (("update.step", 1.0),)
ASYNC = (("strategy.mode", "async"), *FAST)
GOSSIP = [
    Candidate("gossip", settings=FAST, tolerance=0.06),
    Candidate("gossip", settings=ASYNC, tolerance=0.06),
    Candidate("gossip", "processes", settings=FAST, tolerance=0.06),
    Candidate("gossip", "processes", settings=ASYNC, tolerance=0.06),
]
# Each peer sends to all others every 64 rows. AdaGrad's sums would be each peer's own, and its
# steps larger than the serial run's. Nothing bounds how stale a peer is: three that receive nothing
# from each other for a while step too far in what all rows share (the mean margin), the more so the
# larger a step is. With a load of 6 from other programs, steps of 1.0 missed the serial run by up
# to 0.98 of what it learns, steps of 0.25 by 0.11 (200 runs of each).
SMALL = 0.007  # a third of what the serial run learns with steps of 0.25
TELLING = (("strategy.every", 64), ("update.rule", "sgd"), ("update.step", 0.25))
OWNED = (*TELLING, ("strategy.send", "owned"))
# The top process looks a few times a second, so the run must last some seconds.
WATCHED = (("emulate.per_example", 3e-4),)
PEERS = [
    Candidate("peer-to-peer", settings=TELLING, tolerance=SMALL),
    Candidate("peer-to-peer", settings=OWNED, tolerance=SMALL),
    Candidate("peer-to-peer", "processes", settings=(*TELLING, *WATCHED), tolerance=SMALL),
    Candidate("peer-to-peer", "processes", settings=(*OWNED, *WATCHED), tolerance=SMALL),
]
CANDIDATES = [
    *STRATEGIES,
    *PEERS,
    *BLOCK_PROXIMAL,
    *HOGWILD,
    *GOSSIP,
    Candidate("sync", "processes", exact=True),
    Candidate("bounded", "processes"),
    Candidate("async", "processes"),
    Candidate("averaging", "processes", settings=AVERAGING, tolerance=0.04),
    *OVER_GLOO,
]


# Checks of the plain run, or of the one in which a worker is killed.
OF_THE_PLAIN_RUN = ("serial_run", "counts_every", "summary", "epochs", "killed")
OVER_GLOO_NOW = ("serial_run", "counts_every", "killed")


def when(candidate: Candidate, check: Check) -> Any:
    """Moves a check to the soak tier where it takes long or shows little.

    Over gloo every run takes seconds to import PyTorch. One process keeps Hogwild's stop rules,
    however its workers run; block-proximal's are kept by the coordinator, as for all others, and
    peer-to-peer's by the peer that leads, on a thread or in a process alike. So checks of other
    stop rules wait for the soak.
    """
    now = OVER_GLOO_NOW if candidate in OVER_GLOO else OF_THE_PLAIN_RUN
    later = candidate in (*OVER_GLOO, HOGWILD[-1], *GOSSIP[1:], *PEERS[1:], BLOCK_PROXIMAL[-1]) and not any(
        part in check.__name__ for part in now
    )
    return pytest.param(candidate, check, marks=pytest.mark.soak if later else ())


@pytest.mark.variants(
    slow=[
        "*-processes-it_stops_after_its_steps",
        "*-processes-it_stops_when_patience_runs_out_and_keeps_the_best_weights",
        "bounded-processes-*",
        "averaging-over=gloo-every=4-step=1.0-processes-it_learns_what_the_serial_run_learns",
        "averaging-over=gloo-every=4-step=1.0-processes-it_ends_well_when_a_worker_is_killed",
        "allreduce-processes-it_ends_well_when_a_worker_is_killed",
        "hogwild-step=1.0-per_example=2e-05-processes-it_stops_after_its_epochs",
        "*send=owned-per_example=0.0003-processes-it_survives_a_killed_worker",
        "averaging-every=4-step=1.0-processes-it_stops*",
        "sync-processes-it_stops*",
        "*-processes-it_starts_from_the_weights_that_all_start_from",
        "*-processes-it_stops_*",
        "*-threads-it_stops_when_patience_runs_out_and_keeps_the_best_weights",
    ]
)
@pytest.mark.parametrize(
    ("candidate", "check"),
    [when(candidate, check) for candidate in CANDIDATES for check in suite(candidate)],
    ids=lambda value: str(value) if isinstance(value, Candidate) else value.__name__,
)
def test_a_strategy_passes(candidate: Candidate, check: Check) -> None:
    if candidate in OVER_GLOO:
        pytest.importorskip("torch")
    check(candidate)


def test_all_strategies_have_the_same_figures() -> None:
    keys = [list(plain(candidate).summary) for candidate in (*STRATEGIES, HOGWILD[0], GOSSIP[0], PEERS[0])]
    assert all(one == keys[0] for one in keys)


@pytest.mark.parametrize("model", ["logistic", "hinge"])
def test_the_suite_holds_strategies_against_the_rival_of_the_benchmarks(model: str) -> None:
    """Two serial runs, one of them compiled whole, give the same weights bit for bit."""
    candidate = Candidate("async", settings=(("model", model), ("model.l2_per_count", 0.1)))
    job, dataset = candidate.job(), plain(STRATEGIES[0]).dataset
    slots = Slots(dataset.train.rows, job.data.batch, job.seed)
    rows = dataset.train.take(np.concatenate([slots.rows(content) for content in range(slots.per_pass)]))
    order = np.stack([slots.contents(of_pass) for of_pass in range(3)])
    counts = np.append(dataset.train.counts, 1).astype(np.float32)
    update = job.update.update()
    rival, _ = serial_fit(job.model, update, rows, job.data.batch, dataset.features, 3, order, counts=counts)
    assert np.array_equal(rival, serial(job, dataset))


@pytest.mark.slow
def test_a_run_whose_only_worker_is_killed_ends_well() -> None:
    """The suite asks this of strategies that cannot go on without a worker."""
    lonely = Candidate("async", "processes", settings=(("workers", 1),), survives=False)
    suite(lonely)[-1](lonely)
