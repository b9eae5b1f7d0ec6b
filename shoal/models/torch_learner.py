"""Computes with a ``torch.nn.Module`` whose parameters are views of one flat array.

The result for a slot depends on the weights and the slot alone: dropout draws from a generator
seeded by the slot, and buffers are reset before each slot. Running statistics of batch
normalisation are recomputed over the first training rows before a model is evaluated or saved.
PyTorch's generator is global to the process, so only one thread computes at a time.
"""

from __future__ import annotations

import math
import os
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.data.csr_file import CsrFile
from shoal.data.dense_file import DenseFile
from shoal.errors import BadValues, Invalid
from shoal.keys import KeyRange
from shoal.models import torch_factory
from shoal.models.inputs import ModelInputs, RowsPiece
from shoal.models.learner import Learner, Metrics
from shoal.models.linear import Floats
from shoal.models.torch_factory import computing, refused
from shoal.models.torch_module import WIDTH, Module
from shoal.models.trained import TrainedModule

_AT_ONCE = 1_000  # rows evaluated at once
_CALIBRATED = 4_000  # rows to calibrate batch normalisation
_LOOK = 64  # gradients between two checks that the module is unchanged


class ModuleLearner(Learner):
    width = WIDTH

    def __init__(self, model: Module, train: CsrFile | DenseFile, seed: int, number: int = 0) -> None:
        self.model, self._train = model, train
        self._inputs = ModelInputs.of(train)
        self.device = torch_factory.device_of(model.device, number)
        self.module = torch_factory.moved(torch_factory.made(model, self._inputs, seed), self.device, model.net)
        self._loss = torch_factory.loss_of(model.loss)
        self._params = torch_factory.trainable(self.module, model.net)
        self._count = sum(param.numel() for _, param in self._params)
        self.keys = -(-self._count // WIDTH)
        self._rest = torch.zeros(self.keys * WIDTH - self._count, device=self.device)
        self._flat = torch.cat([*(param.detach().reshape(-1) for _, param in self._params), self._rest])
        self._lay_on(self._flat)
        on_cpu = self.device.type == "cpu"
        self._staging = self._flat if on_cpu else torch.empty(len(self._flat), pin_memory=self.device.type == "cuda")
        self._staging.copy_(self._flat)
        self._fixed = {name: one.detach().clone() for name, one in self.module.named_buffers()}
        self._measured = [one for one in self.module.modules() if _is_measured(one)]
        self._start = self._rows(self._flat.cpu().numpy().copy())
        self._shapes = {name: param.shape for name, param in self._params}
        self._computed = 0  # gradients so far
        self._settled: set[int] = set()  # threads whose thread count was set
        self._before = 0
        self._threads = 0  # 0: the default of the process
        self._shared: Floats | None = None

    # ------------------------------------------------------------ setup, checks and results

    def settle(self, alone: bool = False) -> None:
        if alone:
            torch_factory.keep_memory()
        self._threads = self.model.threads  # by default every worker would take all cores
        self._before = torch.get_num_threads()

    def release(self) -> None:
        if self._threads:
            torch.set_num_threads(self._before)
        self._threads = 0

    def live_on(self, weights: Floats) -> None:
        """Use this array as the weights of gradients: they see concurrent writes."""
        self._shared, self._staging = weights, torch.from_numpy(weights.reshape(-1))
        if self.device.type == "cpu":
            self._flat = self._staging
            self._lay_on(self._flat)

    def _lay_on(self, flat: torch.Tensor) -> None:
        """Make the parameters consecutive views of this array."""
        at = 0
        for _, param in self._params:
            param.data = flat[at : at + param.numel()].view_as(param)
            at += param.numel()

    def start(self) -> tuple[Floats, str]:
        return self._start, self.about

    @property
    def about(self) -> str:
        """Equal on every node: names and shapes of parameters, checksum of the rest."""
        parts = [f"{name} {tuple(param.shape)}" for name, param in self._params]
        # addresses differ between processes
        layers = re.sub(r"0x[0-9a-f]+", "", repr(self.module))
        crc = zlib.crc32("; ".join([*parts, layers]).encode())
        trained = {id(param) for _, param in self._params}
        fixed = [(name, one) for name, one in self.module.named_parameters() if id(one) not in trained]
        for name, one in [*fixed, *self._fixed.items()]:
            crc = zlib.crc32(_array(one).tobytes(), zlib.crc32(name.encode(), crc))
        return f"{len(parts)} parameters, {self._count} weights, {crc:08x}"

    def keep(self, weights: Floats) -> TrainedModule:
        with self._at(weights):
            self._calibrate()
            state = self.module.state_dict()
            tensors = {name: _array(one) for name, one in state.items() if isinstance(one, torch.Tensor)}
        return TrainedModule(self.model, self._inputs, tensors)

    def read(self, path: Path) -> Floats:
        kept = TrainedModule.load(path)
        if (kept.model, kept.inputs) != (self.model, self._inputs):
            raise Invalid(f"{path} has another model ({kept!r}): train this one from the start")
        flat = [kept.tensors[name].reshape(-1) for name, _ in self._params]
        return self._rows(np.concatenate([*flat, self._rest.cpu().numpy()]))

    def check(self, test: CsrFile | DenseFile) -> None:
        """Find errors of the middle or the end of a run now, on a few rows."""
        for rows in (self._train, test):
            some = self._inputs.read(rows, 0, min(2, rows.rows))
            with self._at(self._start), torch.no_grad():
                self.module.eval()
                x, y = self._on_device(*some)
                with refused(
                    f"model {self.model.net!r} cannot take examples of shape {tuple(x.shape[1:])} (in batches: "
                    f"{tuple(x.shape)})",
                    ": change the module, or the data",
                ):
                    outputs = self.module(x)
                self._check_outputs(outputs, rows)
                with refused(
                    f"loss {self.model.loss!r} cannot compare outputs of shape {tuple(outputs.shape)} with labels of "
                    f"shape {tuple(y.shape)} ({y.dtype})"
                ):
                    found = self._loss(outputs, y)
                if not isinstance(found, torch.Tensor) or found.numel() != 1:
                    raise Invalid(f"loss {self.model.loss!r} must return one number, the mean over the batch")
        self.keep(self._start)
        first = RowsPiece(self._train, self._inputs, 0, min(2, self._train.rows), 0, KeyRange(0, self.keys))
        # Training reports bad values, for every slot; batch normalisation may refuse one row.
        with refused(f"model {self.model.net!r} cannot be trained", ": change the module"), suppress(BadValues):
            if len(first) > 1:
                self.gradient(first, self._start, True)

    def _check_outputs(self, outputs: Any, rows: CsrFile | DenseFile) -> None:
        if not isinstance(outputs, torch.Tensor):
            raise Invalid(f"model {self.model.net!r} returns {type(outputs).__name__}: a tensor is needed")
        if self.model.loss == "cross_entropy":
            classes = self._inputs.classes
            if not classes:
                seen = ", ".join(f"{one.value:g}" for one in rows.meta.labels[:5])
                raise Invalid(
                    f"cross_entropy needs labels 0, 1, 2, ..., and there are others ({seen}, ...): number the classes from 0, or "
                    f"--set model.loss=mse for numbers"
                )
            if outputs.ndim < 2 or outputs.shape[1] < classes:
                raise Invalid(
                    f"model {self.model.net!r} returns shape {tuple(outputs.shape)}, and there are {classes} classes: "
                    f"its last layer needs {classes} outputs"
                )

    # ------------------------------------------------------------ computing

    def gradient(
        self, local: Any, weights: Floats, mean: bool, wrapped: Any = None, share: float = 1.0
    ) -> tuple[float, Floats]:
        """The loss and gradient of a slot, times ``share``; ``wrapped`` replaces the module.

        It takes part in the backward pass (averaging's ``Ddp``), which must run for any loss.
        """
        rows = len(local)
        if self._computed % _LOOK == 0:
            self._check_same()
        self._computed += 1
        with self._at(weights), _seeded(local.seed, self.device):
            self.module.train()
            self._reset_buffers()
            x, y = self._on_device(*local.read())
            loss = self._loss((wrapped or self.module)(x), y)
            value = float(loss.item())
            if not math.isfinite(value) and wrapped is None:
                raise BadValues(f"the loss is {value}: lower the step (update.step), or look at the inputs")
            params = [param for _, param in self._params]
            whole = loss if mean else loss * rows
            if wrapped is None:
                found = torch.autograd.grad(whole, params, allow_unused=True, materialize_grads=True)
            else:
                found = _backward(whole * share, params, wrapped)
            flat = torch.cat([*(one.reshape(-1) for one in found), self._rest])
        return value * rows, self._rows(flat.cpu().numpy())

    def _check_same(self) -> None:
        """Raise if the module replaced a parameter: it would silently train nothing."""
        now = {name: id(param) for name, param in self.module.named_parameters()}
        for name, param in self._params:
            if now.get(name) != id(param) or param.shape != self._shapes[name]:
                raise Invalid(
                    f"parameter {name!r} of model {self.model.net!r} was replaced: change its values in place"
                )

    def evaluate(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        if not test.rows:
            raise Invalid("the test set has no rows: give one with rows, or none")
        total, hits, outputs, labels = 0.0, 0, [], []
        custom = None if self.model.metric in ("accuracy", "none") else torch_factory.named(self.model.metric, "metric")
        with self._at(weights), torch.no_grad():
            self._calibrate()
            self.module.eval()
            for start in range(0, test.rows, _AT_ONCE):
                x, y = self._on_device(*self._inputs.read(test, start, min(start + _AT_ONCE, test.rows)))
                out = self.module(x)
                total += float(self._loss(out, y).item()) * len(y)
                if self.model.metric == "accuracy" and self._inputs.classes:
                    hits += int((_classes(out) == y.long()).sum().item())
                if custom is not None:
                    outputs.append(out.cpu())
                    labels.append(y.cpu())
        metrics: Metrics = {}
        if self.model.metric == "accuracy" and self._inputs.classes:
            metrics["accuracy"] = hits / test.rows
        if custom is not None:
            metrics[self.model.metric.rpartition(":")[2]] = float(custom(torch.cat(outputs), torch.cat(labels)))
        return total / test.rows if math.isfinite(total) else math.inf, metrics

    def _rows(self, flat: Any) -> Floats:
        rows: Floats = flat.astype(np.float32, copy=False).reshape(self.keys, WIDTH)
        return rows

    @contextmanager
    def _at(self, weights: Floats) -> Iterator[None]:
        with computing:
            if self._threads and threading.get_ident() not in self._settled:
                # Set by the thread that computes: set by another thread, it is slower by a third
                # (16 cores).
                torch.set_num_threads(self._threads)
                self._settled.add(threading.get_ident())
            if weights is not self._shared:
                self._staging.numpy()[:] = weights.reshape(-1)
            if self._staging is not self._flat:
                self._flat.copy_(self._staging)
            here = os.getpid()
            try:
                yield
            finally:
                # a fork torch_factory.made by the module must not continue as this process
                if os.getpid() != here:
                    os._exit(0)

    def _on_device(self, inputs: Any, labels: Floats) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(np.array(inputs)).to(self.device)
        if x.dtype != torch.float32:
            x = x.float()
        if self._inputs.factor != 1.0 or self._inputs.shift != 0.0:
            x = x * self._inputs.factor + self._inputs.shift
        y = torch.from_numpy(np.array(labels)).to(self.device)
        if self.model.loss == "cross_entropy" or (self._inputs.classes and self.model.loss not in ("mse", "bce")):
            y = y.long()
        return x, y

    def _reset_buffers(self) -> None:
        if self._fixed:
            with torch.no_grad():
                for name, one in self.module.named_buffers():
                    one.copy_(self._fixed[name])

    def _calibrate(self) -> None:
        self._reset_buffers()
        if self._measured:
            with torch.no_grad():
                self._measure()

    def _measure(self) -> None:
        self.module.eval()
        momenta = [one.momentum for one in self._measured]
        for one in self._measured:
            one.reset_running_stats()
            one.momentum = None  # a plain mean over the following batches
            one.train()
        rows = min(_CALIBRATED, self._train.rows)
        for start in range(0, rows, _AT_ONCE):
            stop = min(start + _AT_ONCE, rows)
            if stop - start > 1:
                self.module(self._on_device(*self._inputs.read(self._train, start, stop))[0])
        for one, momentum in zip(self._measured, momenta, strict=True):
            one.momentum = momentum
        self.module.eval()


def _backward(loss: torch.Tensor, params: list[nn.Parameter], wrapped: Any) -> tuple[torch.Tensor, ...]:
    for param in params:
        param.grad = None
    wrapped.backward(loss)
    found = tuple(torch.zeros_like(param) if param.grad is None else param.grad for param in params)
    for param in params:
        param.grad = None
    return found


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    # torch.manual_seed visits every device type, which takes 90 microseconds instead of 2.
    own = torch.default_generator
    state = own.get_state()
    if device.type == "cpu":
        own.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        own.set_state(state)


def _array(tensor: torch.Tensor) -> Any:
    """Its values; bfloat16, unknown to numpy, as float32."""
    found = tensor.detach().cpu()
    return (found.float() if found.dtype == torch.bfloat16 else found).numpy().copy()


def _classes(outputs: torch.Tensor) -> torch.Tensor:
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return outputs.argmax(1)
    return (outputs.reshape(-1) > 0).long()


def _is_measured(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
