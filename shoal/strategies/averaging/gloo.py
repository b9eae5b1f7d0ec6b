"""Sums over gloo (torch.distributed), on the loopback of this machine.

Ranks meet by a file in a folder that is this run's alone. A rank that ends breaks the sums of all,
and ``RankLost`` says who it was; the others wait until rank 0 ends them. A wait inside gloo sees no
signals and no stopped ranks: so the caller checks for both while it waits.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import RankLost, StartFailed
from shoal.launch.cluster import START_WITHIN
from shoal.models import needs_torch
from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.strategies.averaging.collective import Collective

if TYPE_CHECKING:
    import torch

_ROUND = timedelta(days=7)  # gloo's own timeout: this module checks the ranks instead
_SHORT, _LONG = 2e-5, 1e-3  # seconds between two checks whether a sum is done
_LOOK = 0.05  # seconds between two checks of the ranks
_LAST_WORDS = 2.0  # seconds until the forkserver reports an end that gloo has seen
_ENDED_WITHIN = 60.0  # seconds: rank 0 has ended this process by then, or never will


class GlooCollective:
    """One rank's side. Rank 0's ``check`` runs while a sum is awaited, and may raise RankLost."""

    def __init__(
        self, folder: Path, rank: int, size: int, check: Callable[[float], None] = lambda waited: None
    ) -> None:
        self.rank, self.size = rank, size
        self.sent = self.received = 0
        self._check = check
        self.process_group: Any = None
        self._torch = needs_torch("strategy.over='gloo'")
        distributed = self._torch.distributed
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout, options._threads = _ROUND, 1
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._current_call: Future[Any] | None = None
        threading.Thread(target=_serve, args=(self._calls,), name="shoal-aside", daemon=True).start()

        def meet() -> Any:
            store = distributed.FileStore(str(folder / "meeting"), size)
            store.set_timeout(timedelta(seconds=START_WITHIN))
            return distributed.ProcessGroupGloo(store, rank, size, options)

        try:
            self.process_group = self.run_in_thread(meet)
        except RankLost:
            raise
        except Exception as error:
            raise StartFailed(f"the ranks did not meet over gloo: {error}") from None

    def run_in_thread(self, call: Callable[[], Any]) -> Any:
        """Call it on one thread, always the same, and check the ranks meanwhile."""
        self._current_call = one = Future[Any]()
        self._calls.put((one, call))
        began = time.monotonic()
        while not wait([one], _LOOK).done:
            self._check(time.monotonic() - began)
        self._current_call = None
        return one.result()

    def total(self, vector: Floats) -> Floats:
        tensor = self._torch.from_numpy(vector)
        try:
            work = self.process_group.allreduce([tensor])
            self._wait(work)
            work.wait()
        except RuntimeError as error:
            self.lost(str(error))
        self.count(vector.nbytes)
        return vector

    def close(self) -> None:
        """The others have ended, or will; a sum that waits for them fails."""
        if self._current_call is not None:
            wait([self._current_call], _LAST_WORDS)
        # PyTorch's destructor waits for the current sum, sometimes for ever: use a thread.
        last, self.process_group = [self.process_group], None
        thread = threading.Thread(target=last.clear, name="shoal-parting", daemon=True)
        thread.start()
        thread.join(_LAST_WORDS)

    def _wait(self, work: Any) -> None:
        began, pause, look = time.monotonic(), _SHORT, _LOOK
        while not work.is_completed():
            threading.Event().wait(pause)
            pause = min(2 * pause, _LONG)
            if (waited := time.monotonic() - began) >= look:
                look = waited + _LOOK
                self._check(waited)

    def lost(self, error: str) -> None:
        """gloo has failed: raise RankLost, with the name of the rank if it is known."""
        if self.rank:
            threading.Event().wait(_ENDED_WITHIN)  # rank 0 notices it, too, and ends this process
        else:
            until = time.monotonic() + _LAST_WORDS
            while time.monotonic() < until:
                self._check(0.0)
                threading.Event().wait(_LOOK)
        raise RankLost("another rank", f"gloo says: {' '.join(error.split())[:200]}")

    def count(self, moved: int) -> None:
        moved = 2 * moved * (self.size - 1) // self.size
        self.sent += moved
        self.received += moved


def _serve(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]]) -> None:
    while True:
        one, call = calls.get()
        try:
            one.set_result(call())
        except BaseException as error:  # raised where it was called
            one.set_exception(error)
        del one, call  # they hold arrays as large as the model


class Ddp:
    """DistributedDataParallel: sums gradients while they are computed (Li et al., 2020).

    It takes the mean over all ranks; here that becomes a sum again, since in the last step of an
    epoch not every rank may have a slot. ``backward`` waits inside PyTorch, where no signal is
    seen, so another thread runs it. An error of the module stays its own; only what gloo raises is
    a loss.
    """

    def __init__(self, learner: Learner, group: Collective) -> None:
        from torch.nn.parallel import DistributedDataParallel

        from shoal.models.torch_learner import ModuleLearner

        assert isinstance(learner, ModuleLearner) and isinstance(group, GlooCollective)
        self._learner, self._group = learner, group
        sync = "forward_sync_buffers"
        if sync not in inspect.signature(DistributedDataParallel).parameters:
            sync = "broadcast_buffers"  # in older versions
        settings: dict[str, Any] = {sync: False, "init_sync": False, "find_unused_parameters": True}
        self._wrapped = DistributedDataParallel(learner.module, process_group=_whole(group), **settings)

    def gradient(self, local: Any, weights: Floats, mean: bool, share: float = 1.0) -> tuple[float, Floats]:
        """The sum of the losses of this rank's slot, and the gradient summed over all ranks."""
        loss, found = self._learner.gradient(local, weights, mean, self, share)
        self._group.count(found.nbytes)
        return loss, found * found.dtype.type(self._group.size)

    def __call__(self, inputs: torch.Tensor) -> Any:
        return self._wrapped(inputs)

    def backward(self, loss: torch.Tensor) -> None:
        import torch

        threads = torch.get_num_threads()

        def run() -> None:
            torch.set_num_threads(threads)  # by the thread that computes
            loss.backward()

        try:
            self._group.run_in_thread(run)
        except RuntimeError as error:
            if "gloo" not in str(error).lower():  # the module's own: gloo's errors name its files
                raise
            self._group.lost(str(error))


def _whole(group: GlooCollective) -> Any:
    """The group as DistributedDataParallel takes it; nothing global is registered or changed."""
    import torch

    distributed = torch.distributed
    found = distributed.ProcessGroup(distributed.HashStore(), group.rank, group.size)
    kind = distributed.ProcessGroup.BackendType.GLOO
    found._set_default_backend(kind)
    found._register_backend(torch.device("cpu"), kind, group.process_group)
    return found
