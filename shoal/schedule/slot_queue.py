"""Who computes which slot: dealt, counted, given back, dealt again.

A slot is one minibatch of one epoch, here a number counted over all epochs. It is dealt until it is
counted; if two computed it the ledgers count one. A slot whose gradient was refused twice, or whose
workers died three times, is dealt *void*: it is pushed empty, so that no worker waits for it.

    each mode    a worker gets slots whose rows it has cached, then free ones, then another's
    step mode    the slots of coming steps go round among the workers: all are in the same step

Nothing is dealt past ``limit`` (the end), ``barrier`` (an evaluation) or, in step mode, more than
``AHEAD`` steps past the oldest that is not whole. Pure bookkeeping: no messages, no time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.data.slots import SlotOrder
from shoal.schedule.intervals import Intervals, Runs, runs, spread
from shoal.tables import Step

AHEAD = 48  # steps: servers hold a few more than that
MOST = 4_096  # slots in one deal, whatever is asked for
REFUSALS, DEATHS = 2, 3  # after so many of them a slot is void
AGAIN = 16  # slots that come again are dealt unasked, too: other workers may wait for them
CLAIMED = 1 << 16  # slots that one report may name of which nobody knows who had them
IN_HAND = 4  # of a worker that died, so many slots may have been what killed it


class SlotQueue:
    """All the slots of a run."""

    def __init__(self, order: SlotOrder, limit: int, step: Step | None = None) -> None:
        self.order, self.limit, self.step = order, limit, step
        self.per_pass = order.per_pass
        self.barrier: int | None = None
        self.done = 0  # slots counted
        self.voids: dict[int, str] = {}
        self.next = 0  # how many were ever dealt: in step mode in order, in each mode by epoch
        self.lowest = 0  # the first slot that is not counted
        self._passes: dict[int, EpochSlots] = {}  # those that are open
        self._whole = 0  # passes counted whole
        self._out: dict[int, dict[int, None]] = {}  # by worker: what it holds, in order
        self._pending: dict[int, deque[int]] = {}  # step mode: dealt, not yet asked for
        self._names: dict[int, str] = {}
        self._going: set[int] = set()  # of these: they ask for nothing more
        self._again: deque[int] = deque()
        self._refusals: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()
        self._had: dict[int, str] = {}  # group of rows -> who computed it last
        self._taken_up = False  # from a former life, whose deals are not known

    @property
    def finished(self) -> bool:
        return self.done >= self.limit

    @property
    def steps(self) -> int:
        """Complete steps."""
        if self.step is None:
            return self.done
        return self.step_of(self.lowest) if self.lowest < self.limit else self.steps_until(self.limit)

    def has(self, worker: int) -> int:
        """How many slots it was assigned that are not counted."""
        return len(self._out.get(worker, ()))

    def among(self, worker: int, found: Iterable[tuple[int, int]]) -> list[int]:
        """Those of its slots that are in these runs, in whatever order the runs are."""
        wanted = Intervals(found)
        return [slot for slot in self._out.get(worker, ()) if slot in wanted]

    def rows(self, slots: Iterable[int]) -> int:
        """The rows of these slots, without void ones."""
        return self._rows_of(slot for slot in slots if slot not in self.voids)

    @property
    def rows_counted(self) -> int:
        """How many rows are in all slots that are counted, but for the void ones."""
        found = self._whole * self.order.span(self.per_pass - 1)[1]
        found += sum(self.order.rows_in(one.group[one.counted]) for one in self._passes.values())
        return found - self._rows_of(slot for slot in self.voids if self.is_counted(slot))

    def _rows_of(self, slots: Iterable[int]) -> int:
        spans = (self.order.span(self.order.content(*divmod(slot, self.per_pass))) for slot in slots)
        return sum(stop - first for first, stop in spans)

    def counted(self) -> Runs:
        """All counted slots, as intervals."""
        found = Intervals([(0, self._whole * self.per_pass)])
        for number in sorted(self._passes):
            one = self._passes[number]
            found.add(runs((one.first + np.flatnonzero(one.counted)).tolist()))
        return found.runs

    def blame(self) -> tuple[dict[int, int], dict[int, int]]:
        """Refusals and deaths of slots that are not counted."""
        refused = {slot: times for slot, times in self._refusals.items() if not self.is_counted(slot)}
        return refused, {slot: times for slot, times in self._deaths.items() if not self.is_counted(slot)}

    def step_of(self, slot: int) -> int:
        assert self.step is not None
        return self.step.step_of(divmod(slot, self.per_pass))

    def steps_until(self, slot: int) -> int:
        """How many steps all slots before this one make."""
        if self.step is None:
            return slot
        return 0 if slot == 0 else self.step_of(slot - 1) + 1

    def slots_until(self, steps: int) -> int:
        """How many slots so many steps have."""
        if self.step is None:
            return steps
        per_pass = self.step.steps_per_pass() or 1
        passes, rest = divmod(steps, per_pass)
        return passes * self.per_pass + min(rest * self.step.slots, self.per_pass)

    def enter(self, worker: int, name: str) -> None:
        if worker not in self._names:
            self._names[worker], self._out[worker], self._pending[worker] = name, {}, deque()

    def goes(self, worker: int) -> None:
        """It finishes what it has; others get what it was meant to have and did not ask for."""
        if worker in self._names and worker not in self._going:
            self._going.add(worker)
            pending, self._pending[worker] = self._pending[worker], deque()
            self._return(list(pending))

    def leave(self, worker: int, died: bool) -> int:
        """A worker is gone: what it had is dealt again. How many slots that is."""
        if worker not in self._names:
            return 0
        name = self._names.pop(worker)
        self._going.discard(worker)
        out, pending = list(self._out.pop(worker)), self._pending.pop(worker)
        if died:
            for slot in out[:IN_HAND]:
                self._deaths[slot] += 1
                if self._deaths[slot] >= DEATHS:
                    self.voids.setdefault(slot, f"{DEATHS} workers died while they had it, {name} the last")
        self._return([*out, *pending])
        return len(out)

    def give_back(self, worker: int, slots: Iterable[int]) -> None:
        out = self._out.get(worker, {})
        self._return([slot for slot in slots if out.pop(slot, 0) is None])

    def keep_only(self, worker: int, found: Iterable[tuple[int, int]]) -> int:
        """It has only these: its other slots are dealt again. How many slots that is."""
        held = Intervals(found)
        missing = [slot for slot in self._out.get(worker, ()) if slot not in held]
        self.give_back(worker, missing)
        return len(missing)

    def refuse(self, worker: int, slot: int, why: str) -> None:
        """The gradient of this slot cannot be pushed."""
        if self._out.get(worker, {}).pop(slot, 0) is None:
            self._refusals[slot] += 1
            if self._refusals[slot] >= REFUSALS:
                self.voids.setdefault(slot, why)
            self._return([slot])

    def _return(self, slots: list[int]) -> None:
        if not slots:
            return
        elsewhere = {slot for out in self._out.values() for slot in out}
        back = [slot for slot in slots if not self.is_counted(slot) and slot not in elsewhere]
        self._again = deque(sorted({*self._again, *back}))

    def held(self, worker: int) -> list[int]:
        """All slots that are meant for it and not counted, in order."""
        mine = (*self._out.get(worker, ()), *self._pending.get(worker, ()))
        return sorted(slot for slot in mine if not self.is_counted(slot))

    def lend(self, worker: int, slots: Iterable[int]) -> None:
        """It computes these, too; the workers that have them keep them."""
        self._out[worker].update(dict.fromkeys(slots))

    def late(self, worker: int) -> list[int]:
        """Slots that it has and that another one was faster with: it need not go on with them."""
        out = self._out.get(worker, {})
        slots = [slot for slot in out if self.is_counted(slot)]
        for slot in slots:
            del out[slot]
        return slots

    def deal(self, worker: int, most: int) -> tuple[list[int], list[int]]:
        """Slots for a worker, at most so many: those that come again, and new ones."""
        most = min(most, MOST)
        if self._taken_up and self.step is None:
            self._leave_out()
        again = self._come_again(worker, max(most, AGAIN))
        if self._taken_up and self.step is not None:
            again = sorted([*again, *self._oldest(worker)])
        new = self._new(worker, most - len(again)) if most > len(again) else []
        self._out[worker].update(dict.fromkeys([*again, *new]))
        return again, new

    def _leave_out(self) -> None:
        held = self._uncounted()
        again = [slot for slot in self._again if slot not in held and not self.is_counted(slot)]
        self._again = deque(again[: max(0, self.limit - self.done - len(held))])

    def _uncounted(self) -> set[int]:
        return {slot for out in self._out.values() for slot in out if not self.is_counted(slot)}

    def _come_again(self, worker: int, most: int) -> list[int]:
        found: list[int] = []
        others: list[int] = []  # whose rows are with somebody else
        most, end = min(most, self._room()), self.barrier if self.step is not None else None
        while self._again and len(found) < most and (end is None or self._again[0] < end):
            slot = self._again.popleft()
            if self.is_counted(slot):
                continue
            stays = self.order.turns < self.per_pass and self._in_turn_is(slot) != worker
            (others if stays else found).append(slot)
        self._again.extendleft(reversed(others))
        return found

    def _room(self) -> int:
        """Each mode: how many slots may come again before the barrier.

        A pass is dealt in any order: a slot that was dealt may lie past the barrier, and if it did
        not come again, nothing would ever move the barrier.
        """
        if self.barrier is None or self.step is not None or not self._again:
            return MOST
        return self.barrier - self.done - len(self._uncounted())

    def _new(self, worker: int, most: int) -> list[int]:
        end = self.limit if self.barrier is None else min(self.limit, self.barrier)
        if self.step is not None:
            return self._in_turn(worker, most, end)
        # The end is dealt in ever smaller pieces, so that all are done at about the same time.
        most = min(most, max(1, (end - self.next) // (2 * len(self._names))))
        found: list[int] = []
        while len(found) < most and self.next < end:
            if self.next // self.per_pass < self._whole:  # all of it was dealt before a restart
                self.next = self._whole * self.per_pass
                continue
            one = self._open(self.next // self.per_pass)
            places = one.take(self._names[worker], min(most - len(found), end - self.next))
            found += [one.first + place for place in places if not one.counted[place]]
            self.next += len(places)
        return found

    def _in_turn(self, worker: int, most: int, end: int) -> list[int]:
        assert self.step is not None
        mine = self._pending[worker]
        while len(mine) < most and self.next < end and self.step_of(self.next) < self.steps + AHEAD:
            self._hand_round()
        return [mine.popleft() for _ in range(min(most, len(mine)))]

    def _hand_round(self) -> None:
        if not self.is_counted(self.next):
            self._open(self.next // self.per_pass)
            self._pending[self._in_turn_is(self.next)].append(self.next)
        self.next += 1

    def _in_turn_is(self, slot: int) -> int:
        workers = [one for one in sorted(self._names) if one not in self._going]
        return workers[slot % self.per_pass % self.order.turns % len(workers)]

    def _oldest(self, worker: int) -> list[int]:
        """Slots of the oldest step, asked for or not.

        A worker full of an earlier process's slots may wait for one that nobody has.
        """
        end, mine = self.limit if self.barrier is None else min(self.limit, self.barrier), self._pending[worker]
        while self.next < end and self.step_of(self.next) <= self.steps:
            self._hand_round()
        found = []
        while mine and self.step_of(mine[0]) <= self.steps:
            found.append(mine.popleft())
        return found

    def stop(self) -> None:
        """Deal nothing more than it takes to make what is dealt whole."""
        if self.step is not None:
            self.limit = min(self.limit, self.slots_until(self.steps_until(self.next)))
            return
        # Not all that ``next`` counts need be dealt where a former life dealt before: a pass is
        # taken up as a whole.
        open_slots = self._uncounted() | {slot for slot in self._again if not self.is_counted(slot)}
        self.limit = min(self.limit, self.done + len(open_slots))
        self.next = max(self.next, self.limit)

    def _open(self, number: int) -> EpochSlots:
        one = self._passes.get(number)
        if one is None:
            group = self.order.contents(number)
            size, counted = self.per_pass, np.zeros(self.per_pass, np.bool_)
            one = self._passes[number] = EpochSlots(number * size, group, counted, size, undealt=size)
            if self.step is None:
                for place, rows in enumerate(group.tolist()):
                    had = self._had.get(rows)
                    if had in self._names.values():
                        one.kept.setdefault(had, deque()).append(place)  # type: ignore[arg-type]
                    else:
                        one.free.append(place)
        return one

    def count(self, worker: int, slots: Iterable[int]) -> list[int]:
        """These are counted; the ones that were not before."""
        out = self._out.get(worker, {})
        new = [slot for slot in slots if out.pop(slot, 0) is None and self._mark(slot, self._names[worker])]
        self._move_up()
        return new

    def claim(self, worker: int, found: Iterable[tuple[int, int]]) -> list[int]:
        """Count slots that were dealt before a restart; in step mode, earlier ones come again."""
        new = [slot for slot in spread(found, CLAIMED) if slot < self._end and self._mark(slot, self._names[worker])]
        self._was_dealt(new)
        self._move_up()
        return new

    def adopt(self, worker: int, found: Iterable[tuple[int, int]]) -> None:
        """A worker holds slots that were dealt before a restart: they stay its own."""
        slots = [slot for slot in spread(found, CLAIMED) if slot < self._end and not self.is_counted(slot)]
        self._was_dealt(slots)
        here = set(slots)
        self._again = deque(slot for slot in self._again if slot not in here)
        self._out[worker].update(dict.fromkeys(slots))

    @property
    def _end(self) -> int:
        """No slot from here on can have been dealt."""
        return self.limit if self.step is not None else -(-self.limit // self.per_pass) * self.per_pass

    def _was_dealt(self, slots: list[int]) -> None:
        """Deal these to no other worker. In step mode, slots before them come again."""
        if self.step is None:
            for slot in sorted(slots):
                self._take_out(*divmod(slot, self.per_pass))
        elif slots and max(slots) >= self.next:
            first, self.next = self.next, max(slots) + 1
            for number in range(first // self.per_pass, (self.next - 1) // self.per_pass + 1):
                self._open(number)
            self._return(list(range(first, self.next)))

    def _take_out(self, number: int, place: int) -> None:
        """Each mode: this slot is dealt, and all earlier epochs; the rest of those comes again."""
        while self._whole <= self.next // self.per_pass < number:
            one = self._open(self.next // self.per_pass)
            self._again = deque(sorted({*self._again, *(one.first + left for left in one.rest())}))
            self.next = one.first + self.per_pass
        if number >= self._whole and number == self.next // self.per_pass and self._open(number).remove(place):
            self.next += 1

    def resume(
        self,
        counted: Iterable[int],
        dealt: int | None = None,
        refusals: Mapping[int, int] | None = None,
        deaths: Mapping[int, int] | None = None,
    ) -> None:
        """Continue a run that somebody else dealt: what is not counted comes again.

        Each mode: of the epochs that were begun, up to the limit. Step mode: up to the last that is
        counted, or to ``dealt``: workers hold slots of an earlier process up to there.
        """
        self._taken_up = dealt is not None
        self._refusals.update(refusals or {})
        self._deaths.update(deaths or {})
        slots = sorted(set(counted))
        self._whole = sum(1 for at in range(self.per_pass, len(slots) + 1, self.per_pass) if slots[at - 1] == at - 1)
        self.done = self._whole * self.per_pass
        for slot in slots[self.done :]:
            self._mark(slot, "")
        last = max(self._passes, default=self._whole - 1)
        if self.step is not None:
            reached = slots[-1] + 1 if slots else 0
            self.limit = max(self.limit, reached)  # a lower one came too late: it ends where it is
            self.next = min(self.limit, max(dealt or 0, reached))
            last = max(last, (self.next - 1) // self.per_pass)
        for number in range(self._whole, last + 1):
            self._open(number)  # also those without a counted slot: a later one was begun
        missing: list[int] = []
        for one in (self._passes[number] for number in sorted(self._passes)):
            missing += (one.first + np.flatnonzero(~one.counted)).tolist()
            one.undealt = 0
        if self.step is None:
            self.next = (last + 1) * self.per_pass
            self._again = deque(missing[: max(0, self.limit - self.done)])
        else:
            self._again = deque(slot for slot in missing if slot < self.next)
        self.lowest = self._whole * self.per_pass
        self._move_up()

    def _move_up(self) -> None:
        while self.is_counted(self.lowest):
            self.lowest += 1

    def _mark(self, slot: int, name: str) -> bool:
        """Count one slot; False if it was before."""
        if self.is_counted(slot):
            return False
        number, place = divmod(slot, self.per_pass)
        one = self._open(number)
        one.counted[place] = True
        one.left -= 1
        self.done += 1
        self._had[int(one.group[place])] = name
        while self._whole in self._passes and not self._passes[self._whole].left:
            del self._passes[self._whole]
            self._whole += 1
        return True

    def is_counted(self, slot: int) -> bool:
        number, place = divmod(slot, self.per_pass)
        return number < self._whole or (number in self._passes and bool(self._passes[number].counted[place]))


@dataclass(slots=True)
class EpochSlots:
    """One pass that is open: what of it is dealt and what is counted."""

    first: int  # slot
    group: npt.NDArray[np.int64]  # of rows, by place
    counted: npt.NDArray[np.bool_]
    left: int  # to be counted
    free: deque[int] = field(default_factory=deque)  # places that nobody had before
    kept: dict[str, deque[int]] = field(default_factory=dict)  # places by who had their rows before
    undealt: int = 0

    def take(self, worker: str, most: int) -> list[int]:
        """Places for this worker, at most so many."""
        taken: list[int] = []
        while len(taken) < most and self.undealt:
            mine = self.kept.get(worker)
            if mine:
                taken.append(mine.popleft())
            elif self.free:
                taken.append(self.free.popleft())
            else:
                taken.append(max(self.kept.values(), key=len).pop())
            self.undealt -= 1
        return taken

    def remove(self, place: int) -> bool:
        """Somebody has this place already; False if it was dealt here."""
        for places in (self.free, *self.kept.values()):
            if place in places:
                places.remove(place)
                self.undealt -= 1
                return True
        return False

    def rest(self) -> list[int]:
        """All places that are neither dealt nor counted: from here on they are dealt."""
        found = [place for places in (self.free, *self.kept.values()) for place in places if not self.counted[place]]
        self.free.clear()
        self.kept.clear()
        self.undealt = 0
        return found
