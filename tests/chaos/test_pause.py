"""All processes are stopped for much longer than the allowed silence, and the run goes on.

It goes on as if nothing had happened. The cause may be Ctrl-Z, a laptop's lid, or a machine that is
moved. A process that looks at the clock sees that it was stopped itself, and blames no other for
the messages that it did not receive. (A suspended laptop is easier still: CLOCK_MONOTONIC, which is
used everywhere here, does not count that time.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.events import Evaluated, Gone, RolledBack, read_run
from shoal.run.finished import Run
from tests.support.sandbox import Den, soon

PAUSE = 5.0  # seconds: twice the silence that is allowed here
SLOW: dict[str, Any] = {
    "data.rows": 2_000,
    "data.features": 1_000,
    "data.batch": 20,
    "emulate.per_example": 0.001,
    "evaluate.every": 0.5,
    "timing.scale": 0.5,
}


def begun(den: Den, *more: str) -> tuple[Any, Path]:
    """Starts a run of several processes, and waits until it is well under way."""
    out = den.folder / "run"
    settings = [word for name, value in SLOW.items() for word in ("--set", f"{name}={value}")]
    child = den.start("-m", "shoal", "train", "rcv1-like", "--workers", "2", *settings, *more, "--out", str(out))
    assert soon(lambda: child.poll() is not None or evaluations(out) >= 2, 90), den.alive()
    assert child.poll() is None, child.communicate()
    return child, out


def evaluations(out: Path) -> int:
    if not (out / "events.jsonl").exists():
        return 0
    return sum(isinstance(event, Evaluated) for event in read_run(out / "events.jsonl"))


def losses(out: Path) -> list[Any]:
    return [event for event in read_run(out / "events.jsonl") if isinstance(event, Gone | RolledBack)]


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


STRATEGIES = [
    ("async", "--servers", "2", "--copies", "2"),
    ("sync", "--servers", "2"),
    ("bounded", "--servers", "1", "--on", "threads"),
    ("gossip",),
    ("peer-to-peer",),
    ("hogwild",),
    ("averaging",),
    ("block-proximal", "--servers", "2"),
]


@pytest.mark.variants(soak=["sync", "bounded-threads", "hogwild", "averaging", "block-proximal"])
@pytest.mark.slow
@pytest.mark.parametrize("words", STRATEGIES, ids=lambda words: f"{words[0]}{'-threads' if 'threads' in words else ''}")
def test_a_pause_of_everybody_costs_nobody(words: tuple[str, ...], den: Den, cache: Path) -> None:
    child, out = begun(den, "--strategy", *words, "--epochs", "3")
    lost = len(losses(out))  # losses at the start, on a busy machine, do not count here
    everybody = den.alive()
    send(everybody, signal.SIGSTOP)
    time.sleep(PAUSE)
    send(everybody, signal.SIGCONT)
    said, errors = child.communicate(timeout=180)
    assert child.returncode == 0, (said, errors)
    run = Run.load(out)
    assert losses(out)[lost:] == []
    assert run.model is not None and not run.summary["failed"]
