"""A simulated node reaches the nodes that it calls and those that call it.

Real sockets do the same.
"""

from __future__ import annotations

from shoal.simulation.world import World
from shoal.wire.effects import Connect, Effect, Event, Received, Send
from shoal.wire.messages import Message
from shoal.wire.messages.gossip import LegReceived


class Listener:
    """A node that records the messages it gets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[tuple[str, Message]] = []

    def handle(self, now: int, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            self.heard.append((event.sender, event.message))
        return []


def pair() -> tuple[World, Listener, Listener]:
    world, one, two = World(1), Listener("one"), Listener("two")
    world.add(one)
    world.add(two)
    return world, one, two


def do(world: World, name: str, *effects: Effect) -> None:
    world.carry_out(name, list(effects))
    world.run(lambda: False, 1 << 60, 1_000)


def test_nobody_reaches_one_that_it_has_not_called_and_never_heard() -> None:
    world, _, two = pair()
    do(world, "one", Send("two", LegReceived(1)))
    assert two.heard == [] and world.counts["network: nobody there"] == 1


def test_one_that_was_called_answers_and_does_so_after_it_hung_up_itself() -> None:
    world, one, two = pair()
    do(world, "one", Connect("two", "memory:two"), Send("two", LegReceived(1)))
    do(world, "two", Connect("one", "memory:one"), Connect("one", ""), Send("one", LegReceived(2)))
    assert two.heard == [("one", LegReceived(1))] and one.heard == [("two", LegReceived(2))]


def test_who_hangs_up_on_one_that_only_answered_does_not_reach_it_any_more() -> None:
    world, one, two = pair()
    do(world, "one", Connect("two", "memory:two"), Send("two", LegReceived(1)))
    do(world, "two", Send("one", LegReceived(2)))
    do(world, "one", Connect("two", ""), Send("two", LegReceived(3)))
    assert len(one.heard) == len(two.heard) == 1
