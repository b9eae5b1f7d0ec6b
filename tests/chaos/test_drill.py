"""``shoal chaos`` runs on real processes (F1, F3, F14, F44).

The tests check its reports, and that it finds what is broken on purpose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from shoal.chaos.audit import model_digest
from shoal.chaos.drill import CleanRun, clean_run, drill
from shoal.chaos.plan import ChaosSettings
from shoal.chaos.report import ChaosListener, ChaosReport
from shoal.cli.main import main
from shoal.data.datasets import load
from shoal.job import Job
from shoal.strategies.parameter_server.run import ServerRun

PASSES, SLOTS = 2, 2 * 1_250
BROKEN = '''"""A server that has forgotten how to remember."""

from shoal.simulation.scenarios import scenario

scenario("store").mutants["no ledger"]().start()
'''


def job_of(strategy: str = "async", **changes: Any) -> Job:
    """Returns a job that lasts some seconds on any machine: a nemesis needs time."""
    settings: dict[str, Any] = {"data": {"source": "clicks", "rows": 20_000, "batch": 16}, "strategy": strategy}
    slow = {"per_example": 2e-4}  # seconds: 2.7 in all on three workers
    return Job.of(settings | {"workers": 3, "servers": 2, "emulate": slow} | changes)


def broken(job: Job, **settings: Any) -> ChaosReport:
    given = {"gap": (0.2, 0.6), "pause": (0.5, 1.5), "weights": {"worker": 1.0}} | settings
    return drill(job, ChaosSettings(**given), 1.0, ChaosListener(), CleanRun(PASSES, None, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "gap"), [("async", (0.2, 0.6)), ("sync", (0.8, 1.6))])
def test_workers_and_the_coordinator_are_killed_and_every_push_counts_once(
    strategy: str, gap: tuple[float, float]
) -> None:
    report = broken(job_of(strategy), weights={"worker": 2.0, "coordinator": 1.0}, gap=gap, seed=1)
    assert report.faults > 0
    assert report.ok, report.wrong
    assert report.lost == report.doubled == 0
    assert report.acknowledged == report.counted == SLOTS
    assert report.sent >= report.acknowledged
    assert report.loss is not None and report.loss < 0.69


class Heard(ChaosListener):
    """Keeps all lines that are reported, with their times."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str]] = []

    def said(self, seconds: float, style: str, text: str) -> None:
        self.lines.append((seconds, style, text))


@pytest.mark.slow
def test_a_drill_ends_at_one_time_kills_a_server_and_calls_nothing_planned_a_fault() -> None:
    heard = Heard()
    settings = ChaosSettings(gap=(0.3, 0.6), pause=(0.5, 1.0), joins=0.4, servers=(2, 5), seed=2)
    job = job_of(servers=3, copies=2)
    report = drill(job, settings, 1.0, heard, CleanRun(PASSES, None, 1.0))
    assert report.ok, report.wrong
    (over,) = [seconds for seconds, _, text in heard.lines if text.startswith("over: ")]
    assert over == pytest.approx(report.seconds, abs=0.05)
    assert any((one.fault.kind, one.fault.role) == ("kill", "server") for one in report.healed)
    planned = [style for _, style, text in heard.lines if text.startswith(("join ", "drain "))]
    assert set(planned) <= {"news"} and len(planned) == report.changes


def undisturbed_sync() -> str:
    """Returns the model of the same job without faults.

    It runs on one worker and one server, in this process.
    """
    threads = {"how": "threads"}
    job = job_of("sync", workers=1, servers=1, stop={"epochs": float(PASSES)}, launch=threads, emulate={})
    with ServerRun(job, load(job.data, job.seed)) as training:
        outcome = training.wait(120.0)
    assert outcome is not None and outcome.judged is not None and not outcome.failed
    return model_digest(outcome.judged.weights)


@pytest.mark.slow
def test_sync_under_fire_ends_at_the_clean_runs_model_bit_for_bit() -> None:
    """I16: backups that take over, and servers that come back empty, change no bit, either."""
    clean = CleanRun(PASSES, None, 1.0, undisturbed_sync())
    nemesis = ChaosSettings(gap=(0.8, 1.6), pause=(0.5, 1.5), seed=4)
    report = drill(job_of("sync", servers=3, copies=2), nemesis, 1.0, ChaosListener(), clean)
    assert report.faults > 0
    assert report.ok, report.wrong
    assert report.model == "same" or report.newer or report.voids


def test_sync_that_ends_at_another_model_is_found_out() -> None:
    job = job_of("sync", data={"source": "clicks", "rows": 2_000, "batch": 16})
    settings = ChaosSettings(gap=(60.0, 60.0))
    report = drill(job, settings, 1.0, ChaosListener(), CleanRun(1, None, 1.0, "0" * 64))
    assert (report.model, report.newer, report.voids) == ("other", 0, 0)
    assert not report.ok
    assert any("sync ended at another model than the clean run" in one for one in report.wrong)
    assert report.lost == report.doubled == 0  # the counts alone would have passed


@pytest.mark.soak
def test_the_clean_run_of_sync_ends_exactly_after_whole_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass has 59 slots, and an evaluation comes every 15.

    So the timed run's first evaluation past a pass is a step past it.
    """
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path))
    job = job_of("sync", data={"source": "clicks", "rows": 30_000, "batch": 512}, evaluate={"every": 0.25})
    dataset = load(job.data, job.seed)
    clean = clean_run(job, dataset, 4.0, ChaosListener())
    whole = Job.of({**msgspec.to_builtins(job), "stop": {"epochs": float(clean.passes)}, "launch": {"how": "threads"}})
    with ServerRun(whole, dataset) as training:
        outcome = training.wait(120.0)
    assert outcome is not None and outcome.judged is not None
    assert clean.loss == outcome.judged.loss
    assert clean.model == model_digest(outcome.judged.weights)
    kept = clean_run(job, dataset, 4.0, ChaosListener())
    assert kept == clean  # the second time it is read back, digest included


@pytest.mark.slow
def test_servers_are_killed_and_paused_as_long_as_a_copy_is_left() -> None:
    """F5, F7, F9, F15: primaries and backups are hit, sometimes with the coordinator."""
    weights = {"server": 3.0, "coordinator": 1.0}
    report = broken(job_of(servers=3, copies=2), weights=weights, gap=(0.5, 1.0), seed=5)
    assert any(one.fault.role == "server" for one in report.healed)
    assert report.ok, report.wrong
    assert report.lost == report.doubled == report.rollbacks == 0
    hit = [one for one in report.healed if one.fault.role == "server" and one.well is not None]
    assert all(one.full is not None for one in hit)


@pytest.mark.slow
def test_a_ledger_that_forgets_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit can fail: it catches servers that count a push twice.

    The values that they hold show it.
    """
    (tmp_path / "forgetful_ledger.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    report = broken(job_of(launch={"modules": ["forgetful_ledger"]}), pauses=0.0, seed=2)
    assert any(one.fault.kind == "kill" for one in report.healed)  # else no push was sent twice
    assert report.doubled > 0
    assert not report.ok
    assert any("counted" in line for line in report.wrong)


def test_the_command_reports_and_leaves_a_folder(tmp_path: Path) -> None:
    arguments = [
        "chaos",
        "clicks",
        "--copies",
        "1",
        "--servers",
        "1",
        "--workers",
        "2",
        "--seconds",
        "2",
        "--seed",
        "3",
    ]
    arguments += ["--set", "data.rows=20000", "--out", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    keys = ("sent", "acknowledged", "counted", "lost", "doubled", "faults", "recoveries", "loss", "clean_loss")
    assert all(key in report for key in keys)
    assert report["lost"] == report["doubled"] == 0
    assert (tmp_path / "out" / "timeline.png").exists()


def test_what_cannot_be_is_said_at_once() -> None:
    result = CliRunner().invoke(main, ["chaos", "--copies", "3", "--servers", "2"])
    assert result.exit_code == 2
    assert "copies=3" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seconds", "inf"], "inf seconds: give a finite number above 0"),
        (["--seconds", "nan"], "nan seconds"),
        (["--set", "stop.epochs=3"], "say how long that is with --seconds"),
        (["--set", "stop=3"], "say how long that is with --seconds"),
        (["--out", "/dev/null/out"], "cannot write to /dev/null/out: Not a directory: choose another folder"),
    ],
)
def test_a_drill_that_would_be_for_nothing_is_not_begun(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["chaos", *arguments])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
    assert said in " ".join(result.output.split())


@pytest.mark.slow
@pytest.mark.parametrize("rows", [8_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_servers_join_and_leave_and_are_cut_off_and_every_push_counts_once(rows: int) -> None:
    """F11, F12, F16, F17, F18: servers join, leave, or are unreachable for a while."""
    given = {"joins": 0.3, "drains": 0.2, "cuts": 0.5, "servers": (2, 4), "gap": (0.6, 1.2), "pause": (0.5, 2.0)}
    weights = {"server": 3.0, "worker": 1.0}
    data = {"source": "clicks", "rows": rows, "batch": 16}
    slower = job_of(data=data, servers=3, copies=2, emulate={"per_example": 3e-4})
    report = broken(slower, seed=3, weights=weights, **given)
    kinds = {one.fault.kind for one in report.healed}
    assert report.ok, report.wrong
    assert report.lost == report.doubled == report.rollbacks == 0
    assert kinds <= {"join", "drain", "cut"} and report.changes > 0 and report.faults > 0
    assert report.changes == sum(one.fault.kind != "cut" for one in report.healed)
