"""Nodes in one process send messages between threads."""

from __future__ import annotations

import threading

import numpy as np

from shoal.wire.effects import Received
from shoal.wire.memory import Hub
from shoal.wire.messages import Done


def test_a_message_arrives_as_it_was_sent_without_a_copy() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    values = np.arange(3)
    ann.send("bob", Done(1), (values,))
    ann.flush()
    (received,) = bob.receive(0)
    assert (received.sender, received.message) == ("ann", Done(1))
    assert received.arrays[0] is values


def test_messages_arrive_in_order_many_at_a_time() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    for number in range(1_000):
        ann.send("bob", Done(number), ())
        ann.flush()
    found: list[Received] = []
    while more := bob.receive(0):
        assert len(more) <= 256  # so that the loop checks its timers in between
        found += more
    assert [received.message for received in found] == [Done(number) for number in range(1_000)]


def test_what_is_sent_in_one_turn_arrives_in_one_go() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    ann.send("bob", Done(1), (np.zeros(2, np.float32),))
    ann.send("bob", Done(2), ())
    assert bob.receive(0) == []  # not yet: more messages may come
    ann.flush()  # the turn ends, and its messages are sent
    assert [received.message for received in bob.receive(0)] == [Done(1), Done(2)]
    assert (ann.traffic, bob.traffic) == ((8, 0), (0, 8))


def test_nothing_there_is_nothing_received() -> None:
    assert Hub().open("ann").receive(0) == []
    assert Hub().open("ann").receive(0.001) == []


def test_what_is_sent_to_nobody_is_dropped_and_counted() -> None:
    ann = Hub().open("ann")
    ann.send("bob", Done(1), ())
    ann.flush()
    assert ann.counters() == {"nobody there": 1}


def test_a_closed_mailbox_takes_no_mail() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    bob.close()
    ann.send("bob", Done(1), ())
    ann.flush()
    assert ann.counters() == {"nobody there": 1}


def test_a_second_node_of_the_same_name_takes_over() -> None:
    hub = Hub()
    ann, first = hub.open("ann"), hub.open("bob")
    second = hub.open("bob")
    ann.send("bob", Done(1), ())
    ann.flush()
    assert first.receive(0) == []
    assert len(second.receive(0)) == 1
    first.close()  # closing the first does not take the messages of the second
    ann.send("bob", Done(2), ())
    ann.flush()
    assert len(second.receive(0)) == 1


def test_a_wait_in_another_thread_is_ended_by_wake() -> None:
    ann = Hub().open("ann")
    found: list[list[Received]] = []
    thread = threading.Thread(target=lambda: found.append(ann.receive(60)))
    thread.start()
    ann.wake()
    thread.join(30)
    assert not thread.is_alive()
    assert found == [[]]


def test_wakes_are_no_messages() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    bob.wake()
    ann.send("bob", Done(1), ())
    ann.flush()
    bob.wake()
    assert [received.message for received in bob.receive(0)] == [Done(1)]


def test_a_mailbox_has_an_address_and_needs_no_connection() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    assert ann.address == "memory:ann"
    ann.connect("bob", bob.address)
    ann.disconnect("bob")
    ann.send("bob", Done(1), ())
    ann.flush()
    assert len(bob.receive(0)) == 1


def test_a_node_that_offers_to_answer_is_called_and_not_woken() -> None:
    hub = Hub()
    ann, bob = hub.open("ann"), hub.open("bob")
    taken: list[Received] = []
    willing = [True]
    bob.answer_with(lambda letters: willing[0] and (taken.extend(letters) or True))

    def say(number: int) -> None:
        ann.send("bob", Done(number), ())
        ann.flush()

    def elsewhere(number: int) -> None:
        thread = threading.Thread(target=say, args=(number,))
        thread.start()
        thread.join(30)

    elsewhere(1)
    assert ([one.message for one in taken], bob.receive(0)) == ([Done(1)], [])
    willing[0] = False  # busy
    elsewhere(2)
    willing[0] = True
    elsewhere(3)  # queued behind the waiting message: nothing overtakes
    say(4)  # the main thread never runs another node: Ctrl-C would stop it half-way
    assert [one.message for one in taken] == [Done(1)]
    assert [one.message for one in bob.receive(0)] == [Done(2), Done(3), Done(4)]
