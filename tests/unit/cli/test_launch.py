"""One command starts several nodes; a signal reaches all of them while they start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from shoal import limits
from shoal.cli import launch as module
from shoal.cli.launch import launch
from shoal.launch import remote_node

OPTIONS: dict[str, Any] = dict.fromkeys((*module._SAME, "quiet", "insecure")) | {"modules": ()}
WAITS = "import time; time.sleep(20)"  # ends by itself if a signal does not reach it


@pytest.mark.parametrize("when", ["before it is known", "after it is known"])
def test_a_signal_ends_the_starting_and_reaches_each_that_was_started_once(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    sent: list[int] = []
    start = subprocess.Popen

    class Process(start[bytes]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", WAITS])
            started.append(self)
            if when == "before it is known" and len(started) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        def send_signal(self, sig: int) -> None:
            sent.append(sig)
            super().send_signal(sig)

        def wait(self, timeout: float | None = None) -> int:
            if not sent:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().wait(timeout)

    monkeypatch.setattr(module.subprocess, "Popen", Process)
    code = module._start_several("tcp://127.0.0.1:9", "server", {**OPTIONS, "count": 4}, lambda text: None)
    assert code == 128 + signal.SIGTERM
    assert len(started) == (2 if when == "before it is known" else 4)
    assert sent == [signal.SIGTERM] * len(started)


@pytest.mark.parametrize(
    "words",
    [
        ("--count", str(limits.COUNT + 1)),
        ("--count", "100000"),
        ("--count", "0"),
        ("--within", "nan"),
        ("--within", "inf"),
        ("--patience", "nan"),
    ],
)
def test_what_would_never_end_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    monkeypatch.setattr("shoal.cli.launch._start_several", lambda *given: pytest.fail("it was started"))
    monkeypatch.setattr("shoal.launch.remote_node.RemoteNode", lambda *given: pytest.fail("it was started"))
    found = CliRunner().invoke(launch, ["server", "--at", "tcp://127.0.0.1:9", *words])
    assert found.exit_code == 2 and words[0] in found.output, found.output


def test_each_of_several_workers_takes_its_share_of_the_memory_and_one_alone_takes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[remote_node.JoinTerms] = []

    class Visitor:
        name = "worker-x"

        def __init__(self, terms: remote_node.JoinTerms, *_: object) -> None:
            seen.append(terms)

        def leave(self, number: int) -> None: ...

        def run(self) -> str:
            return "it left"

    monkeypatch.setattr(remote_node, "RemoteNode", Visitor)
    words = module._words({**OPTIONS, "count": 4, "modules": ("mine", "net.py:Net"), "patience": 7.0, "quiet": True})
    for more in (words, []):
        done = CliRunner().invoke(launch, ["worker", "--at", "tcp://127.0.0.1:9", *more])
        assert done.exit_code == 0, done.output
    assert [one.share for one in seen] == [4, 1]
    assert seen[0].modules == ("mine", "net.py:Net") and seen[0].patience == 7.0
