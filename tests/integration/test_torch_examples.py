"""The PyTorch examples run as a reader would run them."""

from __future__ import annotations

import difflib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"
needs_data = pytest.mark.skipif("SHOAL_DATA" not in os.environ, reason="SHOAL_DATA is not set")


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let examples import modules beside them, and run outside of a worker."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("SHOAL_ADDRESS", raising=False)


def here(name: str) -> dict[str, Any]:
    """Run an example in this process as if it were imported, and return its names."""
    return runpy.run_path(str(EXAMPLES / name))


def launched(name: str, *words: str) -> str:
    launch = ["-m", "shoal", "launch", "--workers", "2", "--servers", "2"]
    command = [sys.executable, *launch, str(EXAMPLES / name), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_distributed_loop_differs_from_the_plain_one_in_five_lines() -> None:
    plain, ours = ((EXAMPLES / name).read_text().splitlines() for name in ("mnist_plain.py", "mnist_loop.py"))
    changed = [line for line in difflib.unified_diff(plain, ours, n=0) if re.match(r"[+-](?![+-]{2} )", line)]
    assert 0 < len(changed) <= 5, changed


@pytest.mark.slow
@needs_data
def test_the_loop_learns_alone_and_on_two_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mnist_plain.py", "--rows", "2000"])
    here("mnist_plain.py")
    for out in (capsys.readouterr().out, launched("mnist_loop.py", "--rows", "2000")):
        right = [float(found) for found in re.findall(r"on 10,000 other images: (\S+)", out)]
        assert min(right) > 0.3  # of ten classes, after some dozens of steps
        assert len(set(right)) == 1  # all workers end with the same model


@pytest.mark.slow
@needs_data
def test_clients_by_hand_do_what_one_process_does(capsys: pytest.CaptureFixture[str]) -> None:
    from torch import nn

    by_hand = here("parameter_server_by_hand.py")
    rows, rounds, step = 2_000, 10, 5e-5
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    criterion = nn.CrossEntropyLoss(reduction="sum")
    images, labels = by_hand["images"](rows)[0].tensors
    plain = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    plain.load_state_dict(model.state_dict())
    optimizer, expected = torch.optim.SGD(plain.parameters(), lr=step), []
    for _ in range(rounds):
        optimizer.zero_grad()
        loss = criterion(plain(images), labels)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    losses = by_hand["main"](
        model, criterion, lambda s, y: (s.argmax(1) == y).float().mean(), clients=5, rounds=rounds, step=step, rows=rows
    )
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < 0.75 * losses[0]
    torch.testing.assert_close(model[1].weight, plain[1].weight, atol=1e-4, rtol=0)
    assert "5 clients, 10 rounds" in capsys.readouterr().out


@needs_data
@pytest.mark.soak
@pytest.mark.usefixtures("mpi_memory")
@pytest.mark.parametrize("words", [[], ["--own-start"]])
def test_psgd_by_hand_takes_the_mean_and_shows_the_collapse(words: list[str]) -> None:
    """S2-04 to S2-06: two ranks of mpirun average their weights by name."""
    pytest.importorskip("mpi4py")
    mpirun = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe", "-n", "2"]
    mpirun += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [*mpirun, sys.executable, str(EXAMPLES / "psgd_by_hand.py"), "--rows", "2000", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"rank 0 alone: (\S+); of the mean: (\S+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    alone, mean = map(float, found.groups())
    assert alone > 0.6
    assert (mean > 0.6) == (not words)  # the mean of one start works, that of two collapses


@needs_data
@pytest.mark.soak
def test_hogwild_by_hand_learns() -> None:
    """S2-10: it uses torch.multiprocessing, as in the exercise."""
    command = [sys.executable, str(EXAMPLES / "hogwild_by_hand.py"), "--rows", "2000"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"2 workers, 3 epochs in \S+ s: accuracy (\S+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) > 0.6


@pytest.mark.slow
@needs_data
def test_the_wide_and_deep_model_learns_from_a_few_rows() -> None:
    loss, base, area = here("wide_and_deep.py")["main"](most=10_000, epochs=2)
    assert loss < base
    assert area > 0.6


@needs_data
@pytest.mark.soak
def test_the_wide_and_deep_model_beats_the_base_rate_on_two_workers() -> None:
    out = launched("wide_and_deep.py")
    found = re.search(r"held out: loss (\S+) \(always \S+: (\S+)\), AUC (\S+),", out)
    assert found is not None, out
    loss, base, area = map(float, found.groups())
    assert loss < base - 0.005
    assert area > 0.68
