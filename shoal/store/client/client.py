"""The calls that a user, a worker or an evaluator makes to the store.

A call is checked and prepared where it is made (keys sorted, repeats added up), so nothing invalid
is sent. It becomes an operation with a ``Task``; the dispatcher starts it in the loop. One thread
at a time may make calls. A *worker* has a clock. Its first pull of a table enters it there. Each
push to a table with ``apply=Each()`` ends one step, unless the push names its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Fenced, Invalid
from shoal.filters import are_known
from shoal.keys import KeyList, KeyRange, Keys, KeyValues, add_up, as_hashed, as_keys, as_range, as_values, mixed, tidy
from shoal.store.client.dispatch import Dispatcher
from shoal.store.client.filtering import checked_chain, key_list
from shoal.store.client.operation import (
    Admin,
    ParkOperation,
    PullOperation,
    PushOperation,
    StatusOperation,
    call_operation,
    check_span,
)
from shoal.store.client.session import Session
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.store.query import Question
from shoal.store.table.update import check_pushed
from shoal.tables import Each, Sparse, Step, Table, checked, whole
from shoal.wire import messages as m
from shoal.wire.effects import Effect
from shoal.wire.half_precision import shortened, too_large
from shoal.wire.messages.groups import Allow, Dissolve, GroupLimits, dealer
from shoal.wire.messages.groups import whole as in_full

Slot = tuple[int, int]


class Client:
    """One client, without a loop: a session, and a dispatcher that carries its operations out."""

    def __init__(self, name: str, role: str = "client", coordinator: str = "coordinator", seed: int = 0) -> None:
        self.session = Session(name, role, coordinator)
        self.dispatcher = Dispatcher(self.session, seed)
        # The node (``Worker``) calls these, bound here to save a call per message: ``submit``
        # starts queued operations, ``handle`` takes an answer, ``tick`` resends. When one of them
        # finishes a task, the node resumes the coroutine that awaits it (``Worker._resume``).
        self.submit, self.handle, self.tick = self.dispatcher.submit, self.dispatcher.handle, self.dispatcher.tick
        self.fail_all = self.dispatcher.fail_all

    def take_view(self, now: int, view: m.View, incarnation: int) -> list[Effect]:
        self.session.take_view(view, incarnation)
        return self.dispatcher.view_changed(now)

    def fenced(self) -> None:
        """This incarnation is over; the next one starts from nothing."""
        # Operations in flight may or may not be counted.
        self.dispatcher.fail_all(Fenced(self.session.name, self.session.incarnation))
        self.session.reset()

    def push(
        self,
        table: str,
        keys: Any,
        values: Any,
        *,
        slot: Slot | None = None,
        step: int | None = None,
        of: Task | None = None,
        void: bool = False,
        after: Task | Sequence[Task] = (),
        pull: bool = False,
        ahead: KeyList | KeyRange | None = None,
        clock: int | None = None,
    ) -> Task:
        """Count these values, once. ``of`` names the pull they were computed from, if not the last.

        A worker's push ends its next step, or the one it names (0: none). With ``pull`` the new
        rows of these keys come back, with ``ahead`` those of others, as from a pull at ``clock``.
        """
        layout = self.session.layout(table)
        spec = layout.spec
        slot = None if slot is None else _slot(slot)
        step = None if step is None else whole("step", step)
        clock = None if clock is None else whole("clock", clock)
        if isinstance(spec.apply, Step):
            if slot is None:
                raise Invalid(f"table {table!r} is updated in steps: name the slot, push(..., slot=(epoch, number))")
            if step is not None:
                raise Invalid(f"table {table!r} is updated in steps: its steps follow from the slots; leave step out")
            if clock is None:
                clock = spec.apply.step_of(slot) + 1
        if step is not None:
            self._must_be_worker("push a step")
            if 0 < step <= self.session.floor:
                raise Invalid(f"step {step}: this worker's steps start at {self.session.floor + 1}")
        if ahead is not None:
            if not self.may_look_ahead(table, keys, ahead):
                raise Invalid(f"table {table!r}: such a push cannot pull other keys as well; push, then pull")
            if isinstance(ahead, KeyList):
                self._check_last(layout, ahead.last)
        given, places = self._prepare(layout, keys, values, void)
        task = Task(f"push {len(given):,} keys to {table!r}", _tasks(after))
        if (values := shortened(given.values, spec.wire)) is None:
            raise too_large(given.values, spec.wire)
        op = PushOperation(task, layout.number, KeyValues(given.keys, values), places, spec.width, spec.wire)
        op.filters = self.session.filters_of(layout)
        if op.filters is not None:
            op.filters.check(given.values)
        op.slot, op.step, op.void, op.clock = slot, step, void, clock
        op.pull = pull = pull or ahead is not None
        op.listed = _reusable_list(layout, keys)
        if isinstance(spec.apply, Each) and self.session.role == "worker" and step != 0:
            op.in_step = True
            op.own_clock = pull and clock is None
            task.after = (*task.after, self._enter(layout))
        if of is not None:
            op.reads = of.versions
        if isinstance(ahead, KeyList):
            op.look_ahead(ahead)
        return self.dispatcher.add(op)

    def may_look_ahead(self, table: str, keys: Any, ahead: Any) -> bool:
        """Whether one message per server can hold both: few sorted keys, or one range."""
        if isinstance(keys, KeyRange):
            if keys != ahead:
                return False
        elif not isinstance(keys, KeyList) or not isinstance(ahead, KeyList):
            return False
        spec = self.session.layout(table).spec
        most = limits.FRAME_BYTES // (16 * max(8, 4 * spec.push_width))
        return isinstance(spec.apply, Each) and not spec.hashed and len(keys) <= most and len(ahead) <= most

    def push_pull(self, table: str, keys: Any, values: Any, **how: Any) -> Task:
        return self.push(table, keys, values, pull=True, **how)

    def pull(
        self,
        table: str,
        keys: Any,
        *,
        clock: int | None = None,
        slot: Slot | None = None,
        after: Task | Sequence[Task] = (),
        clocks: bool = False,
        exact: bool = False,
    ) -> Task:
        """The rows of these keys, as new as a worker at ``clock``, or at ``slot``, may expect.

        With ``clocks`` the task has their vector clocks, too. ``exact``: always float32.
        """
        layout = self.session.layout(table)
        clock = None if clock is None else whole("clock", clock)
        if slot is not None:
            if not isinstance(layout.spec.apply, Step):
                raise Invalid(f"table {table!r} has no steps: name a clock, not a slot")
            clock = layout.spec.apply.step_of(_slot(slot))
        op = self._pull_operation(layout, keys, clock, _tasks(after))
        op.clocks = clocks
        op.form = "float32" if exact else layout.spec.wire
        op.filters = None if exact else self.session.filters_of(layout)
        return self.dispatcher.add(op)

    def park(self, *, after: Task | Sequence[Task] = ()) -> Task:
        self._must_be_worker("park")
        op = ParkOperation(Task("park", (*self.dispatcher.tasks(), *_tasks(after))))
        self.session.entered, self.session.parking = {}, [op.task]
        return self.dispatcher.add(op)

    def flush(self, table: str, *, after: Task | Sequence[Task] = ()) -> Task:
        layout = self.session.layout(table)
        if isinstance(layout.spec.apply, Step):
            raise Invalid(f"table {table!r} is updated in steps: the residual of filters goes with the next slots")
        task = Task(f"push what is left of {table!r}", (*self.dispatcher.tasks(), *_tasks(after)))
        op = PushOperation(task, layout.number, _no_values(layout.spec), None, layout.spec.width, layout.spec.wire)
        op.filters, op.exact = self.session.filters_of(layout), True
        return self.dispatcher.add(op)

    def create(self, name: str, spec: Table, starts: Sequence[int] = (), origin: str = "", like: str = "") -> Task:
        """Make a table; from ``origin``, the folder of a checkpoint, with the same ``starts``."""
        plain, name, like = checked(spec), self._name(name), self._name(like) if like != "" else ""
        check_pushed(plain)
        if are_known(plain.filters):
            checked_chain(plain)
        return self._admin(
            f"create {name!r}", lambda request: m.Create(request, name, plain, list(starts), origin, like)
        )

    def drop(self, name: str) -> Task:
        name = self._name(name)
        return self._admin(f"drop {name!r}", lambda request: m.Drop(request, name))

    def set_max_delay(self, name: str, max_delay: int | None) -> Task:
        delay, name = None if max_delay is None else whole("max_delay", max_delay), self._name(name)
        return self._admin(f"change max_delay of {name!r}", lambda request: m.Delay(request, name, delay))

    def allow(self, group: GroupLimits) -> Task:
        return self._admin(f"allow group {group.name!r} so much", lambda request: Allow(request, group))

    def dissolve(self, group: str) -> Task:
        return self._admin(f"dissolve group {group!r}", lambda request: Dissolve(request, group))

    def ask(self, what: str, message: Callable[[int], m.Message], kind: type[m.Message]) -> Task:
        """A request to the scheduler: ``message`` makes it, the answer is of that ``kind``."""
        op = Admin(Task(what), message, kind, dealer(self.session.group) if self.session.group else "")
        return self.dispatcher.add(op)

    def save(self) -> Task:
        return self.ask("make a checkpoint", m.Save, m.Done)

    def refresh(self) -> Task:
        return self._admin("refresh the view", m.Refresh)

    def stats(self, table: str) -> Task:
        op = StatusOperation(Task(f"stats of {table!r}"), self.session.layout(table).number)
        return self.dispatcher.add(op)

    def call(
        self,
        table: str,
        keys: Any,
        question: Question | str,
        *,
        servers: str | Sequence[str] | None = None,
        after: Task | Sequence[Task] = (),
        **settings: float,
    ) -> Task:
        op = call_operation(self.session.layout(table), keys, question, servers, _tasks(after), settings)
        return self.dispatcher.add(op)

    def _prepare(self, layout: Layout, keys: Any, values: Any, void: bool) -> tuple[KeyValues, Any]:
        """Sorted keys without repeats, their values, and the place of each of the caller's rows."""
        spec = layout.spec
        if void:
            return _no_values(spec), None
        found, places = self._resolve_keys(layout, keys)
        if isinstance(found, KeyRange) and spec.hashed:
            raise BadKeys(f"table {layout.name!r} is hashed, so its keys have no order: push a list of keys")
        rows = as_values(values, len(found) if places is None else len(places), spec.push_width)
        if places is None:
            return KeyValues(key_list(found) if isinstance(spec, Sparse) else found, rows), None
        if len(found) == len(rows):
            laid = np.empty_like(rows)
            laid[places] = rows
            return KeyValues(found, laid), places
        _check_adds_up(layout, keys, places)
        summed = add_up(rows, places, len(found))
        if not np.isfinite(summed).all():
            raise BadValues("values under a repeated key add up to more than float32 holds: nothing was sent")
        return KeyValues(found, summed), places

    def _resolve_keys(self, layout: Layout, keys: Any) -> tuple[Keys | KeyRange, Any]:
        """One range, or sorted keys without repeats and the place of each of the caller's keys."""
        spec = layout.spec
        if isinstance(keys, KeyList):
            if spec.hashed:
                hashed, places = as_hashed(keys)
                return hashed.keys, places
            self._check_last(layout, keys.last)
            return keys.keys, None
        if (span := as_range(keys, spec.span)) is not None:
            check_span(layout, span)
            return span, None
        return tidy(self._listed(layout, keys))

    def _listed(self, layout: Layout, keys: Any) -> Any:
        listed = as_keys(keys)
        if layout.spec.hashed:
            return mixed(listed)
        if layout.spec.span < limits.KEY_LIMIT and len(listed):
            self._check_last(layout, int(listed.max()))
        return listed

    def _check_last(self, layout: Layout, last: int) -> None:
        if last >= layout.spec.span:
            raise BadKeys(f"key {last} of table {layout.name!r}: its keys are 0 to {layout.spec.span - 1}")

    def _pull_operation(self, layout: Layout, keys: Any, clock: int | None, after: tuple[Task, ...]) -> PullOperation:
        spec = layout.spec
        listed, places = self._resolve_keys(layout, keys)
        if spec.hashed and isinstance(listed, KeyRange) and listed != KeyRange(0, limits.KEY_LIMIT):
            raise BadKeys(f"table {layout.name!r} is hashed, so its keys have no order: pull a list of keys, or all")
        what = str(listed) if isinstance(listed, KeyRange) else f"{len(listed):,} keys"
        task = Task(f"pull {what} of {layout.name!r}", after)
        op = PullOperation(task, layout.number, listed, places, spec.width)
        op.listed = _reusable_list(layout, keys)
        op.clock = clock
        op.live = isinstance(spec, Sparse) and isinstance(listed, KeyRange)
        op.hashed = spec.hashed
        if self.session.role == "worker" and isinstance(spec.apply, Each):
            entering = self.session.entered.get(layout.number)
            if entering is None:
                op.enter = True
                # One after another: the first decides the clock of all others.
                before = [*self.session.entered.values(), *self.session.parking]
                task.after = (*task.after, *(one for one in before if not one.done))
                self.session.entered[layout.number] = task
            elif not entering.done:
                task.after = (*task.after, entering)
            op.own_clock = clock is None
        return op

    def _enter(self, layout: Layout) -> Task:
        """The pull that enters this worker in a table; an empty one if it pushes first."""
        if layout.number not in self.session.entered:
            self.dispatcher.add(self._pull_operation(layout, (), None, ()))
        return self.session.entered[layout.number]

    def _name(self, name: object) -> str:
        return in_full(_name(name), self.session.group)

    def _admin(self, what: str, message: Any) -> Task:
        return self.dispatcher.add(Admin(Task(what), message))

    def _must_be_worker(self, what: str) -> None:
        if self.session.role != "worker":
            raise Invalid(f"{self.session.name} is a {self.session.role}: only a worker has a clock and can {what}")


def _reusable_list(layout: Layout, keys: Any) -> KeyList | None:
    if not isinstance(keys, KeyList):
        return None
    return as_hashed(keys)[0] if layout.spec.hashed else keys


def _no_values(spec: Table) -> KeyValues:
    return KeyValues(np.empty(0, np.uint64), np.empty((0, spec.push_width), np.float32))


def _tasks(after: Task | Sequence[Task]) -> tuple[Task, ...]:
    tasks = (after,) if isinstance(after, Task) else tuple(after)
    if not all(isinstance(task, Task) for task in tasks):
        raise Invalid(f"after={after!r}: needs tasks, as push and pull return them")
    return tasks


def _check_adds_up(layout: Layout, keys: Any, places: Any) -> None:
    """Refuse repeated keys where a push replaces values: they cannot be added up."""
    rule = layout.spec.update.name
    if rule != "assign":
        return
    key = np.asarray(keys).reshape(-1)[int(np.argmax(np.bincount(places)[places] > 1))]
    raise BadKeys(
        f"key {key} is given more than once, and update {rule!r} of table {layout.name!r} does not add up what is pushed: "
        f"give each key once"
    )


def _slot(slot: object) -> Slot:
    match slot:
        case (of_pass, number):
            return whole("epoch", of_pass), whole("slot", number)
    raise Invalid(f"slot={slot!r}: needs (epoch, number)")


def _name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= limits.NAME_CHARS or not name.isprintable():
        raise Invalid(f"{name!r} is no name: a table's name has 1 to {limits.NAME_CHARS} printable characters")
    return name
