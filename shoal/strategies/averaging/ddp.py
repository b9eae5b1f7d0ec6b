"""PyTorch's DistributedDataParallel around a module: gradients are summed over gloo while they are computed (Li et al., 2020).

Its hooks listen to ``backward``, bucket by bucket, so sums are under way before the gradient is whole. It takes the mean over all
ranks; here it is made a sum again, since in the last step of a pass not every rank may have a slot. All else is ours: weights begin
the same everywhere by their seed, and buffers are reset for every slot.

``backward`` waits inside PyTorch, where no signal is heard and nobody looks at who has ended: so a thread of its own runs it. What
the module does wrong is its own error, at whichever rank; only what gloo says is a loss.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.models.torch_learner import ModuleLearner
from shoal.strategies.averaging.collective import Collective
from shoal.strategies.averaging.gloo import GlooCollective, is_of_gloo


class Ddp:
    """One rank's module, listened to."""

    def __init__(self, learner: Learner, group: Collective) -> None:
        assert isinstance(learner, ModuleLearner) and isinstance(group, GlooCollective)
        self._learner, self._group = learner, group
        sync = "forward_sync_buffers"
        if sync not in inspect.signature(DistributedDataParallel).parameters:
            sync = "broadcast_buffers"  # its former name
        settings: dict[str, Any] = {sync: False, "init_sync": False, "find_unused_parameters": True}
        self._wrapped = DistributedDataParallel(learner.module, process_group=_whole(group), **settings)

    def gradient(self, local: Any, weights: Floats, mean: bool, share: float = 1.0) -> tuple[float, Floats]:
        """The sum of the losses of this rank's slot, and the sum over all ranks of their gradients."""
        loss, found = self._learner.gradient(local, weights, mean, self, share)
        moved = 2 * found.nbytes * (self._group.size - 1) // self._group.size
        self._group.sent += moved
        self._group.received += moved
        return loss, found * found.dtype.type(self._group.size)

    def __call__(self, inputs: torch.Tensor) -> Any:
        return self._wrapped(inputs)

    def backward(self, loss: torch.Tensor) -> None:
        threads = torch.get_num_threads()

        def run() -> None:
            torch.set_num_threads(threads)  # by the thread that computes
            loss.backward()

        try:
            self._group.aside(run)
        except RuntimeError as error:
            if not is_of_gloo(error):
                raise
            self._group.lost(str(error))


def _whole(group: GlooCollective) -> Any:
    """gloo as what DistributedDataParallel takes; nothing of the process is registered or changed."""
    distributed = torch.distributed
    found = distributed.ProcessGroup(distributed.HashStore(), group.rank, group.size)
    kind = distributed.ProcessGroup.BackendType.GLOO
    found._set_default_backend(kind)
    found._register_backend(torch.device("cpu"), kind, group.process_group)
    return found
