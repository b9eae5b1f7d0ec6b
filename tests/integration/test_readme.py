"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal

README_FOLDER = Path(__file__).parents[2]
README = (README_FOLDER / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_quickstart_trains_in_five_lines_of_python(tmp_path: Path) -> None:
    snippet = next(block for block in BLOCKS if "shoal.train(" in block)
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 5
    (tmp_path / "quick.py").write_text(snippet)
    ran = subprocess.run([sys.executable, "quick.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    loss, auc = map(float, ran.stdout.split())
    assert loss < 0.5 and auc > 0.7
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    files = {"job.toml", "events.jsonl", "summary.json", "model.safetensors", "loss.png"}
    assert files <= {path.name for path in (tmp_path / "runs/first").iterdir()}


@pytest.mark.slow
def test_the_quickstart_trains_in_one_line_of_shell(tmp_path: Path) -> None:
    (line, *_) = re.findall(r"```sh\n(shoal train [^\n]*)\n```", README)
    command = [sys.executable, "-m", *line.split()]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    assert "test loss" in ran.stdout and "4 workers x 2 servers" in ran.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "summary.json").exists() and f"{folder}" in ran.stdout


@pytest.mark.slow
def test_workers_come_and_go_as_shown() -> None:
    snippet = next(block for block in BLOCKS if "started=grow" in block)
    names: dict[str, Any] = {}
    exec(compile(snippet, "README.md", "exec"), names)
    happened = [(type(event).__name__, getattr(event, "name", "")) for event in names["run"].events]
    assert ("Joined", "worker-2") in happened and ("Gone", "worker-0") in happened
    assert names["run"].summary["examples"] == 2 * 200_000


def test_the_demo_is_the_job_that_the_readme_says() -> None:
    job = shoal.Job.load(README_FOLDER / "examples/demo.toml")
    assert (job.data.source, job.workers, job.servers, job.strategy.name) == ("clicks", 4, 2, "async")


def test_the_first_snippet_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = next(block for block in BLOCKS if "shoal.AdaGrad(step=0.1)" in block)
    exec(compile(snippet, "README.md", "exec"), {})
    said = re.search(r"print\(weights\)  # (.*)", snippet)
    assert said is not None
    assert capsys.readouterr().out.strip() == said.group(1)


def test_the_steps_of_the_readme_are_plain_gradient_descent() -> None:
    snippet = next(block for block in BLOCKS if "apply=shoal.Step(slots=2), max_delay=0" in block)
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        exec(compile(snippet, "README.md", "exec"), {"kv": kv, "shoal": shoal})
        weights = np.zeros(4)
        for _ in range(3):
            weights -= 0.1 * 2 * (weights - 1)
        assert kv.pull("w", slice(None)).result(30) == pytest.approx(weights, abs=1e-6)


def test_an_update_of_ones_own_works_as_shown(tmp_path: Path) -> None:
    module, use = (
        next(block for block in BLOCKS if word in block) for word in ("@shoal.update", 'modules=["my_updates"]')
    )
    (tmp_path / "my_updates.py").write_text(module)
    check = '\n    print(kv.push_pull("w", [1], [2.0]).result(30))\n'
    (tmp_path / "script.py").write_text("import shoal\nfrom my_updates import heavy_ball\n\n" + use + check)
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[-0.02]", ran.stderr
