"""Rivals that train a module without shoal, each a program that prints its images a second.

    plain    processes that know nothing of each other, each with its own module: the upper bound
    ddp      torch's DistributedDataParallel over gloo: an all-reduce in every step
    rpc      torch's RPC: trainers send gradients to a server and get its weights in the same call
    ray      an actor of Ray's has the weights, others compute gradients, a driver passes them on

All have their images in memory as float32, shuffled in every epoch, one thread of PyTorch each,
and the same module, update and batch. The first ``warm`` batches are not timed. A server applies
every gradient at once (asynchronously).

    python -m benchmarks.torch_rivals ddp '{"rows": FOLDER, ...}'    prints one line of JSON
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import nn
from torch.nn import functional

from shoal.data.dense_file import DenseFile
from shoal.models.inputs import ModelInputs
from shoal.models.torch_factory import made
from shoal.models.torch_module import Module

Kind = Literal["plain", "ddp", "rpc", "ray"]
Step = Callable[[], object]
Agree = Callable[[int], int]
_LOOK = 10  # batches by which it is guessed how many fill the time


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rival is to do."""

    rows: str  # the folder of the packed images
    net: str
    workers: int
    batch: int
    warm: int  # batches that are not timed
    seconds: float  # timed, more or less
    step: float
    momentum: float
    seed: int


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it has to say."""

    images: list[float]  # a second, of every worker


class Pupil:
    """A module and the images that it sees."""

    def __init__(self, orders: Orders, number: int = 0) -> None:
        torch.set_num_threads(1)
        rows = DenseFile.open(Path(orders.rows))
        inputs = ModelInputs.of(rows)
        self.module = made(Module(net=orders.net), inputs, orders.seed)
        scaled = torch.from_numpy(rows.inputs.reshape(-1, *inputs.shape).copy()).float()
        self._images = scaled.mul_(inputs.factor).add_(inputs.shift)
        self._labels = torch.from_numpy(rows.labels.copy()).long()
        self._batch = orders.batch
        torch.manual_seed(orders.seed + number)
        self._order = self._orders()

    def loss(self, module: nn.Module) -> torch.Tensor:
        """Of the next batch."""
        some = next(self._order)
        return functional.cross_entropy(module(self._images[some]), self._labels[some])

    def _orders(self) -> Iterator[torch.Tensor]:
        while True:
            yield from torch.randperm(len(self._labels)).split(self._batch)


def optimizer(module: nn.Module, orders: Orders) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), orders.step, orders.momentum)


def stepping(pupil: Pupil, module: nn.Module, orders: Orders) -> Step:
    """One step as everybody writes it; the module may be wrapped."""
    rule = optimizer(module, orders)

    def step() -> None:
        rule.zero_grad()
        pupil.loss(module).backward()
        rule.step()

    return step


def rate(step: Step, orders: Orders, agree: Agree = lambda count: count) -> float:
    """Images a second; ``agree`` decides how many batches, given how many fill the time."""
    for _ in range(orders.warm):
        step()
    began = time.perf_counter()
    for _ in range(_LOOK):
        step()
    count = agree(max(_LOOK, math.ceil(orders.seconds * _LOOK / (time.perf_counter() - began))))
    began = time.perf_counter()
    for _ in range(count):
        step()
    return count * orders.batch / (time.perf_counter() - began)


# ------------------------------------------------------------ several processes of one rival


def together(task: Callable[[int, Orders, str, Any], float | None], orders: Orders, processes: int) -> list[float]:
    """Forks processes that meet at a barrier; returns their results."""
    context = multiprocessing.get_context("fork")  # PyTorch has computed nothing yet
    barrier, found = context.Barrier(processes), context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:

        def run(number: int) -> None:
            try:
                found.put((number, task(number, orders, f"file://{folder}/meet", barrier)))
            except BaseException as error:
                found.put((number, f"{type(error).__name__}: {error}"))

        children = [context.Process(target=run, args=(number,), daemon=True) for number in range(processes)]
        for child in children:
            child.start()
        told = dict(found.get() for _ in children)
        for child in children:
            child.join()
    for value in told.values():
        if isinstance(value, str):
            raise SystemExit(value)
    return [told[number] for number in sorted(told) if told[number] is not None]


def plain(number: int, orders: Orders, meet: str, barrier: Any) -> float:
    """Alone; those beside it only begin at the same time."""
    pupil = Pupil(orders, number)

    def agree(count: int) -> int:
        barrier.wait()
        return count

    return rate(stepping(pupil, pupil.module, orders), orders, agree)


def ddp(number: int, orders: Orders, meet: str, barrier: Any) -> float:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    pupil = Pupil(orders, number)
    dist.init_process_group("gloo", init_method=meet, rank=number, world_size=orders.workers)

    def agree(count: int) -> int:
        counts = torch.tensor([count])
        dist.broadcast(counts, 0)
        return int(counts.item())

    found = rate(stepping(pupil, DistributedDataParallel(pupil.module), orders), orders, agree)
    dist.destroy_process_group()
    return found


class RpcServer:
    """The weights, and everybody's gradients as they come."""

    def __init__(self, orders: Orders) -> None:
        self.module = Pupil(orders).module
        self._optimizer = optimizer(self.module, orders)
        self._lock = threading.Lock()

    def take(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Apply these (none: nothing to apply), and return the weights as they are then."""
        params = list(self.module.parameters())
        with self._lock:
            for param, gradient in zip(params, gradients, strict=False):
                param.grad = gradient
            if gradients:
                self._optimizer.step()
            return [param.detach().clone() for param in params]


def rpc(number: int, orders: Orders, meet: str, barrier: Any) -> float | None:
    """Number 0 is the server, all others train."""
    import torch.distributed.rpc as rpcs

    torch.set_num_threads(1)
    options = rpcs.TensorPipeRpcBackendOptions(init_method=meet)
    world = orders.workers + 1
    rpcs.init_rpc(
        "server" if number == 0 else f"trainer-{number}", rank=number, world_size=world, rpc_backend_options=options
    )
    found = None
    if number > 0:
        pupil = Pupil(orders, number)
        server = rpcs.remote("server", _rpc_server, args=(orders,))
        params = list(pupil.module.parameters())

        def take(weights: list[torch.Tensor]) -> None:
            for param, weight in zip(params, weights, strict=True):
                param.data.copy_(weight)

        def step() -> None:
            gradients = torch.autograd.grad(pupil.loss(pupil.module), params)
            take(rpcs.rpc_sync("server", _rpc_take, args=(server, list(gradients))))

        take(rpcs.rpc_sync("server", _rpc_take, args=(server, [])))
        found = rate(step, orders)
    rpcs.shutdown()
    return found


_served: list[RpcServer] = []
_serving = threading.Lock()


def _rpc_server(orders: Orders) -> RpcServer:
    """One for all trainers, made at the first request."""
    with _serving:
        if not _served:
            _served.append(RpcServer(orders))
        return _served[0]


def _rpc_take(server: Any, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    one: RpcServer = server.local_value()
    return one.take(gradients)


# ------------------------------------------------------------ Ray


class RayServer:
    """An actor: the weights."""

    def __init__(self, orders: Orders) -> None:
        self._module = Pupil(orders).module
        self._optimizer = optimizer(self._module, orders)

    def weights(self) -> list[Any]:
        return [param.detach().numpy().copy() for param in self._module.parameters()]

    def take(self, gradients: list[Any]) -> list[Any]:
        for param, gradient in zip(self._module.parameters(), gradients, strict=True):
            param.grad = torch.from_numpy(gradient.copy())
        self._optimizer.step()
        return self.weights()


class RayTrainer:
    """An actor: images, and gradients of the weights that it is handed."""

    def __init__(self, orders: Orders, number: int) -> None:
        self._pupil = Pupil(orders, number)
        self._params = list(self._pupil.module.parameters())

    def gradients(self, weights: list[Any]) -> list[Any]:
        for param, weight in zip(self._params, weights, strict=True):
            param.data.copy_(torch.from_numpy(weight.copy()))
        found = torch.autograd.grad(self._pupil.loss(self._pupil.module), self._params)
        return [one.numpy() for one in found]


def by_ray(orders: Orders) -> list[float]:
    """A driver sends new weights to the trainer of each gradient; one figure for all."""
    ray: Any = importlib.import_module("ray")
    folder = tempfile.mkdtemp(prefix="ray")
    ray.init(
        num_cpus=orders.workers + 1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=1 << 28,
        _temp_dir=folder,
    )
    try:
        server = ray.remote(RayServer).remote(orders)
        trainers = [ray.remote(RayTrainer).remote(orders, number) for number in range(orders.workers)]
        first = server.weights.remote()
        under_way = {trainer.gradients.remote(first): trainer for trainer in trainers}

        def step() -> None:
            for _ in trainers:
                done = ray.wait(list(under_way))[0][0]
                trainer = under_way.pop(done)
                under_way[trainer.gradients.remote(server.take.remote(done))] = trainer

        found = [orders.workers * rate(step, orders)]
        ray.get(list(under_way))  # one that failed would be taken for a fast one
        return found
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def run(kind: str, orders: Orders) -> Rates:
    match kind:
        case "ray":
            return Rates(by_ray(orders))
        case "rpc":
            return Rates(together(rpc, orders, orders.workers + 1))
        case "ddp":
            return Rates(together(ddp, orders, orders.workers))
    return Rates(together(plain, orders, orders.workers))


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, 9)  # our parent made us a process group


if __name__ == "__main__":
    from benchmarks import torch_rivals  # by its name: what Ray hands on is looked for there

    threading.Thread(target=_end_with_parent, daemon=True).start()
    given = msgspec.json.decode(sys.argv[2], type=torch_rivals.Orders)
    print(msgspec.json.encode(torch_rivals.run(sys.argv[1], given)).decode(), flush=True)
