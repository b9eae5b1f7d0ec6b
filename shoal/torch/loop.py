"""Moves the optimizer of a PyTorch loop to the servers; the loop stays unchanged.

    zero_grad, forward, backward        in this process, as before
    step                                pushes gradients; the servers update; pulls new weights

    distribute(model, optimizer)                    asynchronous: no worker waits
    distribute(model, optimizer, max_delay=4)       at most 4 steps ahead of the slowest worker
    distribute(model, optimizer, sync=True)         one update per step: the mean over all workers

The state of the update (momenta, ...) stays on the servers. Buffers, such as batch-norm's running
means, stay with each worker until ``average_buffers``. A worker that dies delays others only
briefly: in sync mode its missing slots are declared void. Without a launcher the loop is plain
PyTorch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator, Sized
from typing import Any

import msgspec
import torch

from shoal.errors import BadValues, Fenced, Invalid, RunFailed, SegmentsLost
from shoal.keys import Values
from shoal.store.table.update import Assign
from shoal.tables import Apply, Dense, Each, Given, Step, Wire, whole
from shoal.torch.flatten import FlatParameters
from shoal.torch.group import WorkerGroup
from shoal.torch.optimizers import changed, settings, update_of
from shoal.torch.rank import Place, ensure

log = logging.getLogger("shoal")
_WITHOUT = "leave the scheduler out, and take the smaller lr from the start, or AdamW, which adapts its steps"


def distribute(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    sync: bool = False,
    max_delay: int | None = None,
    wire: Wire = "float32",
    name: str = "model",
    place: Place | None = None,
) -> Distributed:
    """An optimizer whose update runs on the servers. All workers start with worker 0's weights.

    ``wire`` is the type of values on the wire: "bfloat16" and "float16" take half the bytes.
    ``name`` is the table's, for programs that distribute more than one model.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, Distributed):
        raise Invalid(f"{type(optimizer).__name__} is no optimizer of torch.optim: make one, and distribute it once")
    if sync and max_delay is not None:
        raise Invalid("sync=True and max_delay= exclude each other: in sync mode no worker is ahead")
    if max_delay is not None:
        max_delay = whole("max_delay", max_delay)
    update_of(optimizer)  # refused as under a launcher, so that a script can be tested alone
    place = place or Place.here()
    if place is None:
        print("shoal: no servers, so this is plain PyTorch; with them: shoal launch --workers 4 ...", file=sys.stderr)
        return LocalLoop(model, optimizer)
    return ServerLoop(model, optimizer, sync, max_delay, wire, name, place)


class Distributed(torch.optim.Optimizer):
    """The optimizer that ``distribute`` returns. Its ``state_dict`` has settings only."""

    rank, world = 0, 1

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups[0]["params"], dict(optimizer.defaults))
        # the same objects: a scheduler may refer to the plain optimizer
        self.param_groups = optimizer.param_groups
        self.model = model

    def sampler(self, data: Sized, shuffle: bool = True, seed: int = 0) -> ShardSampler:
        """This worker's shard of a data set, for a DataLoader."""
        return ShardSampler(data, self.rank, self.world, shuffle, seed)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise Invalid("the optimizer's state is on the servers: load the model's state before it is distributed")

    def average_buffers(self) -> None:
        """Average floating-point buffers (batch-norm) over the workers; all must call it."""

    def finish(self) -> None:
        """End training: wait for all other workers, then pull the final weights."""


class LocalLoop(Distributed):
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer)
        self._plain = optimizer
        self._settings = settings(self.param_groups[0])
        self._warned = False
        self.state = optimizer.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not self._warned and (different := changed(self._settings, self.param_groups[0])):
            self._warned = True
            print(f"shoal: {different}; under shoal launch that is refused: {_WITHOUT}", file=sys.stderr)
        return self._plain.step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._plain.load_state_dict(state_dict)
        self.param_groups, self.state = self._plain.param_groups, self._plain.state


# active loops of this process
_here: weakref.WeakValueDictionary[tuple[str, int, str], ServerLoop] = weakref.WeakValueDictionary()


class ServerLoop(Distributed):
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        sync: bool,
        max_delay: int | None,
        wire: Wire,
        name: str,
        place: Place,
    ) -> None:
        super().__init__(model, optimizer)
        self._key = (str(place.cluster), place.rank, name)
        if self._key in _here:
            raise Invalid(f"{name!r} is distributed by this worker already: give the second model another name=")
        self.rank, self.world, self._name, self._sync = place.rank, place.world, name, sync
        self.steps = 0  # steps of this worker
        self._settings = settings(self.param_groups[0])
        self._flat = FlatParameters(model, self.param_groups[0]["params"])
        apply: Apply = Step(slots=place.world, combine="mean") if sync else Each()
        delay = 0 if sync else max_delay
        flat, update = self._flat, update_of(optimizer)
        self._spec = Dense(rows=flat.rows, width=flat.width, update=update, apply=apply, max_delay=delay, wire=wire)
        self._crew = WorkerGroup(place, name)
        try:
            self._begin()
        except BaseException:
            self._crew.close()
            raise
        self._gone: list[int] = []  # workers
        self._averaged = 0
        _here[self._key] = self

    def _begin(self) -> None:
        """Create the table (worker 0) or check it (others), then pull it."""
        if self._sync and self._crew.has_come():
            raise Invalid(f"worker {self.rank} of {self._name!r} has been here: take another name=, or another cluster")
        store = self._crew.store
        self._crew.until("worker 0 to make the model's table", lambda: self._is_there() or self._crew.first())
        if not self._is_there():
            self._create()
        self._check(store.tables()[self._name])
        self._flat.put(self._crew.worker.pull(self._name, slice(None), exact=True).result())
        self._crew.come()

    def _is_there(self) -> bool:
        return self._name in self._crew.store.tables()

    def _create(self) -> None:
        weights = self._flat.weights()
        with tempfile.NamedTemporaryFile(prefix="shoal-weights-", suffix=".f32") as file:
            file.write(weights.astype("<f4").data)
            file.flush()
            initial = Given(os.path.abspath(file.name), zlib.crc32(weights.astype("<f4").data), self._flat.about)
            ensure(self._crew.store, self._name, msgspec.structs.replace(self._spec, initial=initial))

    def _check(self, there: Any) -> None:
        """Check that the table's worker trains the same model in the same way."""
        theirs = there.initial.about if isinstance(there.initial, Given) else "no module"
        if difference := self._flat.difference(theirs):
            raise Invalid(
                f"the model differs between the workers ({difference}): build the same one in all of them, with "
                "torch.manual_seed before it if parameters are frozen"
            )
        for field in ("rows", "width", "update", "apply", "max_delay", "wire"):
            mine, other = getattr(self._spec, field), getattr(there, field, None)
            if mine != other:
                raise Invalid(
                    f"{field} differs between workers ({mine} here, {other} there): give all the same settings"
                )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients and pull new weights. Refuses gradients that are not finite."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._crew.check_here()
        self._check_unchanged()
        gradients = self._flat.gradients()
        try:
            self._flat.put(self._pushed(gradients))
        except BadValues:
            if (name := self._flat.blame(gradients)) is None:
                raise
            raise BadValues(
                f"the gradient of {name} is not finite (NaN or infinite) in step {self.steps + 1} of worker {self.rank}: "
                "nothing was sent, and the step is not counted; take a smaller lr, or clip the gradients"
            ) from None
        self.steps += 1
        return loss

    def _check_unchanged(self) -> None:
        if len(self.param_groups) != 1:
            raise Invalid("the optimizer got another group of parameters: distribute it when it has all in one")
        if different := changed(self._settings, self.param_groups[0]):
            raise Invalid(f"{different} when the model was distributed, and the servers go on with that: {_WITHOUT}")
        if name := self._flat.switched():
            raise Invalid(f"requires_grad of {name} was changed: set it before the model is distributed")

    def _pushed(self, gradients: Values) -> Values:
        weights: Values
        worker = self._crew.worker
        with _in_words(self.rank):
            if self._sync:
                return self._step_together(self._name, self.steps, gradients, worker)
            try:
                weights = worker.push_pull(self._name, slice(None), gradients).result()
            except Fenced:
                log.warning("worker %d was silent for too long: whether its last step counts is not known", self.rank)
                weights = worker.pull(self._name, slice(None)).result()
            return weights

    def _step_together(self, table: str, number: int, values: Values, kv: Any) -> Values:
        """Contribute ``values`` to step ``number``; returns the rows after it.

        The lowest living rank declares the slots of gone workers void.
        """

        def void(gone: list[int]) -> None:
            self._gone = gone
            if all(other in gone for other in range(self.rank)):
                slots = [(0, number * self.world + one) for one in gone if one != self.rank]
                voids.extend(kv.push(table, (), (), slot=slot, void=True) for slot in slots)

        voids: list[Any] = []
        task = kv.push_pull(table, slice(None), values, slot=(0, number * self.world + self.rank))
        if self._gone:
            void(self._gone)
        weights: Values = self._crew.wait(task, void)
        kv.wait(voids)
        return weights

    def average_buffers(self) -> None:
        self._crew.check_here()
        buffers = [one for one in self.model.buffers() if one.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([one.detach().to("cpu", torch.float32).reshape(-1) for one in buffers])
        table = f"{self._name}.buffers"
        apply = Step(slots=self.world, combine="mean")
        ensure(self._crew.store, table, Dense(rows=len(flat), update=Assign(), apply=apply, max_delay=0))
        with _in_words(self.rank):
            mean = torch.tensor(self._step_together(table, self._averaged, flat.numpy(), self._crew.store))
        self._averaged += 1
        with torch.no_grad():
            for one, piece in zip(buffers, torch.split(mean, [one.numel() for one in buffers]), strict=True):
                one.copy_(piece.view_as(one))

    def finish(self) -> None:
        self._crew.check_here()
        with _in_words(self.rank):
            self._crew.leave()
            self._flat.put(self._crew.store.pull(self._name, slice(None), exact=True).result())


@contextlib.contextmanager
def _in_words(rank: int) -> Iterator[None]:
    """An error of the store in the words of a PyTorch user."""
    try:
        yield
    except SegmentsLost as error:
        raise RunFailed(
            f"{error.server} is gone, and with it the only copy of its segments of the model: launch again, with "
            "--servers 2 --copies 2 or more: then training continues when one of them dies"
        ) from None
    except Fenced:
        raise RunFailed(
            f"worker {rank} was silent for too long, and the others have gone on without it: look at what held it up "
            "(no memory, a process that was stopped), and launch it again"
        ) from None


class ShardSampler(torch.utils.data.DistributedSampler[int]):
    """For ``DataLoader(data, sampler=...)``. Every iteration over it is the next epoch."""

    def __init__(self, data: Sized, rank: int, world: int, shuffle: bool = True, seed: int = 0) -> None:
        if len(data) < world:
            raise Invalid(f"{len(data)} rows for {world} workers: start fewer workers, or give them more rows")
        # torch adds the number of the epoch to the seed
        super().__init__(data, world, rank, shuffle, seed << 32)

    def __iter__(self) -> Iterator[int]:
        order: Iterator[int] = super().__iter__()
        self.epoch += 1
        return order
