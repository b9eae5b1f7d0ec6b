"""`shoal train --resume`, and the same command again: which runs resume.

It also covers which runs are refused, and what is printed.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.errors import Invalid
from shoal.events import Joined, Resumed, Started, Stopped, read_run
from shoal.job import Job
from shoal.run.folder import RunFolder
from shoal.run.run import execute
from shoal.strategies.parameter_server.run import ServerRun
from tests.support.sandbox import Den, soon

ROWS = "".join(f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5\n" for n in range(100))
JOB = ("rows.svm", "--epochs", "2", "--strategy", "sync", "--set", "data.batch=10", "--set", "launch.how=threads")
ENDLESS = ("rows.svm", "--epochs", "1e9", "--set", "data.batch=10")


@pytest.fixture
def home(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.svm").write_text(ROWS)
    return tmp_path


def call(*arguments: str) -> Result:
    ended = CliRunner().invoke(main, arguments, prog_name="shoal")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended


def refused(*arguments: str) -> str:
    ended = call("train", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.output
    return ended.stderr.partition("Error: ")[2].strip()


def unfinished(path: str = "run", *more: str) -> Job:
    """Make a run that was killed before its first checkpoint."""
    job = Job.of({"data": {"source": "rows.svm", "batch": 10}, "strategy": "sync", "stop": {"epochs": 2.0},
                  "launch": {"how": "threads"}})  # fmt: skip
    folder = RunFolder(Path(path), job)
    folder.append("events.jsonl", b'{"event":"joined","seconds":0.0,"name":"worker-0","role":"worker"}\n{"event":"prog')
    folder._lock = None  # as if its process were gone
    assert (Path(path) / "lock").exists()
    return job


def contents(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir() if one.is_file() and one.name != "lock"}


# ---------------------------------------------------------------- refused


def test_what_is_no_run_cannot_be_taken_up(home: Path) -> None:
    (home / "empty").mkdir()
    assert "empty has no job.toml: it is not a run" in refused("--resume", "empty")
    assert "nowhere has no job.toml" in refused("--resume", "nowhere")
    assert sorted(os.listdir("empty")) == []
    assert "nothing to train on" in refused()
    unfinished()
    assert "give neither DATA nor --out" in refused("rows.svm", "--resume", "run")
    assert "give neither DATA nor --out" in refused("--resume", "run", "--out", "other")
    with pytest.raises(Invalid, match="neither data nor out"):
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
    assert says in refused(*JOB, "--out", "run", *change)  # the same command with that change
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
    first = RunFolder.existing(Path("run"))
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


# ---------------------------------------------------------------- resumed


@pytest.mark.variants(slow=["same command"])
@pytest.mark.parametrize("how", [("--resume", "run"), (*JOB, "--out", "run")], ids=["resume", "same command"])
def test_without_a_checkpoint_it_begins_anew_and_says_so(home: Path, how: tuple[str, ...]) -> None:
    unfinished()
    ended = call("train", *how, "--workers", "3", "--servers", "2")
    assert ended.exit_code == 0, ended.output
    assert "there is no checkpoint: it begins from the start" in ended.stderr
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
    """F43 and worse: after kill -9, the lock ends with its process."""
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


# ---------------------------------------------------------------- damaged, or of another run


def stopped(path: str = "run", saves: int = 1, **settings: Any) -> Path:
    """Make an interrupted run with this many checkpoints."""
    job = Job.of({"data": {"source": "rows.svm", "batch": 10}, "strategy": "sync", "stop": {"epochs": 1e9},
                  "launch": {"how": "threads"}, **settings})  # fmt: skip

    def started(training: ServerRun) -> None:
        assert soon(lambda: training.course.done)
        for _ in range(saves - 1):
            training._client.save(60)
        raise KeyboardInterrupt  # this also saves

    with pytest.raises(KeyboardInterrupt):
        execute(job, Path(path), started=started)
    assert len(saved(Path(path))) == saves
    return Path(path)


def saved(run: Path) -> list[Path]:
    return sorted(manifest.parent for manifest in (run / "checkpoints").glob("0*/manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now"), [("seed = 0", "seed = 3"), ("batch = 10", "batch = 20"), ("hinge", "logistic")]
)
def test_a_job_that_was_edited_is_not_that_of_its_checkpoints(home: Path, was: str, now: str) -> None:
    run = stopped(model="hinge")
    text = (run / "job.toml").read_text()
    assert was in text
    (run / "job.toml").write_text(text.replace(was, now))
    before = contents(run)
    said = refused("--resume", "run")
    assert "is of another run: job.toml was edited, or these are another run's checkpoints" in said
    assert "to begin a fresh one" in said and contents(run) == before
    (run / "job.toml").write_text(text)
    assert call("train", "--resume", "run", "--workers", "3", "--epochs", "1").exit_code == 0


@pytest.mark.slow
def test_checkpoints_of_another_run_are_passed_over_by_name(home: Path) -> None:
    run = stopped()
    # Not always the first: an attempt that was given up also had a number.
    [mine] = saved(run)
    for unfinished in set((run / "checkpoints").glob("0*")) - {mine}:
        shutil.rmtree(unfinished)
    theirs = saved(stopped("other", int(mine.name) + 1, seed=3))[-1]
    number = int(theirs.name)
    shutil.copytree(theirs, run / "checkpoints" / theirs.name)
    mine.rename(run / "mine")
    assert refused("--resume", "run").startswith(f"checkpoint {number} is of another run")
    (run / "mine").rename(mine)
    ended = call("train", "--resume", "run", "--epochs", "1")
    assert ended.exit_code == 0 and f"checkpoint {number} is of another run" in ended.stderr, ended.output
    resumed = [event.checkpoint for event in shoal.Run.load("run").events if isinstance(event, Resumed)]
    assert resumed == [int(mine.name)]


def test_a_run_is_the_same_wherever_it_runs_and_its_data_lie() -> None:
    job = Job.of({"data": "a/rows.svm"})
    same = Job.of({"data": "b/rows.svm", "workers": 7, "servers": 3, "copies": 2, "stop": {"epochs": 9.0}})
    assert job.identity == same.identity
    for change in ({"seed": 1}, {"model": "hinge"}, {"strategy": "sync"}, {"update": {"rule": "adagrad", "l1": 0.1}}):
        assert Job.of({"data": "a/rows.svm", **change}).identity != job.identity
    assert Job.of({"data": "a/others.svm"}).identity != job.identity


def test_damaged_lines_are_passed_over_with_one_warning(home: Path) -> None:
    unfinished()
    (home / "run" / "events.jsonl").write_bytes(
        b'[1]\n{"event":"nonsense"}\n\xff\xfe\n{"event":"stopped","seconds":"x"}\n'
    )
    ended = call("train", "--resume", "run")
    assert ended.exit_code == 0 and ended.stderr.count("4 damaged lines passed over") == 1, ended.output
    assert shoal.Run.load("run").summary["steps"] == 4


@pytest.mark.parametrize("name", ["lock", "events.jsonl", "checkpoints", "summary.json"])
def test_what_should_not_be_there_is_told(home: Path, name: str) -> None:
    unfinished()
    path = home / "run" / name
    path.unlink(missing_ok=True)
    path.write_text("mine") if name == "checkpoints" else path.mkdir()
    said = refused("--resume", "run")
    assert said.startswith(("cannot", str(path))) and ("move it away" in said or "make" in said), said
    assert sorted(os.listdir("run")) == sorted(
        {"job.toml", "events.jsonl", name, *(["lock"] if name == "lock" else [])}
    )


def test_a_numbered_entry_that_is_no_folder_is_passed_over(home: Path) -> None:
    run = stopped()
    os.mkfifo(run / "checkpoints" / "00000099")
    ended = call("train", "--resume", "run", "--epochs", "1")
    assert ended.exit_code == 0, ended.output
    assert "00000099: cannot be read: Not a directory" in ended.stderr and "from checkpoint" in ended.stderr
    assert "could not be saved" not in ended.stderr


def test_a_full_disk_leaves_the_run_as_it_was(home: Path) -> None:
    unfinished()
    before = contents(home / "run")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = RunFolder.existing(Path("run"))
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limit[1]))  # like a full disk
    try:
        with pytest.raises(Invalid, match=r"cannot write to .*run: .*: make room"):
            folder.begin_again(Job(), fresh=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, heard)
        folder.release()
    assert contents(home / "run") == before


def test_a_damaged_journal_is_told(home: Path) -> None:
    run = stopped()
    journal = run / "coordinator.journal"
    whole = bytearray(journal.read_bytes())
    whole[len(whole) // 2] ^= 0x10
    journal.write_bytes(whole)
    ended = call("train", "--resume", "run", "--epochs", "1")
    assert ended.exit_code == 0 and "the journal is damaged at byte" in ended.stderr, ended.output
