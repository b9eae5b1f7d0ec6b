"""Pull, gradient, push: the parameter server of Li et al. (OSDI'14), in three forms.

    sync       one update per step of m slots; all slots of a step read the same weights
    bounded    every push counts at once; none is more than max_delay steps ahead of the slowest
    async      every push counts at once; no waiting

While a slot is computed, the weights of the next ``prefetch`` slots are already on their way. That
costs a step of staleness where pushes count at once, and nothing at all in sync, where a pull waits
for its step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from shoal.data.slots import Slot, SlotRows
from shoal.errors import BadValues, Invalid
from shoal.limits import ADMIT, SLOTS_PER_STEP
from shoal.nodes.server_strategy import ServerStrategy
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.strategy import register
from shoal.tables import TABLE, Apply, Each, Sparse, Step, Table, Update

if TYPE_CHECKING:
    from shoal.nodes.trainer import SlotStream

MAX_DELAY = 1 << 53  # steps; beyond that use strategy = "async"
_INFLIGHT = 8  # pushes of one worker that are not counted yet, where they count at once


@dataclass(slots=True, eq=False)
class InflightStep:
    slot: Slot
    local: SlotRows | None  # None: void
    pull: Task
    early_gradient: Task | None = None  # started before the previous slot was done


class ParameterServer(ServerStrategy, frozen=True, kw_only=True):
    """What the three have in common."""

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot, of the slots in a step
    prefetch: int = 1  # slots whose weights are asked for ahead
    admit: int = 0  # of a linear model: pushes (in sync: steps) before a feature gets a weight
    evict: bool = False  # remove weights that are 0 again, with their optimizer state

    def __post_init__(self) -> None:
        if not 0 <= self.prefetch <= 64:
            raise Invalid(f"strategy.prefetch={self.prefetch}: needs 0 to 64")
        if not 0 <= self.admit <= ADMIT:
            raise Invalid(f"strategy.admit={self.admit}: needs 0 (every feature has a weight at once) to {ADMIT}")
        bounds = (("max_delay", 0, MAX_DELAY), ("slots_per_step", 1, SLOTS_PER_STEP), ("damp_above", 1, MAX_DELAY))
        for name, least, most in bounds:
            value = getattr(self, name, None)
            if value not in (None, "auto") and not least <= value <= most:
                raise Invalid(f"strategy.{name}={value}: needs {least} to {most:,}")

    def table(self, rows: int, update: Update, slots_per_pass: int) -> Table:
        if self.admit < 2 and not self.evict:
            return super().table(rows, update, slots_per_pass)
        apply, max_delay = self.consistency(slots_per_pass)
        return Sparse(keys=rows, update=update, apply=apply, max_delay=max_delay, admit=self.admit, evict=self.evict)

    async def run(self, stream: SlotStream) -> None:
        begun: deque[InflightStep] = deque()  # slots whose weights are being pulled, in order
        pushed: deque[Task] = deque()
        clock: int | None = None  # our steps, once we know where we were entered
        while True:
            room = self.prefetch if self.in_steps or clock is not None else 0
            while len(begun) <= room and (slot := stream.next()) is not None:
                begun.append(self._pull(stream, slot, None if clock is None else clock + len(begun)))
            if begun:
                one = begun.popleft()
                weights = await one.pull
                stream.waited(one.pull)
                clock = stream.client.session.clock if clock is None else clock
                push = await self._push(stream, one, weights, clock + 1 + len(begun), begun[0] if begun else None)
                if push is not None:
                    clock = None if one.local is None else clock + 1
                    pushed.append(push.pull)
                    if push.local is not None:
                        begun.append(push)
                # A slot of a step is counted when the step is whole; a push that looks ahead is
                # done when that pull is, which may wait for all of ours that are begun.
                await settle(stream, pushed, SLOTS_PER_STEP if self.in_steps else max(_INFLIGHT, self.prefetch + 2))
            elif stream.over:
                break
            else:
                clock = None
                if not self.in_steps:
                    await settle(stream, pushed)
                    await stream.client.park()  # others do not wait for an idle worker
                more = stream.more()
                await more
                stream.waited(more)
        await settle(stream, pushed)
        if not self.in_steps:  # in steps no worker waits, and another stream may run
            await stream.client.park()

    def _pull(self, stream: SlotStream, slot: Slot, clock: int | None) -> InflightStep:
        if stream.is_void(slot):
            nothing = Task("nothing to pull")
            nothing.finish()
            return InflightStep(slot, None, nothing)
        local = stream.local(slot)
        # Used when the slots before it are pushed: that is the clock it has to be good for.
        when: dict[str, Any] = {"slot": slot} if self.in_steps else {"clock": clock}
        return InflightStep(slot, local, stream.client.pull(TABLE, local.listed, **when))

    async def _push(
        self, stream: SlotStream, one: InflightStep, weights: Any, clock: int, second: InflightStep | None
    ) -> InflightStep | None:
        """Push the gradient of a slot; where it can, the same message pulls for the next slot.

        ``second`` is the slot that is computed next: it need not wait until this one is pushed.
        """
        client, slot, local = stream.client, one.slot, one.local
        if local is None:
            void = client.push(TABLE, (), (), slot=slot, void=True)
            stream.push(slot, None, 0.0, void)
            return InflightStep(slot, None, void)
        if self.in_steps and is_newer(client, one.pull, one.slot):
            if stream.give_back(slot):
                return None  # another one pushed it, and some servers have that already
            await stream.report_newer()
        found = one.early_gradient or stream.gradient(local, weights, self.combine == "mean")
        if second is not None:
            second.pull.then(partial(self._begin_early, stream, second, found))
        try:
            loss, gradient = await found
        except BadValues as error:
            stream.refuse(slot, str(error))
            return None
        client = stream.client  # not in the name of another life, if this one ended meanwhile
        following = None if self.in_steps else stream.next()
        coming = None if following is None or stream.is_void(following) else stream.local(following)
        if coming is not None and not client.may_look_ahead(TABLE, local.listed, coming.listed):
            coming = None
        ahead: dict[str, Any] = {} if coming is None else {"ahead": coming.listed, "clock": clock}
        try:
            push = client.push(TABLE, local.listed, gradient, slot=slot, of=one.pull, **ahead)
        except BadValues as error:
            stream.put_back(following)
            stream.refuse(slot, str(error))
            return None
        if coming is None:
            stream.put_back(following)
        stream.push(slot, local, loss, push)
        return InflightStep(slot if following is None or coming is None else following, coming, push)

    def _begin_early(self, stream: SlotStream, one: InflightStep, before: Task, pull: Task) -> None:
        """Compute the next gradient early: its weights came while the slot before is computed."""
        if before.done or pull.error is not None or one.local is None:
            return
        if not (self.in_steps and is_newer(stream.client, one.pull, one.slot)):
            one.early_gradient = stream.early(one.local, pull.value, self.combine == "mean")


@register
class Sync(ParameterServer, frozen=True, tag="sync", kw_only=True):
    """One update per step of m slots; max_delay=0: the same bits with any number of nodes."""

    slots_per_step: int = 8  # never taken from the number of workers
    max_delay: int = 0  # steps that the weights of a slot may be behind
    second_copies: bool = False  # slots of a straggler are dealt to another worker, too

    @property
    def in_steps(self) -> bool:
        return True

    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        return Step(slots=self.slots_per_step, combine=self.combine, slots_per_pass=slots_per_pass), self.max_delay


@register
class Bounded(ParameterServer, frozen=True, tag="bounded", kw_only=True):
    """Nobody runs more than max_delay steps ahead of the slowest worker."""

    max_delay: int | Literal["auto"] = 4  # auto: the smallest at which workers hardly wait
    damp_above: int | None = None  # a gradient twice as stale as this counts half, and so on

    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        return Each(self.damp_above), 0 if self.max_delay == "auto" else self.max_delay


@register
class Async(ParameterServer, frozen=True, tag="async", kw_only=True):
    """Nobody waits."""

    damp_above: int | None = None  # as in Bounded

    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        return Each(self.damp_above), None


def is_newer(client: Client, pull: Task, slot: Slot) -> bool:
    """Whether some servers, not all, had taken the slot's step when its weights were read."""
    apply = client.session.layout(TABLE).spec.apply
    assert isinstance(apply, Step)
    step = apply.step_of(slot)
    taken = [version > step for found in pull.versions.values() for version in found]
    return any(taken) and not all(taken)  # all: it was counted before


async def settle(stream: SlotStream, pushed: deque[Task], most: int = 0) -> None:
    """Await pushes so that at most so many are open; a failed one ends this incarnation."""
    while pushed and (len(pushed) > most or pushed[0].done):
        task = pushed.popleft()
        await task
        stream.waited(task)
