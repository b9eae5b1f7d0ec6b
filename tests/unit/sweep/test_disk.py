"""The folder of a sweep: some runs are kept, some start again, other files stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from shoal.cli.report import make
from shoal.errors import Invalid
from shoal.events import Evaluated, Stopped
from shoal.job import Job
from shoal.sweep.disk import (
    Sweep,
    arrange,
    clear,
    kept,
    look,
    make_way,
    others,
    took,
    write_study,
)
from shoal.sweep.study import PlannedRun, Study

TEXT = 'seeds = 1\n[job]\ndata = "clicks"\n'


def study(grid: str) -> Study:
    import tomllib

    text = f"{TEXT}[grid]\n{grid}\n"
    return Study.of(tomllib.loads(text), "made", text=text)


def ran(out: Path, run: PlannedRun, name: str = "", cores: int = 1, failed: bool = False, loss: float = 0.5) -> Path:
    """The folder of a finished run."""
    folder = out / "runs" / (name or run.name)
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(run.job.toml())
    judged = Evaluated(
        seconds=1.0, number=0, passes=1.0, steps=1, examples=1, train_loss=None, test_loss=loss, metrics={}, workers=1, best=True
    )  # fmt: skip
    events = [judged, Stopped(seconds=1.0, why="that was all")]
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    summary = {"failed": failed, "cores": cores, "stopped_because": "that was all", "test_loss": 0.5}
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    return folder


def states(asked: Study, out: Path, cores: int = 1) -> list[str]:
    return [look(run, out, cores).state for run in asked.runs]


def test_a_run_is_finished_if_its_settings_and_its_cores_are_the_same(tmp_path: Path) -> None:
    asked = study("workers = [1, 2, 3, 4]")
    first, second, third, _ = asked.runs
    ran(tmp_path, first)
    ran(tmp_path, second, cores=2)  # measured on other cores
    ran(tmp_path, PlannedRun(third.point, 0, Job(workers=9)), third.name)  # of another job
    assert states(asked, tmp_path) == ["finished", "unfinished", "unfinished", "to do"]


def test_a_finished_run_stays_one_whatever_is_written_beside_or_into_it(tmp_path: Path) -> None:
    asked = study("workers = [1, 2, 3]")
    first, second, third = (ran(tmp_path, run) for run in asked.runs)
    with open(first / "events.jsonl", "ab") as events:
        events.write(b"junk\n")
    (second / "failed.txt").write_text("it was not")
    (third / "events.jsonl").unlink()
    assert states(asked, tmp_path) == ["finished", "finished", "unfinished"]
    make_way(third, tmp_path)
    assert not third.exists() and (tmp_path / "former" / f"{third.name}-1" / "summary.json").exists()


def test_one_that_was_interrupted_is_not_finished_and_one_that_diverged_is_done(tmp_path: Path) -> None:
    asked = study("workers = [1, 2]")
    ran(tmp_path, asked.runs[0], failed=True)
    ran(tmp_path, asked.runs[1], failed=True, loss=float("nan"))
    assert states(asked, tmp_path) == ["unfinished", "diverged"]


def test_damaged_files_are_no_finished_run(tmp_path: Path) -> None:
    asked = study("workers = [1, 2, 3]")
    for run, name in zip(asked.runs, ("summary.json", "job.toml", "events.jsonl"), strict=True):
        (ran(tmp_path, run) / name).write_text("{")
    assert states(asked, tmp_path)[:2] == ["unfinished", "unfinished"]


def test_names_that_go_round_in_a_circle_lose_nothing(tmp_path: Path) -> None:
    asked = study("workers = [1, 2, 3]")
    names = [run.name for run in asked.runs]
    for run, name in zip(asked.runs, names[1:] + names[:1], strict=True):
        ran(tmp_path, run, name)
    assert set(states(asked, tmp_path)) == {"unfinished"} and len(kept(asked, tmp_path, 1)) == 3
    arrange(asked, tmp_path, 1)
    assert states(asked, tmp_path) == ["finished"] * 3
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(names)


def test_a_finished_run_of_a_former_study_makes_room_and_is_not_lost(tmp_path: Path) -> None:
    before, after = study("workers = [1, 2]"), study("workers = [1, 2]\nservers = [1]")
    other = PlannedRun(before.runs[0].point, 0, Job(workers=7))
    ran(tmp_path, other, after.runs[0].name)
    ran(tmp_path, before.runs[1])
    arrange(after, tmp_path, 1)
    assert states(after, tmp_path) == ["to do", "finished"]
    assert [path.name for path in (tmp_path / "former").iterdir()] == [f"{after.runs[0].name}-1"]


def test_runs_that_are_not_in_the_study_stay_where_they_are(tmp_path: Path) -> None:
    asked = study("workers = [1, 2]")
    ran(tmp_path, asked.runs[0])
    fewer = study("workers = [2]")
    arrange(fewer, tmp_path, 1)
    write_study(fewer, tmp_path)
    assert others(Sweep.load(tmp_path)) == 1
    assert states(asked, tmp_path) == ["finished", "to do"]


def test_what_is_no_run_is_never_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(Invalid, match="holds something else: move it away"):
        clear(mine)
    assert (mine / "thesis.tex").exists()
    clear(tmp_path / "nothing")


def test_how_long_a_run_took_is_seen_on_its_files(tmp_path: Path) -> None:
    import os

    asked = study("workers = [1, 2]")
    folder = ran(tmp_path, asked.runs[0])
    os.utime(folder / "job.toml", (100.0, 100.0))
    os.utime(folder / "summary.json", (107.5, 107.5))
    assert took([look(run, tmp_path, 1) for run in asked.runs]) == [7.5]


def test_a_sweep_whose_runs_were_deleted_still_has_a_report(tmp_path: Path) -> None:
    asked = study("workers = [1, 2]")
    write_study(asked, tmp_path)
    for run in asked.runs:
        ran(tmp_path, run)
    for gone, missing in (
        ("runs/workers=2-seed0", "workers 2 (1 of 1)"),
        ("runs", "workers 1 (1 of 1); workers 2 (1 of 1)"),
    ):
        shutil.rmtree(tmp_path / gone)
        (page,) = make([tmp_path])
        assert f"Missing (not run yet, or deleted): {missing}." in page.read_text()


def test_a_folder_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"has no study\.toml: it is no sweep"):
        Sweep.load(tmp_path)
