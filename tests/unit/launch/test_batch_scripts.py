"""The scripts for batch schedulers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.cli.main import main


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("my train.py").write_text("")
    return "my train.py"


def launch(*words: str) -> Result:
    return CliRunner().invoke(main, ["launch", *words])


@pytest.mark.parametrize(
    ("scheduler", "directives"),
    [
        ("oar", ["#OAR -l /nodes=1/core=6,walltime=02:30:00", "#OAR --checkpoint=60", "#OAR --signal=15"]),
        ("slurm", ["#SBATCH --nodes=1", "#SBATCH --cpus-per-task=6", "#SBATCH --time=02:30:00", "B:TERM@60"]),
    ],
)
def test_a_batch_script_asks_for_what_it_needs_and_bash_can_read_it(
    script: str, scheduler: str, directives: list[str]
) -> None:
    shown = launch(
        "--script", scheduler, "--walltime", "02:30:00", "--workers", "4", "--servers", "2", script, "--lr", "1"
    )
    assert shown.exit_code == 0, shown.output
    for directive in directives:
        assert directive in shown.output
    assert "all servers and workers run there" in shown.output
    assert shown.output.endswith("exec shoal launch --workers 4 --servers 2 'my train.py' --lr 1\n")
    subprocess.run(["bash", "-n"], input=shown.output, text=True, check=True)


def test_a_batch_script_of_a_job_goes_on_where_it_was_stopped(script: str) -> None:
    Path("job.toml").write_text('data = "clicks"\nworkers = 3\nservers = 2\n')
    shown = launch("--script", "slurm", "--out", "job.sh", "--servers", "4", "job.toml")
    assert shown.output == "submit it: sbatch job.sh\n"
    text = Path("job.sh").read_text()
    assert "--cpus-per-task=7" in text
    assert "exec shoal train job.toml --servers 4 --out runs/job\n" in text
    assert Path("job.sh").stat().st_mode & 0o100
    again = launch("--script", "slurm", "--out", "job.sh", "job.toml")
    assert again.exit_code == 2
    assert "job.sh: File exists: take another name or place" in again.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing.py"], "no script 'nothing.py' here"),
        (["--script", "oar", "--walltime", "2h", "my train.py"], "needs hours:minutes:seconds"),
        (["job.toml"], "is a job, not a script: shoal train job.toml"),
        (["--script", "oar", "job.toml", "--epochs"], "a job takes no arguments"),
        (["--servers", "1", "--copies", "2", "my train.py"], "copies=2: needs 1 to"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_the_next_move(script: str, words: list[str], why: str) -> None:
    Path("job.toml").write_text('data = "clicks"\n')
    shown = launch(*words)
    assert shown.exit_code == 2
    assert why in shown.output
