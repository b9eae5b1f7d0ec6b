"""`shoal train --resume`, and the same command again: which runs go on, which are refused, and what is said."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli import main
from shoal.errors import Invalid
from shoal.events import Joined, Resumed, Started, Stopped, read_run
from shoal.folder import Folder
from shoal.job import Job
from shoal.testing.den import Den, soon

ROWS = "".join(f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5\n" for n in range(100))
JOB = ("rows.svm", "--epochs", "2", "--strategy", "sync", "--set", "data.batch=10", "--set", "launch.how=threads")
ENDLESS = ("rows.svm", "--epochs", "1e9", "--set", "data.batch=10")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE", str(folder))
        yield folder


@pytest.fixture
def home(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.svm").write_text(ROWS)
    return tmp_path


@pytest.fixture
def den() -> Iterator[Den]:
    with Den() as one:
        yield one


def call(*arguments: str) -> Result:
    ended = CliRunner().invoke(main, arguments, prog_name="shoal")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended


def refused(*arguments: str) -> str:
    ended = call("train", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.output
    return ended.stderr.partition("Error: ")[2].strip()


def unfinished(path: str = "run", *more: str) -> Job:
    """A run that was killed before its first checkpoint."""
    job = Job.of({"data": {"source": "rows.svm", "batch": 10}, "strategy": "sync", "stop": {"epochs": 2.0},
                  "launch": {"how": "threads"}})  # fmt: skip
    folder = Folder(Path(path), job)
    folder.append("events.jsonl", b'{"event":"joined","seconds":0.0,"name":"worker-0","role":"worker"}\n{"event":"prog')
    folder._lock = None  # as when its process is gone
    assert (Path(path) / "lock").exists()
    return job


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file() and one.name != "lock"}


# ---------------------------------------------------------------- refused


def test_what_is_no_run_cannot_be_taken_up(home: Path) -> None:
    (home / "empty").mkdir()
    assert "empty has no job.toml: it is no run" in refused("--resume", "empty")
    assert "nowhere has no job.toml" in refused("--resume", "nowhere")
    assert sorted(os.listdir("empty")) == []
    assert "nothing to train on" in refused()
    unfinished()
    assert "leave DATA and --out away" in refused("rows.svm", "--resume", "run")
    assert "leave DATA and --out away" in refused("--resume", "run", "--out", "other")
    with pytest.raises(Invalid, match="leave data and out away"):
        shoal.train("rows.svm", resume="run")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--set", "data.batch=20"], "data.batch was 10, not 20"),
        (["--seed", "3"], "seed was 0, not 3"),
        (["--model", "hinge"], "model.loss was 'logistic', not 'hinge'"),
        (["--strategy", "async"], "strategy.name was 'sync', not 'async'"),
        (["--set", "strategy.slots_per_step=3"], "strategy.slots_per_step was 8, not 3"),
        (["--set", "update.step=0.5"], "update.step was None, not 0.5"),
        (["--test", "rows.svm"], "data.test was '', not 'rows.svm'"),
    ],
)
def test_what_would_make_it_another_run_is_refused_by_name(home: Path, change: list[str], says: str) -> None:
    unfinished()
    before = contents(home / "run")
    assert says in refused("--resume", "run", *change)
    assert says in refused(*JOB, "--out", "run", *change)  # the same command, but for that
    assert contents(home / "run") == before


def test_data_that_have_changed_are_refused(home: Path) -> None:
    unfinished()
    run = call("train", *JOB, "--out", "other")
    assert run.exit_code == 0
    started = next(event for event in read_run(home / "other" / "events.jsonl") if isinstance(event, Started))
    (home / "run" / "events.jsonl").write_bytes(msgspec.json.encode(started) + b"\n")
    (home / "rows.svm").write_text(ROWS + ROWS)
    said = refused("--resume", "run")
    assert "the data have changed since" in said and "begin another run" in said


def test_a_run_that_goes_on_right_now_is_left_alone(home: Path) -> None:
    unfinished()
    first = Folder.again(Path("run"))
    said = refused("--resume", "run")
    assert said.startswith("run has a run in it already, which goes on right now") and str(os.getpid()) in said
    assert "goes on right now" in refused(*JOB, "--out", "run")
    first.release()
    assert not (home / "run" / "lock").exists()
    assert call("train", "--resume", "run").exit_code == 0
    assert not (home / "run" / "lock").exists()


# ---------------------------------------------------------------- finished


def test_a_finished_run_is_told_and_its_figures_shown_again(home: Path) -> None:
    first = call("train", *JOB, "--out", "run")
    assert first.exit_code == 0
    before = contents(home / "run")
    again = call("train", "--resume", "run")
    assert again.exit_code == 0 and again.stdout == first.stdout
    assert again.stderr == "run is finished: there is nothing to go on with\n"
    assert json.loads(call("train", "--resume", "run", "--json").stdout)["steps"] == 4
    assert contents(home / "run") == before
    assert shoal.train(resume="run").summary == shoal.Run.load("run").summary
    assert refused(*JOB, "--out", "run") == "run has a run in it already: choose another folder, or remove it"


# ---------------------------------------------------------------- goes on


@pytest.mark.parametrize("how", [("--resume", "run"), (*JOB, "--out", "run")], ids=["resume", "same command"])
def test_without_a_checkpoint_it_begins_anew_and_says_so(home: Path, how: tuple[str, ...]) -> None:
    unfinished()
    ended = call("train", *how, "--workers", "3", "--servers", "2")
    assert ended.exit_code == 0, ended.output
    assert "there is no checkpoint: it begins anew" in ended.stderr
    run = shoal.Run.load("run")
    assert (run.job.workers, run.job.servers) == (3, 2)
    assert (run.summary["steps"], run.summary["resumed"]) == (4, 1)
    assert isinstance(run.events[0], Resumed) and run.events[0].checkpoint is None
    assert not any(isinstance(event, Joined) and event.name == "worker-9" for event in run.events)
    assert call("train", *JOB, "--out", "calm").exit_code == 0
    calm = shoal.Run.load("calm")
    assert calm.model is not None and run.model is not None
    np.testing.assert_array_equal(run.model.table, calm.model.table)


def test_a_run_that_was_killed_can_be_taken_up_at_once(home: Path, den: Den) -> None:
    """F43 and worse: kill -9. Its lock ends with it."""
    process = den.start("-m", "shoal", "train", *ENDLESS, "--out", "run")
    assert soon(lambda: (home / "run" / "events.jsonl").exists())
    assert "goes on right now" in refused("--resume", "run")
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    ended = call("train", "--resume", "run", "--epochs", "1", "--set", "launch.how=threads")
    assert ended.exit_code == 0, ended.output
    run = shoal.Run.load("run")
    assert run.job.stop.epochs == 1 and run.summary["stopped_because"] == "1 epoch done"
    assert [type(event) for event in run.events].count(Stopped) == 1
