"""A verdict says what ended a run, and which nodes could have responded."""

from __future__ import annotations

from unittest import mock

from shoal.limits import SECOND
from shoal.simulation import store_scenario as module
from shoal.simulation.faults import Fault, FaultPlan
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.world import SimulatedHost, World
from shoal.wire.effects import Connect, Effect, Event, Received
from shoal.wire.messages import Done


def test_a_run_that_was_cut_off_by_its_events_says_so() -> None:
    """Reaching the event limit does not prove that something hangs.

    There may be much to do.
    """
    plan = FaultPlan(seed=1, servers=2, workers=2, slots=20, faults=(Fault("join", 100, who="server-2"),), lasts=200)
    with mock.patch.object(module, "MOST_EVENTS", 300):
        (found,) = StoreRun(plan).verdict().violations
    assert found.rule == "I13 live"
    assert " s after the last fault, and after 300 events: " in found.what


def test_nothing_is_well_before_the_last_pause_is_over() -> None:
    run = StoreRun(FaultPlan(seed=1, servers=1))
    run.cluster.set_up()
    run.world.now = 3 * SECOND
    run.world.pause("server-0", 6 * SECOND)
    assert run._well_since() == 0
    run._healed = run.world.now
    assert run._well_since() == 9 * SECOND


class Quiet:
    """A node that does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def handle(self, now: int, event: Event) -> list[Effect]:
        return []


def _ann() -> tuple[World, SimulatedHost]:
    world = World(1)
    return world, world.add(Quiet("ann"))


def test_who_calls_us_is_reached_also_when_we_do_not_call_it_any_more() -> None:
    """The message goes over its own socket, as in the transport between processes."""
    world, ann = _ann()
    world.carry_out("ann", [Connect("bob", "memory:bob")])
    world.tell("ann", Received("bob", Done(1), ()))
    world.carry_out("ann", [Connect("bob", "")])
    assert ann.reaches("bob")


def test_nobody_reaches_whom_it_neither_calls_nor_has_heard() -> None:
    world, ann = _ann()
    assert not ann.reaches("bob") and ann.reaches("coordinator")
    world.carry_out("ann", [Connect("bob", "memory:bob")])
    assert ann.reaches("bob")
    world.carry_out("ann", [Connect("bob", "")])
    assert not ann.reaches("bob")
