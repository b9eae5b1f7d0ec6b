"""Makes modules: the same on every node, moved to its device and checked."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shoal.errors import Invalid
from shoal.models.inputs import ModelInputs
from shoal.models.torch_module import ZOO, Module

computing = threading.RLock()  # PyTorch's generator is global to the process


def made(model: Module, inputs: ModelInputs, seed: int) -> nn.Module:
    """The initial module: the same for the same seed on every node."""
    with computing, torch.random.fork_rng(devices=[], enabled=True):
        torch.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
        if model.net in ZOO:
            from shoal.models import zoo

            module = getattr(zoo, model.net)(inputs.shape, max(2, inputs.classes))
        else:
            maker = named(model.net, "net")
            with refused(f"model.net={model.net!r} cannot be made"):
                module = maker()
    if not isinstance(module, nn.Module):
        raise Invalid(f"model.net={model.net!r} makes a {type(module).__name__}: a torch.nn.Module is needed")
    if model.start:
        _load_start(module, model.start)
    return module


def named(place: str, setting: str) -> Callable[..., Any]:
    where, _, name = place.rpartition(":")
    path = Path(where).expanduser().resolve() if where.endswith(".py") else None
    if path is not None and not path.exists():
        raise Invalid(f"model.{setting}={place!r}: there is no file {where!r}")
    with refused(f"model.{setting}={place!r}: {where!r} cannot be imported"):
        module = importlib.import_module(where) if path is None else _imported(path)
    found = getattr(module, name, None)
    if not callable(found):
        raise Invalid(f"model.{setting}={place!r}: {where!r} has nothing to call by the name {name!r}")
    return found  # type: ignore[no-any-return]


def _imported(path: Path) -> ModuleType:
    """A file as a module; an edited file is another module."""
    facts = path.stat()
    key = f"shoal_user_{zlib.crc32(f'{path} {facts.st_mtime_ns} {facts.st_size}'.encode()):08x}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        assert spec is not None and spec.loader is not None
        sys.modules[key] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[key]
            raise
    return sys.modules[key]


@contextlib.contextmanager
def refused(what: str, then: str = "") -> Iterator[None]:
    """Turn any error of the user's code into Invalid: ``what``, the error, the next move."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise Invalid(f"{what}: {type(error).__name__}: {error}{then}") from None


def keep_memory() -> None:
    """Let the C library keep freed memory for the next batch.

    It saves up to a quarter of the time. For a process that only computes gradients; its memory
    stays at its peak.
    """
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        # mmap threshold, trim threshold, top pad
        for setting, value in ((-3, 1 << 25), (-1, 1 << 27), (-2, 1 << 24)):
            mallopt(setting, value)


def device_of(name: str, number: int = 0) -> torch.device:
    """The device of that name; raises Invalid if this machine lacks it."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if name == "cuda" and gpus:
        name = f"cuda:{number % gpus}"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        have = f"there are {gpus} GPUs here" if gpus else "PyTorch finds no GPU here"
        raise Invalid(f"model.device={name!r}: {have}: --set model.device=cpu, or auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise Invalid(f"model.device={name!r}: PyTorch finds none here: --set model.device=cpu, or auto")
    return device


def moved(module: nn.Module, device: torch.device, net: str) -> nn.Module:
    try:
        return module.to(device)
    except (NotImplementedError, RuntimeError) as error:
        raise Invalid(f"model {net!r} cannot be moved to {device}: {error}: make it with real weights") from None


def trainable(module: nn.Module, net: str) -> list[tuple[str, nn.Parameter]]:
    found = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
    if not found or not any(
        isinstance(param, nn.parameter.UninitializedParameter) or param.numel() for _, param in found
    ):
        raise Invalid(f"model {net!r} has no parameter to train: one with requires_grad is needed")
    for name, param in found:
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise Invalid(f"parameter {name!r} of model {net!r} has no shape yet: make it without lazy layers")
        if param.dtype != torch.float32:
            raise Invalid(f"parameter {name!r} of model {net!r} is {param.dtype}: weights are float32, call .float()")
        if not torch.isfinite(param).all():
            raise Invalid(f"parameter {name!r} of model {net!r} begins with values that are not finite")
    return found


def loss_of(name: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    match name:
        case "cross_entropy":
            return functional.cross_entropy
        case "mse":
            return lambda outputs, labels: functional.mse_loss(_flat(outputs, labels), labels)
        case "bce":
            return lambda outputs, labels: functional.binary_cross_entropy_with_logits(_flat(outputs, labels), labels)
    return named(name, "loss")


def _flat(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return outputs.reshape(labels.shape) if outputs.numel() == labels.numel() else outputs


def _load_start(module: nn.Module, path: str) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise Invalid(f"model.start={path!r} cannot be read: there is no such file")
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise Invalid(
            f"model.start={path!r} cannot be read ({error}): give a .safetensors with a state_dict: "
            f"safetensors.torch.save_file(torch.load(...), 'start.safetensors') makes one"
        ) from None
    except RuntimeError as error:
        raise Invalid(f"model.start={path!r} is of another module: {error}") from None
