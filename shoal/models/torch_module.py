"""Describes a ``torch.nn.Module``: its source, loss, metric and device.

    net       linear, cnn or sheet (``zoo``), or a factory: "package.module:name" or "file.py:name"
    loss      cross_entropy, mse, bce, or a function of (outputs, labels) that returns a mean:
              "file.py:name"
    metric    accuracy, or a function of (outputs, labels) that returns a number for the whole
              test set: "file.py:name"

The description is plain data; nothing here imports PyTorch. ``torch_learner`` computes with it.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Literal

import msgspec

from shoal.errors import Invalid

ZOO = ("linear", "cnn", "sheet")
LOSSES = ("cross_entropy", "mse", "bce")
# weights in a table row: updates of long rows are three times as fast; the last is zero-padded
WIDTH = 256
_LINEAR = ("logistic", "hinge", "squared")  # models named by their loss, not modules
METRICS = ("accuracy", "none")
_PLACE = re.compile(r".+:[A-Za-z_]\w*")
_DEVICE = re.compile(r"cpu|auto|mps|cuda(:\d{1,3})?")


class Module(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="torch", kw_only=True):
    """The description of a module."""

    net: str = "cnn"
    loss: str = "cross_entropy"
    metric: str = "accuracy"
    device: str = "cpu"  # cuda (worker n: GPU n, cyclically), cuda:1, mps; auto: a GPU if any
    wire: Literal["float32", "float16", "bfloat16"] = "float32"  # type of values on the wire
    start: str = ""  # a .safetensors file with the initial state_dict
    threads: int = 1  # of PyTorch, per worker

    def __post_init__(self) -> None:
        for setting, names in (("net", ZOO), ("loss", LOSSES), ("metric", METRICS)):
            _check_name(setting, getattr(self, setting), names)
        if not _DEVICE.fullmatch(self.device):
            raise Invalid(f"model.device={self.device!r}: needs cpu, cuda, cuda:N, mps or auto")
        if not 1 <= self.threads <= 1024:
            raise Invalid(f"model.threads={self.threads}: needs 1 to 1024")

    @property
    def told(self) -> str:
        """The net, with the loss if it is not the default: identifies comparable runs."""
        return self.name if self.loss == "cross_entropy" else f"{self.name} ({self.loss.rpartition(':')[2]})"

    @property
    def name(self) -> str:
        """A short name that is valid as a folder's name."""
        return self.net.rpartition(":")[2]


def _check_name(setting: str, value: str, names: tuple[str, ...]) -> None:
    if value in names or _PLACE.fullmatch(value):
        return
    if value.endswith(".py"):
        raise Invalid(f"model.{setting}={value!r}: name the class or function in it, too: {value}:Net")
    near = get_close_matches(value, (*names, *(_LINEAR if setting == "net" else ())), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    others = f"{', '.join(_LINEAR)} (for sparse rows), " if setting == "net" else ""
    raise Invalid(
        f"model.{setting}: no {value!r}: {hint}There are {others}{', '.join(names)}, or your own: 'file.py:name', "
        f"'package.module:name'"
    )
