"""Modules train through the store, and any number of workers gives the same run.

The tests also cover what a run leaves and what is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import shoal  # noqa: E402
from shoal.errors import Invalid, RunFailed  # noqa: E402
from shoal.run.run import Run  # noqa: E402
from tests.support.sandbox import is_gone  # noqa: E402

# The same tests run on a GPU where there is one.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
THREADS = {"launch.how": "threads"}


def train(images: Path, **given: Any) -> Run:
    settings = {**THREADS, **given.pop("settings", {})}
    return shoal.train(images, **{"batch": 32, "epochs": 2, **given}, settings=settings)


def weights_of(run: Run) -> Any:
    assert run.model is not None
    return np.concatenate([one.ravel() for one in run.model.tensors.values()])  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_sync_run_of_a_module_with_dropout_is_the_same_with_any_workers_servers_and_copies(images: Path) -> None:
    given: dict[str, Any] = {"model": "sheet", "strategy": "sync", "settings": {"strategy.slots_per_step": 4}}
    one = train(images, workers=1, servers=1, **given)
    many = train(images, workers=3, servers=2, copies=2, **given)
    np.testing.assert_array_equal(weights_of(one), weights_of(many))
    assert one.summary["test_loss"] == many.summary["test_loss"]


@pytest.mark.variants(slow=["bounded-cpu", "async-cpu"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", ["serial", "bounded", "async"])
def test_a_module_learns_by_every_strategy(images: Path, strategy: str, device: str) -> None:
    run = train(images, model="linear", strategy=strategy, workers=2, epochs=6, settings={"model.device": device})
    assert run.summary["metrics"]["accuracy"] > 0.95
    assert run.summary["model"] == "linear" and run.summary["metrics"].get("auc") is None


def test_a_serial_run_is_a_sync_one_with_one_slot_in_a_step(images: Path) -> None:
    alone = train(images, model="sheet", strategy="serial")
    together = train(images, model="sheet", strategy="sync", workers=2, settings={"strategy.slots_per_step": 1})
    np.testing.assert_array_equal(weights_of(alone), weights_of(together))


@pytest.mark.slow
def test_half_the_bytes_on_the_wire_learn_as_well(images: Path) -> None:
    whole, half = (
        train(images, model="linear", workers=2, epochs=6, settings={"model.wire": wire})
        for wire in ("float32", "bfloat16")
    )
    assert half.summary["metrics"]["accuracy"] > 0.95
    assert half.summary["bytes_sent"] < 0.75 * whole.summary["bytes_sent"]


@pytest.mark.parametrize("device", DEVICES)
def test_processes_train_a_module_of_ones_own_and_leave_a_state_dict(images: Path, tmp_path: Path, device: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), "
        "nn.ReLU(), nn.Linear(8, 4))\n"
    )
    (tmp_path / "job.toml").write_text(
        f'data = "{images}"\nmodel = "mine.py:net"\nworkers = 2\nservers = 2\n[stop]\nepochs = 8\n'
    )
    run = shoal.train(tmp_path / "job.toml", out=tmp_path / "run", batch=16, settings={"model.device": device})
    assert run.summary["metrics"]["accuracy"] > 0.9
    found = Run.load(tmp_path / "run")
    assert found.job == run.job and found.job.update.rule == "adam"
    from safetensors.torch import load_file

    state = load_file(tmp_path / "run" / "model.safetensors")
    assert set(state) == set(run.model.state_dict())  # type: ignore[union-attr]
    assert (found.model.predict(np.load(images)["x"][:50]).argmax(1) == np.load(images)["y"][:50]).mean() > 0.8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "cnn", "settings": {"model.device": "cuda:99"}}, "model.device"),
        ({"model": "cnn", "settings": {"model.device": "abacus"}}, "needs cpu, cuda"),
        ({"model": "cnnn"}, "did you mean 'cnn'?"),
        ({"model": "logistic"}, "takes sparse rows"),
        ({"model": "cnn", "workers": 200, "settings": {"data.rows": 150}}, "there are 200 workers: take fewer"),
        ({"model": "cnn", "settings": {"model.l2_per_count": 1.0}}, "no setting model.l2_per_count"),
        ({"model": "cnn", "settings": {"update.l1": 1.0}}, "rule 'adam' has no l1"),
        ({"model": "cnn", "settings": {"model.wire": "int3"}}, "model.wire"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(
    images: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(Invalid) as error:
        train(images, **given)
    assert says in str(error.value)


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_run_and_says_so(images: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def bad(outputs, labels):\n    return outputs.mean() / 0\n")
    with pytest.raises(RunFailed) as error:
        train(images, model="linear", settings={"model.loss": f"{tmp_path}/bad.py:bad"})
    assert "the loss is inf: take a smaller step" in str(error.value)


@pytest.mark.slow
def test_a_module_that_differs_between_nodes_is_refused(images: Path, tmp_path: Path) -> None:
    (tmp_path / "chance.py").write_text(
        f"import os\nfrom torch import nn\n\ndef net():\n    hidden = 8 if os.getpid() == {os.getpid()} else 9\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(256, hidden), nn.Linear(hidden, 4))\n"
    )
    with pytest.raises(RunFailed) as error:
        train(images, model=f"{tmp_path}/chance.py:net", settings={"launch.how": "processes"})
    assert "is not the run's" in str(error.value)


@pytest.mark.slow
def test_without_pytorch_everything_else_works_and_modules_say_what_to_install(images: Path) -> None:
    script = (
        "import sys\nsys.modules['torch'] = None\nimport shoal\n"
        "shoal.train('clicks', epochs=1, settings={'launch.how': 'threads', 'data.rows': 2000})\n"
        f"try:\n    shoal.train({str(images)!r}, model='cnn')\nexcept shoal.ShoalError as error:\n    print(error)\n"
        "try:\n    import shoal.torch; shoal.torch.distribute\nexcept shoal.ShoalError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("which is not installed: pip install 'shoal[torch]'") == 2, done


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_module_only(images: Path, tmp_path: Path) -> None:
    net = tmp_path / "mine.py"
    net.write_text("from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(256, 4))\n")
    given: dict[str, Any] = {
        "model": f"{net}:net",
        "strategy": "sync",
        "settings": {"checkpoint.every": 0.01, "emulate.per_example": 1e-3},
    }
    whole = train(images, epochs=4, out=tmp_path / "run", **given)
    longer = shoal.train(resume=tmp_path / "run", epochs=5)
    assert longer.summary["resumed"] == 1 and longer.summary["examples"] > whole.summary["examples"]
    net.write_text(net.read_text().replace("256, 4)", "256, 4, bias=False)"))
    with pytest.raises(Invalid, match="the module is not the one of the checkpoint"):
        shoal.train(resume=tmp_path / "run", epochs=6)
    assert Run.load(tmp_path / "run").summary == longer.summary


def test_a_run_in_which_nothing_was_learned_has_failed(images: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "def bad(outputs, labels):\n    return outputs.mean() * (float('nan') if outputs.requires_grad else 1.0)\n"
    )
    with pytest.raises(
        RunFailed, match=r"nothing was learned: all .* were given up, the last because .*the loss is nan"
    ):
        train(images, model="linear", epochs=1, settings={"model.loss": f"{tmp_path}/bad.py:bad"})


@pytest.mark.slow
def test_a_module_that_forks_leaves_nobody_behind(images: Path, tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import os\nfrom torch import nn\n\nclass Forks(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(256, 4)\n    def forward(self, x):\n        if self.training and os.fork() == 0:\n"
        f"            open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}}\\n')\n            raise SystemExit(0)\n"
        "        return self.layer(x.flatten(1))\n"
    )
    run = train(images, model=f"{tmp_path}/forks.py:Forks", workers=1, epochs=1, settings={"launch.how": "processes"})
    assert run.summary["examples"] > 500
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) > 10 and not [pid for pid in pids if not is_gone(pid)]
