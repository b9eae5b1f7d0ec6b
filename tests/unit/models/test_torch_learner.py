"""Modules compute gradients; their random numbers, buffers and saved files are exact.

Wrong modules are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from shoal.data.datasets import Dataset, DataSource, load  # noqa: E402
from shoal.data.slots import Slots  # noqa: E402
from shoal.errors import BadValues, Invalid  # noqa: E402
from shoal.models.learner import learner_of  # noqa: E402
from shoal.models.torch_factory import device_of  # noqa: E402
from shoal.models.torch_learner import ModuleLearner  # noqa: E402
from shoal.models.torch_module import Module  # noqa: E402
from shoal.models.trained import TrainedModule, trained  # noqa: E402
from shoal.models.zoo import cnn, sheet  # noqa: E402
from shoal.nodes.batches import DenseBatches, RowsPiece  # noqa: E402

# The same tests run on a GPU, if there is one.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NETS = """
import torch
from torch import nn

class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    def forward(self, x):
        return self.body(x)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.last = nn.Linear(16, 16, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Linear(16, 4)
        self.frozen.requires_grad_(False)
    def forward(self, x):
        return self.frozen(self.last(self.first(x.mean(1)).relu()).reshape(len(x), -1)[:, :16])

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 4)
        self.register_buffer("halves", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(5))
    def forward(self, x):
        return self.layer(x.flatten(1))
    def get_extra_state(self):
        return {"anything": object}
    def set_extra_state(self, state):
        pass

def leaves(): raise SystemExit(0)
def flat(): return nn.Sequential(nn.Flatten(), nn.Linear(256, 4))
def doubles(): return flat().double()
def lazy(): return nn.LazyLinear(4)
def nothing(): return nn.Flatten()
def text(): return "no module"
def broken(): raise KeyError("no such layer")
def three(): return nn.Sequential(nn.Flatten(), nn.Linear(256, 3))
def other_shape(): return nn.Linear(7, 4)
def pair(outputs, labels): return (outputs.sum(), labels)
def worst(outputs, labels): return float((outputs.argmax(1) != labels).float().mean())
def infinite(outputs, labels): return outputs.sum() / 0.0
NOT_A_FUNCTION = 5
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets.py").write_text(NETS)
    (folder / "damaged.py").write_text("import nothing_of_that_name")
    quadrants(folder / "quadrants.npz")
    return folder


@pytest.fixture(scope="module")
def rows(home: Path) -> Dataset:
    return load(DataSource(str(home / "quadrants.npz")), 0, home / "cache")


def quadrants(path: Path, rows: int = 400) -> None:
    """Images of noise with one bright quadrant, which is the class."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 100, (rows, 16, 16), np.uint8), draw.integers(0, 4, rows)
    for image, label in zip(x, y, strict=True):
        image[8 * (label // 2) :, 8 * (label % 2) :][:8, :8] += 100
    np.savez(path, x=x, y=y)


def learner(rows: Dataset, net: str = "cnn", **settings: Any) -> ModuleLearner:
    found = learner_of(Module(net=net, **settings), rows.train, 0)
    assert isinstance(found, ModuleLearner)
    return found


def piece(rows: Dataset, slot: tuple[int, int] = (0, 0), keys: int = 1) -> RowsPiece:
    return DenseBatches(rows.train, Slots(rows.train.rows, 32, 0), keys).local(slot)


def test_the_zoo_has_its_layers_in_their_order() -> None:
    kinds = [type(one).__name__ for one in sheet((1, 28, 28), 10)]
    first = ["Conv2d", "MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU", "Dropout", "MaxPool2d", "Flatten"]
    assert kinds == [*first, "Linear", "ReLU", "Linear"]  # the softmax is part of the loss (S2-02)
    layers = [type(one).__name__ for one in cnn((1, 28, 28), 10) if list(one.parameters())]
    assert layers == ["Conv2d", "Conv2d", "Linear", "Linear"]  # S0-08
    with pytest.raises(Invalid, match="16 x 16 or more"):
        cnn((1, 8, 8), 10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mean", [True, False])
def test_a_gradient_is_that_of_plain_pytorch(home: Path, rows: Dataset, mean: bool, device: str) -> None:
    one = learner(rows, f"{home}/nets.py:flat", device=device)
    assert (one.keys, one.width) == (5, 256)  # 1,028 weights, padded with zeros
    weights = np.zeros((5, 256), np.float32)
    weights.reshape(-1)[:1028] = np.random.default_rng(1).normal(size=1028)
    part = piece(rows)
    loss, gradient = one.gradient(part, weights, mean)
    module = nn.Sequential(nn.Flatten(), nn.Linear(256, 4))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.reshape(-1)[:1028]), module.parameters())
    x, y = part.read()
    meta = rows.train.meta
    outputs = module(torch.from_numpy(np.array(x)).float() * meta.factor + meta.shift)
    total = nn.functional.cross_entropy(outputs, torch.from_numpy(np.array(y)).long(), reduction="sum")
    (total / 32 if mean else total).backward()
    expected = torch.cat([param.grad.reshape(-1) for param in module.parameters()]).numpy()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    np.testing.assert_allclose(gradient.reshape(-1)[:1028], expected, rtol=1e-4, atol=1e-6)
    assert not gradient.reshape(-1)[1028:].any()


@pytest.mark.parametrize("device", DEVICES)
def test_what_dropout_draws_is_the_slots_whoever_computes_it(rows: Dataset, device: str) -> None:
    one, other = learner(rows, "sheet", device=device), learner(rows, "sheet", device=device)
    weights, about = one.start()
    assert other.start()[1] == about and (other.start()[0] == weights).all()
    _, first = one.gradient(piece(rows, (2, 3)), weights, True)
    other.gradient(piece(rows, (0, 1)), weights, True)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    _, second = other.gradient(piece(rows, (2, 3)), weights, True)
    assert (torch.random.get_rng_state() == before).all()  # the global random state is unchanged
    if device == "cpu":  # a GPU adds in any order
        np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, second, atol=1e-5)
    same_rows = RowsPiece(rows.train, piece(rows).inputs, 0, 32, 1, piece(rows).listed)
    twin = RowsPiece(rows.train, same_rows.inputs, 0, 32, 2, same_rows.listed)
    assert (one.gradient(same_rows, weights, True)[1] != one.gradient(twin, weights, True)[1]).any()


@pytest.mark.parametrize("device", DEVICES)
def test_batch_normalisation_is_measured_at_the_weights_that_are_judged(home: Path, rows: Dataset, device: str) -> None:
    one, other = (learner(rows, f"{home}/nets.py:Normalised", device=device) for _ in range(2))
    weights, _ = one.start()
    for number in range(3):  # earlier computations have no effect
        one.gradient(piece(rows, (0, number)), weights * 2, True)
    assert one.evaluate(rows.test, weights)[0] == pytest.approx(other.evaluate(rows.test, weights)[0], rel=1e-6)
    np.testing.assert_allclose(
        one.gradient(piece(rows), weights, True)[1],
        other.gradient(piece(rows), weights, True)[1],
        atol=0 if device == "cpu" else 1e-5,
    )
    kept = one.keep(weights)
    module = kept.module()
    x, _ = kept.inputs.read(rows.train, 0, rows.train.rows)
    meta = rows.train.meta
    with torch.no_grad():
        hidden = module.body[:2](torch.from_numpy(np.array(x)).float() * meta.factor + meta.shift)
    np.testing.assert_allclose(kept.tensors["body.2.running_mean"], hidden.mean(0), atol=1e-4)
    np.testing.assert_allclose(kept.tensors["body.2.running_var"], hidden.var(0), rtol=1e-3)


def test_tied_weights_are_there_once_and_frozen_ones_not_at_all(home: Path, rows: Dataset) -> None:
    one = learner(rows, f"{home}/nets.py:Tied")
    assert one.keys == 1  # 16 x 16 weights
    _, gradient = one.gradient(piece(rows), one.start()[0], True)
    assert gradient.shape == (1, 256) and gradient.any()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_kept_is_a_state_dict_and_comes_back(home: Path, rows: Dataset, tmp_path: Path, device: str) -> None:
    one = learner(rows, "cnn", device=device)
    weights = one.start()[0] * np.float32(1.01)
    one.keep(weights).save(tmp_path / "model.safetensors")
    found = trained(tmp_path / "model.safetensors")
    assert isinstance(found, TrainedModule)
    np.testing.assert_array_equal(one.read(tmp_path / "model.safetensors"), weights)
    module = cnn((1, 16, 16), 4)
    module.load_state_dict(found.state_dict())
    chances = found.predict(rows.test.inputs[:7])
    np.testing.assert_allclose(chances.sum(1), 1.0, rtol=1e-5)
    assert found.predict(rows.test.inputs[0]).shape == (1, 4)
    with pytest.raises(Invalid, match="rows of shape"):
        found.predict(np.zeros((2, 3)))
    again = learner(rows, "cnn", device=device, start=str(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.start()[0], weights)
    with pytest.raises(Invalid, match="of another module"):
        learner(rows, "sheet", start=str(tmp_path / "model.safetensors"))
    with pytest.raises(Invalid, match="cannot be read"):
        learner(rows, "cnn", start=str(tmp_path / "none.safetensors"))
    with pytest.raises(Invalid, match="another model"):
        learner(rows, "sheet").read(tmp_path / "model.safetensors")
    whole = bytearray((tmp_path / "model.safetensors").read_bytes())
    whole[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(whole)
    with pytest.raises(Invalid, match="damaged"):
        trained(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"net": "{}/nets.py:doubles"}, "torch.float64: weights are float32, call .float()"),
        ({"net": "{}/nets.py:lazy"}, "has no shape yet"),
        ({"net": "{}/nets.py:nothing"}, "no parameter to train"),
        ({"net": "{}/nets.py:text"}, "makes a str: a torch.nn.Module is needed"),
        ({"net": "{}/nets.py:broken"}, "KeyError: 'no such layer'"),
        ({"net": "{}/nets.py:leaves"}, "SystemExit"),
        ({"net": "{}/nets.py"}, "name the class or function in it, too"),
        ({"net": "{}/nets.py:missing"}, "nothing to call by the name 'missing'"),
        ({"net": "{}/nets.py:NOT_A_FUNCTION"}, "nothing to call by the name"),
        ({"net": "{}/none.py:Net"}, "there is no file"),
        ({"net": "{}/damaged.py:Net"}, "cannot be imported: ModuleNotFoundError"),
        ({"net": "no_such_package:Net"}, "cannot be imported"),
        ({"net": "{}/nets.py:three"}, "there are 4 classes: its last layer needs 4 outputs"),
        ({"net": "{}/nets.py:other_shape"}, "cannot take examples of shape (1, 16, 16)"),
        ({"net": "linear", "loss": "{}/nets.py:pair"}, "must return one number"),
        ({"net": "linear", "device": "cuda:77"}, "--set model.device=cpu, or auto"),
    ],
)
def test_a_module_that_cannot_learn_is_refused_with_the_next_move(
    home: Path, rows: Dataset, settings: dict[str, str], says: str
) -> None:
    filled = {name: value.format(home) for name, value in settings.items()}
    with pytest.raises(Invalid) as error:
        learner(rows, **filled).check(rows.test)
    assert says in str(error.value)


def test_a_loss_that_is_no_number_is_refused(home: Path, rows: Dataset) -> None:
    one = learner(rows, "linear", loss=f"{home}/nets.py:infinite")
    with pytest.raises(BadValues, match="the loss is"):
        one.gradient(piece(rows), one.start()[0], True)


def test_a_metric_of_ones_own_sees_all_of_the_test_set(home: Path, rows: Dataset) -> None:
    own, usual = learner(rows, "linear", metric=f"{home}/nets.py:worst"), learner(rows, "linear")
    weights, _ = own.start()
    assert own.evaluate(rows.test, weights)[1]["worst"] == pytest.approx(
        1 - usual.evaluate(rows.test, weights)[1]["accuracy"]
    )


def test_sparse_rows_are_spread_out_for_a_module(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    lines = [f"{2 * int(draw.random() < 0.5) - 1} {k + 1}:1 {k + 7}:2.5" for k in draw.integers(0, 5, 60)]
    (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n")
    rows = load(DataSource(str(tmp_path / "rows.svm")), 0, tmp_path / "cache")
    one = learner(rows, "linear", loss="cross_entropy")
    x, y = piece(rows).read()
    assert x.shape == (len(y), 11) and set(y.tolist()) == {0.0, 1.0} and set(x.sum(1).tolist()) == {3.5}
    one.check(rows.test)
    assert one.evaluate(rows.test, one.start()[0])[0] > 0


def test_a_device_by_its_name() -> None:
    assert device_of("cpu").type == "cpu"
    assert device_of("auto").type in ("cpu", "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(Invalid, match="finds no GPU here"):
            device_of("cuda")


def test_what_a_module_has_besides_numbers_is_left_out_and_half_numbers_are_kept(home: Path, rows: Dataset) -> None:
    kept = (one := learner(rows, f"{home}/nets.py:Odd")).keep(one.start()[0])
    assert set(kept.tensors) == {"layer.weight", "layer.bias", "halves", "count"} and kept.tensors["count"].shape == ()
    one.check(rows.test)
    kept.module().load_state_dict(kept.state_dict(), strict=False)


def test_a_parameter_that_is_replaced_while_it_is_trained_is_refused(home: Path, rows: Dataset) -> None:
    one = learner(rows, f"{home}/nets.py:flat")
    one.gradient(piece(rows), one.start()[0], True)
    one.module[1].weight = nn.Parameter(torch.zeros(4, 256))
    with pytest.raises(Invalid, match=r"'1.weight' .* was replaced"):
        for _ in range(70):
            one.gradient(piece(rows), one.start()[0], True)


def test_images_in_floats_are_scaled_as_bytes_are(rows: Dataset) -> None:
    kept = (one := learner(rows, "linear")).keep(one.start()[0])
    images = np.array(rows.test.inputs[:9])
    np.testing.assert_allclose(kept.predict(images.astype(np.float32) / 255), kept.predict(images), atol=1e-4)
    np.testing.assert_allclose(kept.predict(images.astype(np.float64)), kept.predict(images), atol=1e-6)
    with pytest.raises(Invalid, match="not scaled"):
        kept.predict(kept.prepare(images))
