"""`torchrun --nproc-per-node 5 -m shoal train ...`: every rank has its role.

A node that dies ends no other node.

torchrun takes some seconds to start, so a few runs show everything. Where only ranks matter, and
not what torchrun does when they end, processes with its variables replace it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import shoal
from shoal.events import Evaluated, Gone, Joined, Progress, Resumed, RunEvent, read_run
from tests.support import PATIENCE
from tests.support.sandbox import Den, soon

# 10 slots per epoch.
DATA = {"data.rows": 120, "data.features": 1_000, "data.batch": 12, "strategy.slots_per_step": 4}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "5")


def slowly(out: Path, epochs: float) -> list[str]:
    """Return a run slow enough to be broken: every slot takes a tenth of a second."""
    settings = [f"{name}={value}" for name, value in {**DATA, "emulate.per_example": 0.01}.items()]
    words = [word for one in settings for word in ("--set", one)]
    return ["-m", "shoal", "train", "clicks", "--strategy", "sync", "--servers", "2", "--copies", "2",
            "--epochs", str(epochs), "--out", str(out), *words]  # fmt: skip


def told(out: Path) -> list[RunEvent]:
    return read_run(out / "events.jsonl") if (out / "events.jsonl").exists() else []


def node(den: Den, name: str) -> psutil.Process:
    """Return the process of this node."""
    return psutil.Process(den.node(name))


def rank_of(process: psutil.Process) -> int:
    """Return the rank above this process; a forkserver is between them."""
    variables = Path(f"/proc/{process.parent().ppid()}/environ").read_bytes().split(b"\0")
    (number,) = (one.partition(b"=")[2] for one in variables if one.startswith(b"RANK="))
    return int(number)


def steps(out: Path) -> int:
    """Return the steps done so far, or -1 before the first evaluation."""
    return next((event.steps for event in reversed(told(out)) if isinstance(event, Progress | Evaluated)), -1)


def joined(out: Path, name: str) -> int:
    return sum(isinstance(event, Joined) and event.name == name for event in told(out))


def lives(out: Path) -> int:
    return 1 + sum(isinstance(event, Resumed) for event in told(out))


def wait_for(torchrun: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    soon(lambda: torchrun.poll() is not None or condition(), PATIENCE)
    assert torchrun.poll() is None, torchrun.communicate()[1]
    assert condition()


def left(den: Den) -> list[str]:
    """Return what is left, except torchrun's own folder of logs."""
    return [one for one in den.left() if not one.startswith("torchelastic_")]


# ---------------------------------------------------------------- five ranks


class Broken:
    """A run under torchrun in which a worker and a server were killed."""

    def __init__(self, den: Den, out: Path) -> None:
        torchrun = den.start(*TORCHRUN, *slowly(out, 3))
        wait_for(torchrun, lambda: steps(out) >= 0)
        names = ("coordinator", "server-0", "server-1", "worker-0", "worker-1", "worker-2")
        nodes = {name: node(den, name) for name in names}
        self.ranks = {name: rank_of(process) for name, process in nodes.items()}
        nodes["worker-1"].kill()
        nodes["server-1"].kill()
        self.printed, self.said = torchrun.communicate(timeout=PATIENCE)
        self.code = torchrun.returncode
        assert soon(lambda: not left(den))
        self.events = read_run(out / "events.jsonl")
        self.model = (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    pytest.importorskip("torch")
    with Den() as den:
        yield Broken(den, tmp_path_factory.mktemp("broken") / "run")


def test_every_rank_has_its_role_and_says_so_once(broken: Broken) -> None:
    assert broken.ranks == {"coordinator": 0, "server-0": 0, "server-1": 1, "worker-0": 2, "worker-1": 3, "worker-2": 4}
    assert broken.said.count("rank 0 leads, ranks 0 and 1 serve, ranks 2 to 4 work") == 1
    assert broken.said.count("stopped: 3 epochs done") == 1
    assert broken.printed.count("look at    ") == 1


@pytest.mark.slow
def test_nodes_that_are_killed_are_told_and_the_run_ends_well(broken: Broken) -> None:
    assert broken.code == 0, broken.said
    gone = [(event.name, event.why) for event in broken.events if isinstance(event, Gone) and event.why != "it left"]
    assert sorted(gone) == [
        ("server-1", "its process ended (killed by signal 9)"),
        ("worker-1", "its process ended (killed by signal 9)"),
    ]


@pytest.mark.slow
def test_the_model_is_the_same_as_without_torchrun(broken: Broken, tmp_path: Path) -> None:
    settings = {**DATA, "launch.how": "threads"}
    shoal.train("clicks", strategy="sync", workers=1, epochs=3, settings=settings, out=tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == broken.model


# ---------------------------------------------------------------- ends


@pytest.mark.slow
def test_workers_that_are_killed_come_back_below_their_ranks_and_an_interrupt_leaves_nothing(
    den: Den, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "run"
    torchrun = den.start(*TORCHRUN, *slowly(out, 1e6))
    wait_for(torchrun, lambda: steps(out) >= 0)
    node(den, "worker-1").kill()
    node(den, "worker-2").parent().kill()  # its forkserver, which is restarted, too
    wait_for(torchrun, lambda: joined(out, "worker-1") == joined(out, "worker-2") == 2)
    assert [rank_of(node(den, name)) for name in ("worker-1", "worker-2")] == [3, 4]
    torchrun.send_signal(signal.SIGINT)  # torchrun forwards it to its ranks
    _, said = torchrun.communicate(timeout=PATIENCE)
    assert said.count(f"go on with it: shoal train --resume {out}") == 1
    assert soon(lambda: not left(den)), left(den)


@pytest.mark.soak
def test_a_rank_that_is_killed_ends_them_all_and_a_restart_by_torchrun_goes_on_with_the_run(
    den: Den, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "run"
    torchrun = den.start(*TORCHRUN, "--max-restarts", "1", *slowly(out, 1e6))
    wait_for(torchrun, lambda: steps(out) >= 1)
    node(den, "worker-1").parent().parent().kill()
    wait_for(torchrun, lambda: lives(out) == 2 and steps(out) > 1)
    (resumed,) = (event for event in told(out) if isinstance(event, Resumed))
    # The leading rank had time to save it.
    assert resumed.checkpoint is not None and resumed.steps >= 1
    torchrun.terminate()
    torchrun.communicate(timeout=PATIENCE)
    assert soon(lambda: not left(den)), left(den)


@pytest.mark.soak
def test_when_torchrun_itself_is_killed_nothing_is_left(den: Den, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun = den.start(*TORCHRUN, *slowly(tmp_path / "run", 1e6))
    wait_for(torchrun, lambda: steps(tmp_path / "run") >= 0)
    torchrun.kill()
    assert soon(lambda: not left(den)), left(den)


def ranks(world: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start processes as torch.distributed.launch does.

    torchrun omits their first argument.
    """
    shared = {"LOCAL_WORLD_SIZE": str(world), "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0",
              "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-m", "shoal", f"--local-rank={number}", "train", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "LOCAL_RANK": str(number)},
        )
        for number in range(world)
    ]


@pytest.mark.variants(slow=["arguments1-2-Error: No such option", "arguments2-0-"])
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("clicks", "--servers", "3"), 2, "Error: torchrun has started 3 ranks, and servers=3 and a worker need 4"),
        (("clicks", "--nonsense"), 2, "Error: No such option"),
        (("--help",), 0, ""),
    ],
)
def test_what_cannot_be_is_said_once_and_all_ranks_end_with_its_code(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    everybody = ranks(3, *arguments)
    words = [one.communicate(timeout=PATIENCE) for one in everybody]
    assert [one.returncode for one in everybody] == [code] * 3
    assert said in words[0][1]
    assert words[1:] == [("", "")] * 2
    assert os.listdir(tmp_path) == []
