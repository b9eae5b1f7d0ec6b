"""`shoal report` on real runs: what it writes, where, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import shoal
from shoal.cli.main import main
from shoal.cli.report import make

pytest.importorskip("matplotlib")

ROWS = "".join(f"{(-1) ** n} {n % 20 + 1}:1 {n % 7 + 30}:0.5\n" for n in range(400))
SETTINGS = {"data.batch": 10, "evaluate.every": 0.5, "emulate.per_example": 1e-4, "emulate.factor": 3.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Make two real runs of a file whose name is a script unless a page escapes it."""
    home = tmp_path_factory.mktemp("runs")
    rows = home / "<script>alert(1)<!--.svm"
    rows.write_text(ROWS)
    for strategy in ("sync", "async"):
        shoal.train(rows, strategy=strategy, workers=2, epochs=3, out=home / strategy, settings=SETTINGS)
    return home


def call(*arguments: str | Path) -> Result:
    ended = CliRunner().invoke(main, ["report", *map(str, arguments)], prog_name="shoal")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended


def refused(*arguments: str | Path) -> str:
    ended = call(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.output
    return ended.stderr.partition("Error: ")[2].strip()


@pytest.mark.slow
def test_a_run_gets_a_page_in_its_folder(runs: Path) -> None:
    ended = call(runs / "sync")
    assert (ended.exit_code, ended.stdout) == (0, f"look at it: {runs / 'sync' / 'report.html'}\n")
    text = (runs / "sync" / "report.html").read_text()
    for title in (
        "Findings",
        "Losses",
        "Where the time went",
        "Timeline",
        "Bytes",
        "What was trained",
        "The machine",
    ):
        assert f">{title}</h2>" in text
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text
    assert "Emulated compute (100 us per example), worker-0 3x slower" in text
    assert "All 2 workers were at work at every evaluation." in text


@pytest.mark.slow
def test_every_worker_is_accounted_for_slot_by_slot(runs: Path) -> None:
    told = shoal.Run.load(runs / "async")
    done = [event.each for event in told.events if isinstance(event, shoal.events.Evaluated)]
    slots = sum(int(one["slots"]) for each in done for one in each.values())
    assert slots == told.summary["steps"] == 3 * 36  # nine tenths of 400 rows, ten to a slot
    assert {name for each in done for name in each} == {"worker-0", "worker-1"}


def test_several_runs_are_compared_and_traced(runs: Path, tmp_path: Path) -> None:
    ended = call(runs / "sync", runs / "async", "--out", tmp_path / "both.html", "--trace", tmp_path / "both.json")
    assert ended.exit_code == 0, ended.output
    text = (tmp_path / "both.html").read_text()
    assert "2 runs: sync, async" in text and ">Figures</h2>" in text and "was there first" in text
    events = json.loads((tmp_path / "both.json").read_bytes())["traceEvents"]
    assert {one["args"]["name"] for one in events if one["name"] == "process_name"} == {"sync", "async"}
    assert {one["name"] for one in events if one["ph"] == "X"} >= {"compute"}


def test_markdown_has_its_pictures_beside_it(runs: Path, tmp_path: Path) -> None:
    assert call(runs / "async", "--markdown", "--out", tmp_path / "new" / "folder").exit_code == 0
    text = (tmp_path / "new" / "folder" / "report.md").read_text()
    names = [path.name for path in (tmp_path / "new" / "folder" / "report-pictures").iterdir()]
    assert names and all(f"(report-pictures/{name})" in text for name in names)
    assert call(runs / "async", "--out", tmp_path / "other.md").exit_code == 0
    assert (tmp_path / "other.md").read_text().startswith("# async: ")


def test_a_run_that_did_not_end_gets_a_page_that_says_so(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    lines = (runs / "sync" / "events.jsonl").read_bytes()
    (tmp_path / "cut" / "events.jsonl").write_bytes(lines[: len(lines) // 2])
    assert call(tmp_path / "cut").exit_code == 0
    assert "No end is recorded: the run goes on, or was cut short." in (tmp_path / "cut" / "report.html").read_text()


def test_what_cannot_be_is_refused_with_what_to_do(runs: Path, tmp_path: Path) -> None:
    assert "there is no folder" in refused(tmp_path / "none")
    assert "is no run: it has no events.jsonl" in refused(tmp_path)
    assert "there is no folder" in refused(runs / "sync", "--out", tmp_path / "no" / "report.html")
    assert "end it in .md" in refused(runs / "sync", "--markdown", "--out", tmp_path / "report.html")
    (tmp_path / "file").write_text("")
    assert "cannot make the folder" in refused(runs / "sync", "--out", tmp_path / "file")
    assert not list(tmp_path.glob("*.html"))


def test_a_full_disk_is_told(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("shoal.files.os.fsync", full)
    assert "No space left on device: make room, or choose another place (--out)" in refused(
        runs / "sync", "--out", tmp_path
    )
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_there_are_words_and_tables_and_it_is_said_how_to_get_pictures(
    runs: Path, tmp_path: Path
) -> None:
    code = "import sys; sys.modules['matplotlib'] = None\nfrom shoal.cli.main import main\nmain()"
    given = ["report", str(runs / "sync"), "--out", str(tmp_path), "--trace", str(tmp_path / "trace.json")]
    ended = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "no pictures: matplotlib is not installed; pip install" in ended.stderr
    page = (tmp_path / "report.html").read_text()
    assert ">Findings</h2>" in page and "<table" in page and "<svg" not in page
    assert (tmp_path / "trace.json").stat().st_size


def test_nothing_is_written_over_that_is_no_plain_file(runs: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere.html")
    assert "no plain file" in refused(runs / "sync", "--out", tmp_path / "x.html", "--trace", tmp_path / "fifo.json")
    assert "no plain file" in refused(runs / "sync", "--out", tmp_path / "link.html")
    assert "choose two names" in refused(runs / "sync", "--out", tmp_path / "x.html", "--trace", tmp_path / "x.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo.json", "link.html"]


def test_the_same_run_twice_is_one(runs: Path, tmp_path: Path) -> None:
    (path,) = make([runs / "sync", runs / "sync"], tmp_path)
    assert ">Figures</h2>" not in path.read_text()


@pytest.mark.slow
def test_a_sweep_gets_a_page_too_alone_or_beside_runs(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text(ROWS)
    study = tmp_path / "steps.toml"
    job = f'[job]\ndata = "{tmp_path / "rows.svm"}"\nlaunch = {{how = "threads"}}\nstop = {{epochs = 1}}\n'
    study.write_text(f'what = "Does the step matter?"\n{job}[grid]\n"update.step" = [0.1, 0.2]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("signal.signal", lambda *given: None)  # pytest keeps its own handlers
        ended = CliRunner().invoke(main, ["sweep", str(study), "--out", str(tmp_path / "steps")], prog_name="shoal")
    assert ended.exit_code == 0, ended.output
    assert call(tmp_path / "steps").exit_code == 0
    text = (tmp_path / "steps" / "report.html").read_text()
    assert "Does the step matter?" in text and ">Findings</h2>" in text and "<svg" in text
    assert call(tmp_path / "steps", runs / "sync", "--out", tmp_path / "both.html").exit_code == 0
    both = (tmp_path / "both.html").read_text()
    assert ">sweep steps: Findings</h2>" in both and ">Timeline</h2>" in both
    assert "give the folder of a run" in refused(tmp_path / "steps", "--trace", tmp_path / "trace.json")
