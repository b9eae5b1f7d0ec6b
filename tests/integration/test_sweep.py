"""`shoal sweep` on real processes: what it runs, what it keeps, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.files import Lock
from shoal.sweep.disk import Sweep
from shoal.sweep.report import sections
from tests.support import PATIENCE
from tests.support.sandbox import Den, soon

ROWS = "".join(f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5\n" for n in range(100))
STUDY = """
what = "Does the step matter?"
seeds = {seeds}
cores = 1
{more}
[job]
data = "rows.svm"
data_batch
launch = {{how = "threads"}}
stop = {{{stop}}}
[grid]
"update.step" = [{steps}]
"""


def study(steps: str = "0.1, 0.2", seeds: int = 1, stop: str = "epochs = 1", more: str = "") -> None:
    text = STUDY.format(steps=steps, seeds=seeds, stop=stop, more=more).replace("data_batch\n", "")
    Path("steps.toml").write_text(text)


@pytest.fixture
def home(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains rows.svm."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.svm").write_text(ROWS)
    return tmp_path


def call(*arguments: str, code: int = 0) -> Result:
    """Run `shoal sweep steps.toml` in this process (its runs are processes of their own)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *given: None)  # pytest keeps its own handlers
        ended = CliRunner().invoke(main, ["sweep", "steps.toml", *arguments], prog_name="shoal")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code == code, ended.output
    return ended


def summaries(folder: Path = Path("sweeps/steps")) -> dict[str, int]:
    """Return the finished runs, each with a time that changes if it runs again."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/summary.json")}


@pytest.mark.slow
def test_a_study_is_run_and_shown_and_the_same_command_again_runs_nothing(home: Path) -> None:
    study(seeds=2, more="target = 0.69")
    listed = call("--dry-run").stdout
    assert listed.count("to do") == 4 and "4 runs, 4 left" in listed
    assert not Path("sweeps").exists()
    ended = call()
    assert "4 runs, all finished" in ended.stdout and "look at it: sweeps/steps" in ended.stdout
    there = summaries()
    assert sorted(there) == ["step=0.1-seed0", "step=0.1-seed1", "step=0.2-seed0", "step=0.2-seed1"]
    for name in ("table.csv", "table.json", "time.svg", "time.png", "curves.svg", "study.toml"):
        assert (Path("sweeps/steps") / name).stat().st_size > 100
    again = json.loads(call("--json").stdout)
    assert [run["state"] for run in again["runs"]] == ["finished"] * 4
    assert all(run["cores"] == 1 for run in again["runs"])
    assert summaries() == there
    assert "4 runs, 0 left" in call("--dry-run").stdout
    sweep = Sweep.load("sweeps/steps")
    assert not sweep.left and sweep.study.name == "steps"
    assert [section.title for section in sections(sweep)] == ["steps", "Findings", "Every run"]


@pytest.mark.soak
def test_a_study_that_changes_keeps_the_runs_that_are_still_in_it(home: Path) -> None:
    study("0.1, 0.2")
    call()
    there = summaries()
    study("0.2, 0.4")
    call()
    assert summaries()["step=0.2-seed0"] == there["step=0.2-seed0"]
    assert sorted(summaries()) == ["step=0.1-seed0", "step=0.2-seed0", "step=0.4-seed0"]
    assert [one.run.name for one in Sweep.load("sweeps/steps").results] == ["step=0.2-seed0", "step=0.4-seed0"]
    with open("steps.toml", "a") as file:
        # 2 is the default, so the runs are the same, under new names.
        file.write("workers = [2]\n")
    call()
    assert summaries()["step=0.2,workers=2-seed0"] == there["step=0.2-seed0"]
    study("0.2", stop="epochs = 2")
    Path("sweeps/steps/runs/step=0.2,workers=2-seed0").rename("sweeps/steps/runs/step=0.2-seed0")
    call()
    # It is another job, so it was run, and the former run is kept.
    assert summaries()["step=0.2-seed0"] != there["step=0.2-seed0"]
    assert Path("sweeps/steps/former/step=0.2-seed0-1/summary.json").exists()


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other_and_is_tried_again(home: Path) -> None:
    long = "epochs = 200"  # or both may end before anybody checks
    study(stop=long, more="timeout = 0.01")
    said = call(code=1)
    assert len(re.findall("[12] failed", said.stdout)) == 1 and "given up after 0.01 s: raise timeout" in said.stdout
    assert "failed" in call("--dry-run").stdout
    study(stop=long)
    assert "2 runs, all finished" in call().stdout


@pytest.mark.soak
def test_a_loss_that_runs_away_is_a_result_and_not_run_again(home: Path) -> None:
    Path("rows.svm").write_text(ROWS.replace(":1 ", ":1e18 "))
    study("1e30, 0.1", stop="epochs = 3", more="# sgd")
    text = Path("steps.toml").read_text().replace("[grid]", "model = 'squared'\nupdate = 'sgd'\n[grid]")
    Path("steps.toml").write_text(text)
    ended = call()
    assert "diverged" in ended.stdout
    there = summaries()
    call()
    assert summaries() == there


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[job]\ndata = "rows.svm"\n[grid]\nworkers = []\n', "steps.toml: [grid] workers has no values"),
        ('[job]\ndata = "nowhere.svm"\n[grid]\nworkers = [1]\n', "no file 'nowhere.svm'"),
        ('cores = 999\n[job]\ndata = "rows.svm"\n[grid]\nworkers = [1]\n', "cores = 999, but this process may use"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(home: Path, text: str, says: str) -> None:
    Path("steps.toml").write_text(text)
    ended = call(code=2)
    assert says in ended.stderr and ended.stdout == ""
    assert not Path("sweeps").exists()


def test_two_sweeps_do_not_share_a_folder(home: Path) -> None:
    study()
    Path("sweeps/steps").mkdir(parents=True)
    lock = Lock(Path("sweeps/steps"), Path("sweeps/steps"), "sweep")
    assert f"has a sweep in it already, which goes on right now (process {os.getpid()})" in call(code=2).stderr
    lock.release()
    assert not summaries()


def begun(den: Den) -> subprocess.Popen[str]:
    """Start a sweep whose first run is finished and whose second never ends."""
    study("0.1", stop="epochs = 1")
    call()
    study("0.1, 0.2", stop="epochs = 1")
    text = Path("steps.toml").read_text().split("[grid]")[0]
    text += '[grid.method]\nshort = {"update.step" = 0.1}\nlong = {"update.step" = 0.2, stop = {epochs = 1e9}, launch = {how = "processes"}}\n'
    Path("steps.toml").write_text(text)
    process = den.start("-m", "shoal", "sweep", "steps.toml")
    events = Path("sweeps/steps/runs/long-seed0/events.jsonl")
    assert soon(lambda: events.exists() and b'"progress"' in events.read_bytes(), PATIENCE), process.poll()
    return process


@pytest.mark.variants(soak=["9--9"])
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak), (signal.SIGKILL, -9)],
)
def test_a_sweep_that_is_ended_leaves_nothing_behind_and_goes_on_when_started_again(
    home: Path, den: Den, number: signal.Signals, code: int
) -> None:
    process = begun(den)
    there = summaries()
    assert list(there) == ["short-seed0"]
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, said
    if number != signal.SIGKILL:
        assert "1 of 2 runs are finished; go on with the others: shoal sweep steps.toml" in said
        assert "Traceback" not in said
    assert soon(lambda: not den.left(), PATIENCE), den.left()
    text = Path("steps.toml").read_text().replace("epochs = 1e9", "epochs = 2")
    Path("steps.toml").write_text(text)
    assert "2 runs, all finished" in call().stdout
    assert summaries()["short-seed0"] == there["short-seed0"]  # not run again


@pytest.mark.slow
def test_everything_is_killed_at_once_and_no_finished_run_is_lost(home: Path, den: Den) -> None:
    begun(den)
    there = summaries()
    for pid in den.alive():
        os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not den.alive(), PATIENCE)
    text = Path("steps.toml").read_text().replace("epochs = 1e9", "epochs = 2")
    Path("steps.toml").write_text(text)
    assert "2 runs, all finished" in call().stdout
    assert summaries()["short-seed0"] == there["short-seed0"]


def test_the_folder_of_a_run_is_not_made_one_of_a_sweep(home: Path) -> None:
    Path("run").mkdir()
    Path("run/job.toml").write_text("")
    study()
    assert "is the folder of a run" in call("--out", "run", code=2).stderr
    assert [path.name for path in Path("run").iterdir()] == ["job.toml"]
