"""The snippets of the README and of docs/ run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import shoal
from shoal.cli.main import main as program

README_FOLDER = Path(__file__).parents[2]
README = (README_FOLDER / "README.md").read_text()


def blocks(page: str) -> list[str]:
    """Return the Python snippets of a page, in order."""
    return re.findall(r"```python\n(.*?)```", (README_FOLDER / page).read_text(), flags=re.DOTALL)


def snippet(page: str, word: str) -> str:
    return next(block for block in blocks(page) if word in block)


def test_the_quickstart_trains_in_five_lines_of_python(tmp_path: Path) -> None:
    text = snippet("README.md", "shoal.train(")
    assert text == snippet("docs/start/first-run.md", "shoal.train(")
    assert len([line for line in text.splitlines() if line.strip()]) <= 5
    (tmp_path / "quick.py").write_text(text)
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
    names: dict[str, Any] = {}
    exec(compile(snippet("docs/howto/settings.md", "started=grow"), "settings.md", "exec"), names)
    happened = [(type(event).__name__, getattr(event, "name", "")) for event in names["run"].events]
    assert ("Joined", "worker-2") in happened and ("Gone", "worker-0") in happened
    assert names["run"].summary["examples"] == 2 * 200_000


def test_the_demo_is_the_job_that_the_readme_says() -> None:
    job = shoal.Job.load(README_FOLDER / "examples/demo.toml")
    assert (job.data.source, job.workers, job.servers, job.strategy.name) == ("clicks", 4, 2, "async")


def test_the_first_snippet_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = snippet("README.md", "shoal.AdaGrad(step=0.1)")
    assert text == snippet("docs/howto/key-value-store.md", "shoal.AdaGrad(step=0.1)")
    exec(compile(text, "README.md", "exec"), {})
    said = re.search(r"print\(weights\)  # (.*)", text)
    assert said is not None
    assert capsys.readouterr().out.strip() == said.group(1)


def test_the_steps_of_the_readme_are_plain_gradient_descent() -> None:
    text = snippet("docs/howto/key-value-store.md", "apply=shoal.Step(slots=2), max_delay=0")
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        exec(compile(text, "key-value-store.md", "exec"), {"kv": kv, "shoal": shoal})
        weights = np.zeros(4)
        for _ in range(3):
            weights -= 0.1 * 2 * (weights - 1)
        assert kv.pull("w", slice(None)).result(30) == pytest.approx(weights, abs=1e-6)


def test_an_update_of_ones_own_works_as_shown(tmp_path: Path) -> None:
    page = "docs/howto/own-update.md"
    module, use = (snippet(page, word) for word in ("@shoal.update", 'modules=["my_updates"]'))
    (tmp_path / "my_updates.py").write_text(module)
    check = '\n    print(kv.push_pull("w", [1], [2.0]).result(30))\n'
    (tmp_path / "script.py").write_text("import shoal\nfrom my_updates import heavy_ball\n\n" + use + check)
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[-0.02]", ran.stderr


def test_questions_are_answered_as_shown() -> None:
    built_in, own = blocks("docs/howto/own-question.md")
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Sparse(keys=10_000))
        kv.push("w", np.arange(0, 10_000, 10), np.linspace(-2, 2, 1_000)).result(30)
        exec(compile(built_in, "own-question.md", "exec"), {"kv": kv, "shoal": shoal})
        define, _, ask = own.partition("\n\n\n")
        names: dict[str, Any] = {"kv": kv, "shoal": shoal}
        exec(compile(define, "own-question.md", "exec"), names)
        assert eval(compile(ask.strip(), "own-question.md", "eval"), names) == 500


def test_a_strategy_of_ones_own_trains_in_processes(tmp_path: Path) -> None:
    page, example = "docs/howto/own-strategy.md", README_FOLDER / "examples/own_strategy.py"
    assert snippet(page, "@register") in example.read_text()
    ran = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.split()[-1]) < 0.46


def test_tables_of_the_pages_can_be_described() -> None:
    names = {"shoal": shoal, "N": 1_000}
    exec(compile(snippet("docs/howto/key-value-store.md", "asynchronous: nobody waits"), "page", "exec"), names)
    exec(compile(snippet("docs/howto/fewer-bytes.md", "shoal.Zstd()"), "page", "exec"), names)


def test_the_study_that_is_shown_is_one(tmp_path: Path) -> None:
    page = (README_FOLDER / "docs/howto/studies.md").read_text()
    (tmp_path / "study.toml").write_text(re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)[0])
    command = [sys.executable, "-m", "shoal", "sweep", "study.toml", "--dry-run"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "24" in ran.stdout  # six delays and two serial steps, three seeds each


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(README_FOLDER).as_posix() for path in README_FOLDER.glob("docs/**/*.md"))
)
def test_commands_that_are_shown_have_the_options_that_are_shown(page: str) -> None:
    for block in re.findall(r"```sh\n(.*?)```", (README_FOLDER / page).read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["shoal"]:
                check(words[1:], page)


def check(words: list[str], page: str) -> None:
    """Check that the command has every option of this command line."""
    command: click.Command = program
    if words[0] == "launch" and words[1] not in ("coordinator", "server", "worker"):
        words.insert(1, "script")
    while isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, f"{page}: no command {words[0]}"
        command, words = inner, words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
    for word in words[:script]:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{page}: {command.name} has no {word}"
