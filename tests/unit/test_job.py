"""A job is read from a file, from settings or from a command line, and written back.

A wrong setting is refused, with what was probably meant.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.datasets import DataSource
from shoal.errors import Invalid
from shoal.job import Evaluate, Job, LaunchSettings, UpdateSettings
from shoal.models.linear import Linear
from shoal.schedule.stop_rules import StopRules
from shoal.settings_tree import changed, settings_of, toml_lines, value_of
from shoal.strategies.parameter_server.algorithm import Async, Bounded, Sync


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ABOVE = st.floats(0, exclude_min=True, allow_infinity=False, allow_subnormal=False)
FROM_ZERO = st.floats(0, 1e300)
SHARE = st.floats(0, 1, exclude_max=True)
COUNTS = st.integers(1, 1 << 62)
JOBS = st.builds(
    Job,
    data=st.builds(
        DataSource,
        source=st.text(),
        test=st.text(),
        held_out=st.floats(allow_nan=False),
        format=st.sampled_from(["auto", "libsvm", "criteo"]),
        rows=maybe(st.integers(-9, 1 << 62)),
        features=maybe(COUNTS),
        hash_bits=maybe(COUNTS),
        bad_lines=st.integers(0, 9),
        batch=COUNTS,
    ),
    model=st.builds(
        Linear, loss=st.sampled_from(["logistic", "hinge", "squared"]), bias=st.booleans(), l2_per_count=FROM_ZERO
    ),
    strategy=st.one_of(
        st.builds(Sync, combine=st.sampled_from(["mean", "sum"]), slots_per_step=st.integers(1, 4_096)),
        st.builds(Bounded, max_delay=st.integers(0, 99), prefetch=st.integers(0, 64)),
        st.builds(Async),
    ),
    update=st.one_of(
        st.builds(
            UpdateSettings,
            rule=st.sampled_from(["adagrad", "sgd", "ftrl"]),
            step=maybe(ABOVE),
            l1=FROM_ZERO,
            l2=FROM_ZERO,
        ),
        st.builds(
            UpdateSettings,
            rule=st.just("momentum"),
            momentum=maybe(SHARE),
            dampening=maybe(SHARE),
            decay=maybe(FROM_ZERO),
        ),
        st.builds(UpdateSettings, rule=st.sampled_from(["adam", "adamw"]), beta1=maybe(SHARE), epsilon=maybe(ABOVE)),
    ),
    stop=st.builds(
        StopRules,
        epochs=maybe(ABOVE | st.just(math.inf)),
        steps=maybe(COUNTS),
        seconds=maybe(ABOVE),
        target_loss=maybe(st.floats(allow_nan=False, allow_infinity=False)),
        patience=maybe(COUNTS),
        min_delta=FROM_ZERO,
    ),
    evaluate=st.builds(Evaluate, every=ABOVE | st.just(math.inf)),
    launch=st.builds(
        LaunchSettings,
        how=st.sampled_from(["processes", "threads"]),
        transport=st.sampled_from(["ipc", "tcp"]),
        modules=st.lists(st.text(), max_size=3),
        cache_mb=maybe(COUNTS),
    ),
    workers=st.integers(1, 512),
    servers=st.integers(1, 512),
    seed=st.integers(0, (1 << 63) - 1),
)


@settings(max_examples=200, deadline=None)
@given(JOBS)
def test_what_a_job_writes_is_the_same_job_when_it_is_read(job: Job) -> None:
    text = job.toml()
    assert Job.of(tomllib.loads(text)) == job
    assert Job.of(msgspec.to_builtins(job)) == job
    assert Job.of(tomllib.loads(text)).toml() == text


def test_a_job_is_read_from_a_file_and_may_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('data = "rcv1"\nmodel = "hinge"\nstrategy = "bounded"\nworkers = 4\n[stop]\nepochs = 10\n')
    job = Job.load(path)
    assert job == Job(
        data=DataSource("rcv1"), model=Linear("hinge"), strategy=Bounded(), workers=4, stop=StopRules(epochs=10)
    )
    other = Job.load(path, {"stop.epochs": 3, "workers": 1, "strategy.max_delay": 9, "data.batch": 64})
    assert (other.stop.epochs, other.workers, other.strategy, other.data.batch) == (3, 1, Bounded(max_delay=9), 64)
    assert Job.load(path, {"stop.epochs": None, "stop.steps": 8}).stop == StopRules(steps=8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"workers = ", "is no TOML"),
        (b"\xff\xfe", "is no TOML"),
        (b"data = 'clicks'\nworkers = 0", "workers=0: needs 1 to 512"),
        (b"workers = 2", "names no data"),
    ],
)
def test_a_file_that_is_no_job_is_named(text: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_bytes(text)
    with pytest.raises(Invalid, match=f"odd.toml.*{says}"):
        Job.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"cannot read .*gone.toml: No such file"):
        Job.load(tmp_path / "gone.toml")
    with pytest.raises(Invalid, match=r"cannot read .*: Is a directory"):
        Job.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"strategy": "bounded", "strategy.max_delay": "automatic"}, "did you mean 'auto'? (there are auto, a whole number)"),
        ({"strategy": "bounded", "strategy.max_delay": 1.5}, "strategy.max_delay: Expected `int | str`, got `float`: give auto or a whole number"),
        ({"strategy": "bounded", "strategy.max_delay": -1}, "strategy.max_delay=-1: needs 0 to"),
        ({"strategy": "sync", "strategy.max_delay": "auto"}, "strategy.max_delay: Expected `int`, got `str`: give a whole number"),
        ({"strategy": "async", "strategy.second_copies": True}, "strategy 'async' has no setting 'second_copies', only sync"),
        ({"strategy": "sync", "strategy.second_copies": 1}, "strategy.second_copies: Expected `bool`, got `int`: give true or false"),
        ({"strategy": "sync", "strategy.damp_above": 2}, "strategy 'sync' has no setting 'damp_above', only bounded, async"),
        ({"strategy.damp_above": 0}, "strategy.damp_above=0: needs 1 to"),
        ({"strategy.damp_above": math.nan}, "strategy.damp_above: Expected `int | null`, got `float`: give a whole number or none"),
        ({"strategy.admit": 256}, "strategy.admit=256: needs 0 (every feature has a weight at once) to 255"),
        ({"strategy": "serial", "strategy.evict": True}, "strategy 'serial' has no setting 'evict', only sync, bounded, async"),
        ({"model.net": "cnn", "strategy.admit": 2}, "strategy.admit=2 is for linear models"),
        ({"emulate.slow": [99], "workers": 4}, "emulate.slow=[99]: there is no worker 99, only 0 to 3: name those, or take more workers"),
        ({"emulate.slow": [0, 1], "strategy": "serial"}, "emulate.slow=[0, 1]: there is no worker 1, only worker 0"),
        ({"emulate.slow": 3}, "emulate.slow: Expected `array`, got `int`: give a list, such as [0, 1]"),
        ({"emulate.per_example": math.nan}, "emulate.per_example=nan: needs 0 to 3600 seconds"),
        ({"emulate.factor": math.nan}, "emulate.factor=nan: needs 1 or more"),
        ({"emulate.pause_every": math.nan}, "emulate.pause_every=nan: needs a number of seconds above 0"),
        ({"emulate.stall_at": math.inf}, "emulate.stall_at=inf: needs 0 to 3600 seconds"),
        ({"emulate.stal": 1}, "no setting emulate.stal: did you mean 'emulate.stall'?"),
        ({"trace.spans": -1}, "trace.spans=-1: needs 0 to"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_of_a_straggler_is_refused_with_the_next_move(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as error:
        Job.of(changed({"data": "clicks"}, changes))
    assert says in str(error.value)


# ---------------------------------------------------------------- shorthands and changes


def test_where_one_setting_names_a_table_the_name_alone_will_do() -> None:
    job = Job.of({"data": "some/path.svm", "model": "squared", "strategy": "sync", "update": "ftrl"})
    assert (job.data, job.model, job.strategy, job.update) == (
        DataSource("some/path.svm"), Linear("squared"), Sync(), UpdateSettings("ftrl")
    )  # fmt: skip


def test_without_a_name_a_strategy_is_asynchronous() -> None:
    assert Job.of({}).strategy == Async() == Job.of({"strategy": {"prefetch": 1}}).strategy


def test_a_name_that_is_changed_leaves_the_other_settings_of_its_table() -> None:
    before = {"update": {"rule": "sgd", "l1": 0.1}, "data": {"source": "a", "batch": 7}}
    job = Job.of(changed(before, {"update": "ftrl", "data": "b"}))
    assert job.update == UpdateSettings("ftrl", l1=0.1) and job.data == DataSource("b", batch=7)


@pytest.mark.parametrize("named", ["strategy", "strategy.name"])
def test_another_strategy_begins_with_its_defaults(named: str) -> None:
    before = {"strategy": {"name": "sync", "slots_per_step": 4, "prefetch": 2}}
    assert Job.of(changed(before, {named: "bounded"})).strategy == Bounded()
    assert Job.of(changed(before, {named: "async"})).strategy == Async()
    assert Job.of(changed({"strategy": {"prefetch": 2}}, {named: "bounded"})).strategy == Bounded()


@pytest.mark.parametrize("named", ["strategy", "strategy.name"])
def test_the_same_strategy_named_again_keeps_its_settings(named: str) -> None:
    before = {"strategy": {"name": "sync", "slots_per_step": 4}}
    assert Job.of(changed(before, {named: "sync"})).strategy == Sync(slots_per_step=4)
    assert Job.of(changed({"strategy": {"prefetch": 2}}, {named: "async"})).strategy == Async(prefetch=2)


@pytest.mark.parametrize("named", ["strategy", "strategy.name"])
def test_what_is_said_of_a_strategy_is_meant_for_the_one_that_is_named_in_whatever_order(named: str) -> None:
    for changes in ({"strategy.max_delay": 2, named: "bounded"}, {named: "bounded", "strategy.max_delay": 2}):
        assert Job.of(changed({"strategy": "sync"}, changes)).strategy == Bounded(max_delay=2)


def test_changes_leave_what_they_were_made_from_alone() -> None:
    before = {"strategy": {"name": "sync"}, "stop": {"epochs": 2}, "data": "a"}
    changed(before, {"strategy": "async", "stop.epochs": 3, "stop.steps": 4, "data.batch": 9})
    assert before == {"strategy": {"name": "sync"}, "stop": {"epochs": 2}, "data": "a"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("3.5", 3.5), ("1e-3", 0.001), ("true", True), ("false", False), ("inf", math.inf), ("none", None),
        ("None", None), ("null", None), ("rcv1", "rcv1"), ("a/b c.svm", "a/b c.svm"), ('"3"', "3"), ("", ""),
        ('["a", "b"]', ["a", "b"]), ("2024-01-01", "2024-01-01"), ("12:30:00", "12:30:00"), ("a = b", "a = b"),
    ],
)  # fmt: skip
def test_a_value_on_the_command_line_is_what_it_would_be_in_a_file_or_a_string(text: str, value: object) -> None:
    assert value_of(text) == value and type(value_of(text)) is type(value)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"worker": 2}, "no setting 'worker': did you mean 'workers'?"),
        ({"epochs": 2}, "no setting 'epochs': did you mean 'stop.epochs'?"),
        ({"stop": {"epoch": 2}}, "no setting stop.epoch: did you mean 'stop.epochs'?"),
        ({"stop": {"batch": 2}}, "no setting stop.batch: did you mean 'data.batch'?"),
        ({"update": {"stepp": 2}}, "no setting update.stepp: did you mean 'update.step'?"),
        ({"strategy": {"name": "sync", "slots_per_stop": 2}}, "did you mean 'strategy.slots_per_step'?"),
        ({"strategy": {"name": "async", "max_delay": 2}}, "strategy 'async' has no setting 'max_delay', only sync, bounded"),
        ({"strategy": "synch"}, "no strategy 'synch': did you mean 'sync'? (strategies: sync, bounded, async, serial, averaging, allreduce, hogwild, block-proximal, gossip, peer-to-peer)"),
        ({"strategy": 3}, "no strategy 3"),
        ({"strategy": ["sync"]}, "no strategy ['sync']"),
        ({"launch": {"qqqq": 1}}, "no setting launch.qqqq (settings: launch.how, launch.transport"),
        ({"zzzzzzzz": 1}, "no setting 'zzzzzzzz' (settings: data"),
        ({"workers": {"a": 1}}, "workers is one value and has no settings of its own"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_known_is_refused_with_the_nearest_that_is(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as error:
        Job.of(given)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"workers": "two"}, "workers: Expected `int`, got `str`"),
        ({"workers": 2.5}, "workers: Expected `int`, got `float`"),
        ({"workers": True}, "workers: Expected `int`, got `bool`"),
        ({"workers": None}, "workers: Expected `int`, got `null`"),
        ({"stop": {"epochs": "2"}}, "stop.epochs: Expected `float | null`, got `str`"),
        ({"stop": 5}, "stop: Expected `object`, got `int`"),
        ({"data": {"source": 3}}, "data.source: Expected `str`, got `int`"),
        ({"model": "logistik"}, "model.net: no 'logistik': did you mean 'logistic'?"),
        ({"launch": {"modules": "mine"}}, "launch.modules: Expected `array`, got `str`"),
        ({"strategy": {"name": "sync", "slots_per_step": 0}}, "strategy.slots_per_step=0: needs 1 to 4,096"),
        ({"strategy": {"name": "sync", "slots_per_step": 4_097}}, "strategy.slots_per_step=4097: needs 1 to 4,096"),
        ({"strategy": {"name": "bounded", "max_delay": -1}}, "strategy.max_delay=-1: needs 0 to"),
        ({"strategy": {"prefetch": 65}}, "strategy.prefetch=65: needs 0 to 64"),
        ({"stop": {"epochs": 0}}, "stop.epochs=0"),
        ({"evaluate": {"every": 0}}, "evaluate.every=0"),
        ({"update": {"step": -1}}, "step=-1.0"),
        ({"update": {"rule": "ftrl", "step": 0}}, "alpha=0"),
        ({"servers": 513}, "servers=513: needs 1 to 512"),
        ({"seed": -1}, "seed=-1"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_and_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as error:
        Job.of(given)
    assert says in str(error.value)


def test_a_value_has_no_settings_of_its_own() -> None:
    with pytest.raises(Invalid, match="'workers' is one value"):
        changed({"workers": 2}, {"workers.few": 1})
    with pytest.raises(Invalid, match="one value"):
        changed({"stop": {"epochs": 2}}, {"stop.epochs.more": 1})


@pytest.mark.parametrize(
    ("rule", "name", "settings"),
    [
        (UpdateSettings(), "adagrad", {"step": 0.1}),
        (UpdateSettings("sgd"), "sgd", {"step": 0.5}),
        (UpdateSettings("sgd", step=0.25), "sgd", {"step": 0.25}),
        (UpdateSettings("sgd", l1=0.1), "proximal_sgd", {"step": 0.5, "l1": 0.1, "l2": 0.0}),
        (UpdateSettings("ftrl", step=0.3, l2=0.2), "ftrl", {"alpha": 0.3, "l2": 0.2}),
        (UpdateSettings("adagrad", epsilon=1e-3), "adagrad", {"epsilon": 1e-3}),
        (UpdateSettings("momentum"), "sgd_momentum", {"step": 0.01, "momentum": 0.9, "decay": 0.0}),
        (UpdateSettings("momentum", momentum=0.0, decay=0.5), "sgd_decay", {"step": 0.01, "decay": 0.5}),
        (UpdateSettings("momentum", dampening=0.1), "sgd_dampened", {"dampening": 0.1}),
        (UpdateSettings("nesterov", step=0.3, momentum=0.8), "sgd_nesterov", {"step": 0.3, "momentum": 0.8}),
        (UpdateSettings("rmsprop", alpha=0.9), "rmsprop", {"step": 0.01, "alpha": 0.9, "epsilon": 1e-8}),
        (UpdateSettings("rmsprop", momentum=0.5), "rmsprop_momentum", {"momentum": 0.5}),
        (UpdateSettings("adam", beta2=0.99), "adam", {"step": 1e-3, "beta1": 0.9, "beta2": 0.99, "decay": 0.0}),
        (UpdateSettings("adamw", step=0.1), "adamw", {"step": 0.1, "decay": 0.01}),
    ],
)
def test_a_rule_becomes_an_update(rule: UpdateSettings, name: str, settings: dict[str, float]) -> None:
    update = rule.update()
    assert update.name == name and settings.items() <= update.settings.items()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"rule": "adam", "momentum": 0.9},
            "update.momentum=0.9: rule 'adam' has no momentum, only momentum, nesterov, rmsprop; "
            "it has step, beta1, beta2, epsilon, decay: leave momentum out, or choose another rule",
        ),
        ({"rule": "sgd", "decay": 0.1}, "update.decay=0.1: rule 'sgd' has no decay, only momentum, nesterov"),
        ({"rule": "adamw", "l1": 0.1}, "update.l1=0.1: rule 'adamw' has no l1, only adagrad, sgd, ftrl"),
        ({"rule": "ftrl", "alpha": 0.1}, "it has step, l1, l2: leave alpha out"),
        ({"rule": "nesterov", "dampening": 0.0}, "rule 'nesterov' has no dampening, only momentum"),
        ({"rule": "adam", "beta1": 1.0}, "beta1=1.0: a number below 1 is needed"),
        ({"rule": "adma"}, "did you mean 'adam'?"),
        ({"rule": "adam", "beta": 0.5}, "no setting update.beta: did you mean 'update.beta"),
    ],
)
def test_a_setting_that_the_rule_does_not_have_is_refused_with_those_it_has(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid) as error:
        Job.of({"update": given})
    assert says in str(error.value)


def test_another_rule_with_its_settings_comes_from_the_command_line() -> None:
    changes = settings_of(["update=adam", "update.step=0.003", "update.beta2=0.99"])
    job = Job.of(changed({"update": {"rule": "sgd", "step": 0.5}}, changes))
    assert job.update == UpdateSettings("adam", step=0.003, beta2=0.99)
    assert Job.of(tomllib.loads(job.toml())) == job


def test_settings_that_came_later_leave_the_identity_of_older_runs_alone() -> None:
    lines = "".join(toml_lines(UpdateSettings("sgd", l1=0.5).identity))
    assert lines == 'rule = "sgd"\n# step = (not set)\nl1 = 0.5\nl2 = 0.0\n'
    assert Job(update=UpdateSettings("adam", decay=0.1)).identity != Job(update=UpdateSettings("adam")).identity
    assert len({Job(strategy=Async(**more)).identity for more in ({}, {"admit": 2}, {"evict": True})}) == 3
