"""Peers join, leave, are stopped and are killed while all of them learn.

Those that live end with the same weights, and every slot counts once. The peers are real processes
with real sockets. The weights of each peer are copied at the end, before it exits, and compared.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shoal
from shoal.errors import RunFailed, Unanswered
from shoal.events import Elected, Evaluated, Gone, Joined, Resumed, Saved, read_run
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.settings_tree import changed
from shoal.strategies.peers.run import PeerRun
from shoal.testing.watch import BesideRun, Watched, kill, reach, watch
from shoal.training.tracked_run import RunHandle
from shoal.wire.messages.peers import PeerStatus
from tests.support.quick import AS_SETTINGS
from tests.support.sandbox import Den, soon
from tests.support.warm_forkserver import offspring

ROWS = 4_000
BASE: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": ROWS, "features": 2_000, "batch": 4},
    "strategy": {"name": "peer-to-peer", "every": 80},
    "emulate": {"per_example": 4e-4},
    "evaluate": {"every": 1.0},
    "stop": {"epochs": 5},
    "workers": 4,
}
KILLED = "its process ended (killed by signal 9)"
SENDS = ["all", "owned"]


def job_of(**changes: Any) -> Job:
    return Job.of(changed(BASE, {name.replace("__", "."): value for name, value in changes.items()}))


def left() -> list[str]:
    children = [f"process {pid}" for pid in offspring()]
    return children + [str(path) for path in Path(tempfile.gettempdir()).glob(f"shoal-{os.getpid()}-*")]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(left())  # what others left does not count against this test
    yield
    assert soon(lambda: set(left()) <= before, 10), set(left()) - before


class Seen:
    """Keeps the run that is watched, and the weights of its peers at the end."""

    training: PeerRun

    def __init__(self) -> None:
        self.final: dict[str, Any] = {}  # weights of each peer at the end, by name

    def __call__(self, what: Callable[[PeerRun], None]) -> Callable[[RunHandle], None]:
        def meanwhile(training: RunHandle) -> None:
            assert isinstance(training, PeerRun)
            self.training = training
            end = training._end
            training._end = lambda status: (self._copy_models(status), end(status))[1]  # type: ignore[method-assign]
            what(training)

        return meanwhile

    def _copy_models(self, status: PeerStatus) -> None:
        learner = self.training.learner
        for peer in status.peers:
            with contextlib.suppress(Unanswered):
                _, flat = self.training.observer.snapshot(peer.life)
                if flat is not None:
                    self.final[peer.name] = flat.reshape(learner.keys, -1)[:, : learner.width]

    def spread(self) -> float:
        """Returns how far apart a weight of two peers is at most, over the largest weight."""
        found = list(self.final.values())
        assert found, "nobody said what it has"
        largest = max(float(np.abs(one).max()) for one in found)
        return max(float(np.abs(one - found[0]).max()) for one in found) / largest


def check(run: Watched, seen: Seen, living: int | None = None) -> None:
    assert not run.outcome.failed, run.outcome.why
    run.check_counted_once()
    assert np.isfinite(run.weights).all() and run.losses[-1] < run.losses[0] - 0.1
    assert [event.number for event in run.all(Evaluated)] == list(range(len(run.losses)))
    if living is not None:
        assert len(seen.final) == living, seen.final.keys()
    spread = seen.spread()
    print(f"{len(seen.final)} peers at the end, furthest apart: {spread:.1e} of the largest weight")
    assert spread < 1e-5  # float32, thousands of additions in different orders


def lead_of(training: PeerRun) -> str:
    return training.events.names[training.events.lead]


def is_here(training: PeerRun, name: str) -> bool:
    """Returns whether the others know this peer; it may still wait for the model."""
    return name in training.events.living


def all_have_models(training: PeerRun) -> bool:
    lives = [life for life in training.events.names if life not in training.events.gone]
    with contextlib.suppress(Unanswered):
        return all(training.observer.snapshot(life)[1] is not None for life in lives)
    return False


# ---------------------------------------------------------------- all at once


def disturb(seed: int, log: list[str]) -> Callable[[PeerRun], None]:
    """Lets peers join, leave and be killed at random moments, also the one that leads.

    At least two stay.
    """

    def act(training: PeerRun) -> None:
        draw = random.Random(seed)
        moments = sorted(draw.uniform(0.05, 0.8) for _ in range(7))
        acts = ["join", "leave", "kill", "join and kill", "kill the lead", "join", "kill a donor"]
        draw.shuffle(acts)
        for at, what in zip(moments, acts, strict=True):
            reach(training, at)
            pids = training.pids
            here = [name for name in training.events.living if name in pids]
            if what == "join" or len(here) <= 2:
                log.append(f"{at:.2f} join {training.add_worker()}")
            elif what == "leave":
                training.drain(name := draw.choice(here))
                log.append(f"{at:.2f} leave {name}")
            elif what == "join and kill":
                name = training.add_worker()
                time.sleep(draw.uniform(0, 0.2))  # at any moment while it joins
                os.kill(training.pids[name], signal.SIGKILL)
                log.append(f"{at:.2f} join and kill {name}")
            else:
                name = lead_of(training) if "lead" in what else draw.choice(here)
                if what == "kill a donor":
                    log.append(f"{at:.2f} join {training.add_worker()}")
                # It may have left meanwhile.
                with contextlib.suppress(KeyError, ProcessLookupError):
                    os.kill(training.pids[name], signal.SIGKILL)
                    log.append(f"{at:.2f} {what}: {name}")

    return act


SOME = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 10))]


@pytest.mark.variants(slow=["1-owned", "2-*", "0-owned", "1-all"])
@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("seed", SOME)
def test_all_that_live_end_with_the_same_weights_whatever_happened(seed: int, send: str) -> None:
    log: list[str] = []
    seen = Seen()
    try:
        run = watch(job_of(strategy__send=send, seed=seed), seen(disturb(seed, log)))
    finally:
        print(f"seed {seed}: {'; '.join(log)}")
    check(run, seen)
    kills = sum("kill" in one for one in log)
    assert kills, "nobody was killed: nothing is shown"
    assert run.summary["workers_lost"] <= kills


# ---------------------------------------------------------------- one thing at a time


def test_when_the_one_that_leads_is_killed_the_next_one_judges() -> None:
    seen = Seen()

    def act(training: PeerRun) -> None:
        reach(training, 0.3)
        kill(training, lead_of(training))

    run = watch(job_of(), seen(act))
    check(run, seen, living=3)
    assert [(event.name, event.why) for event in run.all(Gone)] == [("worker-0", KILLED)]
    elected = [(event.name, event.why) for event in run.all(Elected)]
    assert elected == [("worker-0", ""), ("worker-1", f"worker-0 is gone: {KILLED}")]
    assert {event.by for event in run.all(Evaluated)} == {"worker-0", "worker-1"}


def test_one_that_joins_learns_and_one_that_leaves_has_told_what_it_learned() -> None:
    seen = Seen()

    def act(training: PeerRun) -> None:
        reach(training, 0.2)
        name = training.add_worker()
        assert soon(lambda: is_here(training, name), 20)
        reach(training, 0.5)
        training.drain("worker-1")

    run = watch(job_of(stop__epochs=10, evaluate__every=0.1), seen(act))
    check(run, seen, living=4)
    assert [event.name for event in run.all(Joined)][4:] == ["worker-4"]
    assert [(event.name, event.why) for event in run.all(Gone)] == [("worker-1", "it left")]
    assert run.summary["workers_lost"] == 0
    assert max(event.workers for event in run.all(Evaluated)) == 5


@pytest.mark.slow
def test_a_newcomer_finds_its_way_though_the_first_that_it_would_ask_was_killed() -> None:
    seen = Seen()

    def act(training: PeerRun) -> None:
        reach(training, 0.2)
        kill(training, "worker-0")
        name = training.add_worker()
        assert soon(lambda: is_here(training, name), 20)

    check(watch(job_of(stop__epochs=10), seen(act)), seen, living=4)


@pytest.mark.slow
def test_half_of_the_peers_may_sleep_and_the_others_go_on() -> None:
    seen = Seen()

    def act(training: PeerRun) -> None:
        reach(training, 0.05)
        pids = [training.pids[name] for name in ("worker-0", "worker-1")]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            assert soon(lambda: training.events.living == ["worker-2", "worker-3"], 30)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert soon(lambda: len(training.events.living) == 4, 30), training.events.names
        assert soon(lambda: all_have_models(training), 30), "the run ended before all had the model again"

    run = watch(job_of(**AS_SETTINGS, stop__epochs=30, emulate__per_example=4e-4), seen(act), 120)
    check(run, seen, living=4)
    assert sorted(event.name for event in run.all(Gone)) == ["worker-0", "worker-1"], "nobody else was put out"
    assert sorted(event.name for event in run.all(Joined))[4:] == ["worker-2", "worker-3"]


@pytest.mark.slow
def test_a_peer_that_slept_too_long_is_put_out_and_comes_back_as_a_new_one() -> None:
    seen = Seen()

    def act(training: PeerRun) -> None:
        reach(training, 0.05)
        pid = training.pids["worker-2"]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert soon(lambda: "worker-2" not in training.events.living, 30)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert soon(lambda: "worker-2" in training.events.living, 30), training.events.names

    run = watch(job_of(**AS_SETTINGS, stop__epochs=30, emulate__per_example=4e-4), seen(act), 120)
    check(run, seen, living=4)
    (gone,) = run.all(Gone)
    assert gone.name == "worker-2" and "silent" in gone.why


BROKEN = """
from shoal.strategies.peers.local_model import PeerLocalModel

learn, turns = PeerLocalModel.run, []

def run(self, slots):
    with open("/proc/self/comm") as name:
        turns.append(1)
        if name.read().startswith("shoal worker-1") and len(turns) > 20:
            raise ValueError("a mistake of one peer")
    return learn(self, slots)

PeerLocalModel.run = run
"""


def test_a_peer_that_cannot_compute_tells_the_others_which_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_peer.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = Seen()
    run = watch(job_of(launch__modules=["broken_peer"]), seen(lambda training: None))
    check(run, seen, living=3)
    (gone,) = run.all(Gone)
    assert gone.name == "worker-1" and "a mistake of one peer" in gone.why
    assert run.summary["workers_lost"] == 1


@pytest.mark.slow
def test_a_run_whose_peers_are_all_killed_fails_and_is_taken_up_again_by_another_number(tmp_path: Path) -> None:
    def all_of_them(training: RunHandle) -> None:
        assert isinstance(training, PeerRun)
        reach(training, 0.4)
        assert soon(lambda: any((tmp_path / "run" / "checkpoints").glob("*.safetensors")), 20)
        for name in training.workers:
            kill(training, name)

    job = job_of(checkpoint__every=0.3)
    with pytest.raises(RunFailed) as failure:
        execute(job, tmp_path / "run", started=lambda training: BesideRun(training, all_of_them).start())
    run = failure.value.run
    assert isinstance(run, Run)
    assert run.summary["stopped_because"].startswith("no worker is left to compute")
    assert [event for event in run.events if isinstance(event, Saved)]

    again = shoal.train(resume=tmp_path / "run", workers=2)
    (resumed,) = (event for event in again.events if isinstance(event, Resumed))
    assert resumed.steps > 0 and not again.summary["failed"]
    assert again.summary["examples"] == 5 * ROWS
    numbers = [event.number for event in again.events if isinstance(event, Evaluated)]
    assert len(set(numbers)) == len(numbers) or numbers == sorted(numbers)


@pytest.mark.slow
def test_a_run_that_is_interrupted_is_kept_though_it_never_was_before(tmp_path: Path) -> None:
    def hear(event: Any) -> None:
        if isinstance(event, Evaluated) and event.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(job_of(launch__how="threads", evaluate__every=0.2), tmp_path / "run", hear)
    again = shoal.train(resume=tmp_path / "run")
    (resumed,) = (event for event in again.events if isinstance(event, Resumed))
    assert resumed.steps >= 400 and again.summary["examples"] == 5 * ROWS


def test_a_step_that_is_far_too_large_ends_the_run_and_says_what_to_do() -> None:
    run = watch(job_of(model="squared", update={"rule": "sgd", "step": 1e30}, emulate__per_example=0.0))
    assert run.outcome.failed and "take a smaller step" in run.outcome.why
    # The last finite evaluation; None if the run ended before its weights were copied.
    judged = run.outcome.judged
    assert judged is None or np.isfinite(judged.loss)


# ---------------------------------------------------------------- from another terminal


Program = subprocess.Popen[str]


def command(den: Den, name: str, *arguments: str) -> Program:
    return den.start("-m", "shoal", name, *arguments)


def begin(den: Den, **changes: Any) -> tuple[Program, str]:
    """Starts a run in another program; returns that program and the run's folder."""
    job, folder = den.folder / "job.toml", den.folder / "run"
    job.write_text(job_of(**changes).toml())
    caller = command(den, "train", str(job), "--out", str(folder))
    assert soon(lambda: (folder / "address").exists() or caller.poll() is not None, 60)
    assert caller.poll() is None, caller.communicate()
    return caller, str(folder)


def until_said(program: Program, what: str) -> str:
    """Reads what the program says, and returns the first line that contains ``what``."""
    assert program.stderr is not None
    lines = []
    for line in program.stderr:
        lines.append(line)
        if what in line:
            return line
    raise AssertionError(f"it said {lines}, and ended with {program.wait()}")


@pytest.mark.slow
def test_a_peer_joins_by_one_address_and_goes_on_alone_when_all_others_are_killed(den: Den) -> None:
    caller, folder = begin(den, workers=2, stop__epochs=None, stop__seconds=25.0)
    kept = den.folder / "kept"
    joined = command(den, "join", folder, "--out", str(kept))
    address = until_said(joined, "this is worker-2, at ").split()[4].rstrip(":")
    until_said(joined, "evaluation")
    caller.kill()  # its peers end with it
    until_said(joined, "worker-2 leads: that is this one")
    out, err = command(den, "status", address).communicate(timeout=60)
    assert "1 peer," in out and "worker-2" in out, err
    out, err = joined.communicate(timeout=90)
    assert joined.returncode == 0, err
    assert "25 seconds are over" in out
    summary = msgspec.json.decode((kept / "summary.json").read_bytes())
    assert summary["steps"] > summary["slots_learned"] > 0 and not summary["failed"] and summary["test_loss"] < 0.6
    run = Run.load(kept)
    assert run.model is not None and getattr(run.events[-1], "why", "") == "25 seconds are over"
    numbers = [event.number for event in run.events if isinstance(event, Evaluated)]
    assert numbers and numbers == list(range(len(numbers)))
    for what in (["report", str(kept)], ["export", str(kept), "--out", str(den.folder / "kept.tar.gz")]):
        out, err = command(den, *what).communicate(timeout=60)
        assert out and "Traceback" not in err and "Error" not in err, err
    assert soon(lambda: not den.alive()) and not list(den.folder.glob("shoal-*"))


@pytest.mark.slow
def test_ctrl_c_leaves_in_order_and_a_peer_may_be_asked_to_leave(den: Den) -> None:
    # It lasts longer than this test looks at it.
    caller, folder = begin(den, workers=2, stop__epochs=500)
    joined = command(den, "join", folder)
    until_said(joined, "evaluation")
    out, err = command(den, "status", folder).communicate(timeout=60)
    assert "3 peers" in out and "of 500 epochs" in out and "worker-0" in out and "leads" in out, err
    out, err = command(den, "status", folder, "--json").communicate(timeout=60)
    assert [peer["name"] for peer in msgspec.json.decode(out)["peers"]].count("worker-2") == 1, err
    out, err = command(den, "query", folder).communicate(timeout=60)
    assert "a run of peers has no tables" in err
    joined.send_signal(signal.SIGINT)
    out, err = joined.communicate(timeout=60)
    assert joined.returncode == 0 and "left; the run goes on" in out, err
    out, err = command(den, "leave", folder, "worker-1").communicate(timeout=60)
    assert out == "worker-1 has left\n", err
    out, err = command(den, "leave", folder, "worker-9").communicate(timeout=60)
    assert "no peer 'worker-9' in this run" in err
    caller.send_signal(signal.SIGINT)
    _, err = caller.communicate(timeout=60)
    assert caller.returncode == 130, err
    events = read_run(Path(folder) / "events.jsonl")
    assert [event.why for event in events if isinstance(event, Gone)] == ["it left", "it left"]
    assert not (Path(folder) / "address").exists()
    assert soon(lambda: not den.alive()) and not list(den.folder.glob("shoal-*"))


def test_who_cannot_join_is_told_why(den: Den, tmp_path: Path) -> None:
    other = tmp_path / "gossip"
    other.mkdir()
    (other / "job.toml").write_text(Job.of({"data": "clicks", "strategy": "gossip"}).toml())
    for where, why in (
        (str(other), "is a run by gossip, which nobody joins or leaves"),
        ("tcp://127.0.0.1:9", "nobody answers at tcp://127.0.0.1:9"),
        ("tcp://10.0.0.1:4000", "can be reached from other machines"),
        (str(tmp_path), "is neither a run's folder nor an address"),
    ):
        program = command(den, "join", where)
        _, err = program.communicate(timeout=60)
        assert program.returncode in (1, 2) and why in err, err
