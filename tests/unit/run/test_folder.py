"""A run folder belongs to one run, and its files are written completely.

Nothing is lost where a file cannot be written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.errors import Invalid, RunFailed
from shoal.events import Joined, RunEvent, Stopped, read_run
from shoal.files import replace_file
from shoal.job import Job
from shoal.models.linear import Linear
from shoal.models.trained import Trained
from shoal.run.finished import Run
from shoal.run.folder import EventLog, RunFolder
from shoal.run.resume import differences
from shoal.run.run import train
from shoal.settings_tree import changed
from shoal.views import summary_figures
from tests.support.sandbox import soon

EVENTS: list[RunEvent] = [Joined(seconds=0.0, name="worker-0", role="worker"), Stopped(seconds=1.5, why="done")]


def finished(folder: Path | None = None) -> Run:
    model = Trained(np.array([1.0, 2.0, 3.0], np.float32), Linear(), 2)
    return Run(Job(workers=3), model, {"steps": 7, "test_loss": 0.25}, list(EVENTS), folder)


def names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


# ---------------------------------------------------------------- the folder


def test_a_run_that_is_saved_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "run", finished().job)
    saved = folder.save(finished())
    assert saved == tmp_path / "a" / "run"
    assert {"job.toml", "events.jsonl", "model.safetensors", "summary.json"} <= set(names(saved))
    back = Run.load(str(saved))
    assert back.model is not None and back.model.table.tolist() == [1.0, 2.0, 3.0]
    assert (back.job, back.summary, back.events, back.folder) == (
        Job(workers=3), {"steps": 7, "test_loss": 0.25}, EVENTS, saved
    )  # fmt: skip


def test_a_run_that_learned_nothing_has_no_model(tmp_path: Path) -> None:
    run = finished()
    run.model = None
    saved = RunFolder(tmp_path / "run", run.job).save(run)
    assert "model.safetensors" not in names(saved)
    assert Run.load(saved).model is None


def test_a_folder_with_a_run_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    RunFolder(tmp_path, Job(workers=3))
    before = (tmp_path / "job.toml").read_text()
    with pytest.raises(Invalid, match="has a run in it already: choose another folder"):
        RunFolder(tmp_path, Job(workers=4))
    assert (tmp_path / "job.toml").read_text() == before


def test_a_folder_may_have_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder = RunFolder(tmp_path, Job())
    folder.discard()
    assert names(tmp_path) == ["notes.txt"]


def test_a_path_that_can_be_no_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(Invalid, match="is a file: choose another folder"):
        RunFolder(file, Job())
    with pytest.raises(Invalid, match=r"cannot write to .*: choose another folder \(--out\)"):
        RunFolder(file / "run", Job())
    assert file.read_text() == "mine"


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", Job())
    folder.append("events.jsonl", b"{}\n")
    folder.append("coordinator.journal", b"x")
    folder.discard()
    assert names(tmp_path) == []
    folder.discard()  # a second call has no effect


@pytest.mark.parametrize(
    ("out", "data", "says"),
    [("run", "no-such-file.svm", "no file"), ("run", "clicks", "synthetic sets have")],
)
def test_a_train_that_cannot_begin_leaves_no_folder(out: str, data: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=says):
        train(data, out=tmp_path / out, settings={"data.features": 2})
    assert names(tmp_path) == []


def test_a_relative_path_means_what_it_meant_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path("run"), Job())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert folder.save(finished()) == tmp_path / "run"


def test_a_run_whose_folder_is_gone_is_saved_elsewhere_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    folder = RunFolder(tmp_path / "run", finished().job)
    folder.discard()
    saved = folder.save(finished())
    assert saved.parent == spare
    assert Run.load(saved).summary == finished().summary
    assert f"the run is in {saved}" in capsys.readouterr().err


def test_a_run_that_can_be_saved_nowhere_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run", finished().job)
    folder.discard()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(RunFailed, match="the model is in memory only"):
        folder.save(finished())


@pytest.mark.parametrize("missing", ["summary.json", "events.jsonl"])
def test_a_folder_that_is_not_whole_is_no_run(missing: str, tmp_path: Path) -> None:
    saved = RunFolder(tmp_path / "run", finished().job).save(finished())
    (saved / missing).unlink()
    with pytest.raises(Invalid, match=f"has no {missing}: it is not a run, or one that has not ended"):
        Run.load(saved)


def test_a_run_whose_files_are_damaged_is_refused(tmp_path: Path) -> None:
    saved = RunFolder(tmp_path / "run", finished().job).save(finished())
    (saved / "summary.json").write_text("{")
    with pytest.raises(Invalid, match="cannot be read"):
        Run.load(saved)


# ---------------------------------------------------------------- resuming


def test_a_folder_is_used_by_one_run_at_a_time(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run", Job())
    for _ in range(2):
        with pytest.raises(
            Invalid, match=rf"goes on right now \(process {os.getpid()}\): choose another folder, or wait"
        ):
            RunFolder.existing(tmp_path / "run")
    first.release()
    second = RunFolder.existing(tmp_path / "run")
    with pytest.raises(Invalid, match="goes on right now"):
        RunFolder.existing(tmp_path / "run")
    second.release()
    assert names(tmp_path / "run") == ["job.toml"]


def test_a_run_that_is_taken_up_and_does_not_begin_is_left_as_it_was(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", Job()).append("events.jsonl", b"{}\n")
    RunFolder.existing(tmp_path / "run").discard()
    assert names(tmp_path / "run") == ["events.jsonl", "job.toml"]


def test_a_line_that_was_cut_short_is_gone_when_the_next_is_written(tmp_path: Path) -> None:
    before = RunFolder(tmp_path / "run", Job())
    log = EventLog(before, None)
    log(EVENTS[0])
    log.settle()
    with open(tmp_path / "run" / "events.jsonl", "ab") as file:
        file.write(b'{"event":"stop')
    before.release()
    folder = RunFolder.existing(tmp_path / "run")
    again = EventLog(folder, None, folder.events()[0])
    again(EVENTS[1])
    again.settle()
    assert again.events == EVENTS == read_run(tmp_path / "run" / "events.jsonl")
    assert again.new == EVENTS[1:]


def test_what_was_learned_stays_until_there_is_more_unless_it_begins_anew(tmp_path: Path) -> None:
    for anew in (False, True):
        saved = RunFolder(tmp_path / f"run-{anew}", finished().job)
        saved.save(finished())
        saved.begin_again(Job(workers=5), anew)
        left = {"job.toml", "lock"} if anew else {"job.toml", "lock", "events.jsonl", "model.safetensors", "loss.png"}
        assert set(names(saved.path)) | {"loss.png"} == left | {"loss.png"}
        assert Job.load(saved.path / "job.toml").workers == 5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"workers": 9, "servers": 3, "copies": 2, "stop.epochs": 9, "evaluate.every": 2.0, "checkpoint.every": 1.0},
            [],
        ),
        ({"launch.how": "threads"}, []),
        ({"data.batch": 7, "workers": 9}, ["data.batch was 256, not 7"]),
        ({"seed": 3}, ["seed was 0, not 3"]),
        ({"strategy": "sync"}, ["strategy.name was 'async', not 'sync'"]),
    ],
)
def test_what_makes_it_another_run_is_named(changes: dict[str, Any], named: list[str]) -> None:
    was = Job()
    found = differences(was, Job.of(changed(msgspec.to_builtins(was), changes)))
    assert found[: len(named)] == named and bool(found) == bool(named)


# ---------------------------------------------------------------- events


def test_events_are_on_disk_while_they_happen(tmp_path: Path) -> None:
    heard: list[RunEvent] = []
    log, path = EventLog(RunFolder(tmp_path / "run", Job()), heard.append), tmp_path / "run" / "events.jsonl"
    for number, event in enumerate(EVENTS):
        log(event)
        assert soon(lambda number=number: path.exists() and read_run(path) == EVENTS[: number + 1] == heard)


def test_an_on_event_that_fails_is_told_once_and_called_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[RunEvent] = []

    def broken(event: RunEvent) -> None:
        calls.append(event)
        raise ZeroDivisionError("my mistake")

    log = EventLog(None, broken)
    for event in EVENTS:
        log(event)
    log.close()
    assert len(calls) == 1 and log.events == EVENTS
    assert capsys.readouterr().err.count("ZeroDivisionError: my mistake in on_event") == 1


def test_events_that_cannot_be_written_are_kept_and_written_at_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", Job())
    folder.discard()
    log = EventLog(folder, None)
    for event in EVENTS:
        log(event)
    log.settle()
    assert log.events == EVENTS and "No such file" in log.error


# ---------------------------------------------------------------- files


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new, and longer")
    assert path.read_bytes() == b"old" and names(tmp_path) == ["file"]
    monkeypatch.undo()
    replace_file(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o644


# ---------------------------------------------------------------- figures


def test_staleness_is_told_as_mean_tail_and_most() -> None:
    assert (
        summary_figures.staleness([])
        == summary_figures.staleness([0, 0])
        == {"mean": None, "p95": None, "max": None, "counts": []}
    )
    assert summary_figures.staleness([5]) == {"mean": 0.0, "p95": 0, "max": 0, "counts": [5]}
    assert summary_figures.staleness([94, 0, 0, 6, 0]) == {"mean": 0.18, "p95": 3, "max": 3, "counts": [94, 0, 0, 6, 0]}
    assert summary_figures.staleness([95, 0, 0, 5]) == {"mean": 0.15, "p95": 0, "max": 3, "counts": [95, 0, 0, 5]}
