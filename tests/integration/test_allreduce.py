"""All-reduce over gloo takes the steps of a sync run, with and without PyTorch's DDP.

DDP is PyTorch's own DistributedDataParallel.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import shoal
from shoal.errors import RankLost
from shoal.events import Gone
from shoal.job import Job
from shoal.strategies.averaging.gloo import GlooCollective
from shoal.testing.watch import kill, watch


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Write images of noise in which one bright half is the class.

    There are five slots of 32 rows, so the last step of an epoch has one slot.
    """
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 100, (180, 8, 8), np.uint8), draw.integers(0, 2, 180)
    for image, label in zip(x, y, strict=True):
        image[4 * label :][:4] += 100
    path = tmp_path_factory.mktemp("images") / "halves.npz"
    np.savez(path, x=x, y=y)
    return path


def train(images: Path, **settings: Any) -> Any:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    run = shoal.train(images, model="sheet", workers=2, batch=32, epochs=2, settings=given)
    assert run.model is not None
    return np.concatenate([one.ravel() for one in run.model.tensors.values()])  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def in_sync(images: Path) -> Any:
    return train(images, strategy="sync", strategy__slots_per_step=2, launch__how="threads")


@pytest.mark.parametrize("ddp", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_module_takes_the_steps_of_a_sync_run_to_rounding(images: Path, in_sync: Any, ddp: bool) -> None:
    found = train(images, strategy="allreduce", strategy__ddp=ddp)
    np.testing.assert_allclose(found, in_sync, rtol=1e-3, atol=2e-5)


@pytest.mark.soak
def test_with_a_killed_rank_a_run_with_ddp_ends_and_says_whose_fault_it_is(images: Path) -> None:
    of = Job.of(
        {
            "data": {"source": str(images), "batch": 8},
            "model": "sheet",
            "strategy": "allreduce",
            "stop": {"epochs": 200},
            "workers": 3,
        }
    )
    run = watch(of, lambda training: kill(training, "worker-2", 0.1))
    assert run.outcome.failed and "worker-2 is gone (its process ended (killed by signal 9))" in run.outcome.why
    assert [event.name for event in run.all(Gone)] == ["worker-2"]
    assert run.outcome.judged is not None


def test_who_waits_inside_pytorch_is_told_who_is_lost_and_gets_the_errors_of_what_it_waits_for(tmp_path: Path) -> None:
    gone, ended = threading.Event(), threading.Event()

    def check(waited: float) -> None:
        if gone.is_set():
            raise RankLost("worker-1", "its process is stopped")

    def fail() -> None:
        raise RuntimeError("of the module")

    group = GlooCollective(tmp_path, 0, 1, check)
    with pytest.raises(RuntimeError, match="of the module"):
        group.run_in_thread(fail)
    gone.set()
    with pytest.raises(RankLost):
        group.run_in_thread(lambda: print(ended.wait()))
    ended.set()
    group.close()


def test_a_group_that_cannot_end_does_not_hold_up_who_closes_it(tmp_path: Path) -> None:
    """PyTorch's destructor waits for pending operations, and `close` must not wait with it.

    gloo may not notice that all other ranks have ended.
    """
    ended = threading.Event()

    class Stuck:
        def __del__(self) -> None:
            ended.wait(60)

    group = GlooCollective(tmp_path, 0, 1)
    group.process_group = Stuck()
    group.close()
    assert not ended.is_set() and group.process_group is None  # close() has returned
    ended.set()


NET = """
from pathlib import Path
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(64, 2), 0

    def forward(self, x):
        self.calls += self.training
        if self.calls == 20 and "worker-1" in Path("/proc/self/comm").read_text():
            raise RuntimeError("mat1 and mat2 do not fit")
        return self.inner(x.flatten(1))
"""


def failing(images: Path, **settings: Any) -> Job:
    net = images.with_name("net.py")
    net.write_text(NET)
    return Job.of(
        {
            "data": {"source": str(images), "batch": 8},
            "model": f"{net}:Net",
            "strategy": "allreduce",
            "stop": {"epochs": 200},
            "workers": 3,
            **settings,
        }
    )


@pytest.mark.soak
def test_an_error_of_the_module_at_one_rank_ends_the_run_and_is_said_as_such(
    images: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = watch(failing(images))
    assert (
        run.outcome.failed and "worker-1 is gone" in run.outcome.why and "mat1 and mat2 do not fit" in run.outcome.why
    )
    assert [event.name for event in run.all(Gone)] == ["worker-1"]
    assert "in forward" in capfd.readouterr().err


@pytest.mark.soak
def test_a_rank_that_is_stopped_in_a_run_with_ddp_is_lost(images: Path) -> None:
    def stop(training: Any) -> None:
        os.kill(training.pids["worker-2"], signal.SIGSTOP)

    of = failing(images, workers=3, model="sheet")
    run = watch(of, stop)
    assert "worker-2 is gone (its process is stopped)" in run.outcome.why
