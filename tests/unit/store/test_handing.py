"""Segments move between servers that apply the new view one after the other.

What each of them may answer then (F13, S1-22 to S1-24).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.limits import COORDINATOR, SECOND
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.table_server import FromServer, TableServer
from shoal.store.table.update import Sum
from shoal.tables import Dense, Sparse, Step, Table
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

ANN = 9
SERVERS = {"a": 1, "b": 2, "x": 3, "y": 4}
ROWS = 8  # in two segments
DENSE, SPARSE = Dense(rows=ROWS, update=Sum()), Sparse(keys=ROWS, update=Sum())
STEPS = Dense(rows=ROWS, update=Sum(), apply=Step(slots=1))


def placed(spec: Table, *places: str | m.Replicas) -> m.TablePlaces:
    """A table of two segments; each is given by its servers' names, primary first."""
    made = [one if isinstance(one, m.Replicas) else m.Replicas(1, list(one), since=1) for one in places]
    return m.TablePlaces(1, "w", spec, [0, ROWS // 2], made)


@dataclass
class Town:
    """Servers that hold a table; messages between them wait until they are delivered."""

    table: m.TablePlaces
    now: int = 0
    view: int = 1
    holdings: dict[str, TableServer] = field(default_factory=dict)
    post: deque[tuple[str, Send]] = field(default_factory=deque)
    answers: list[m.Message] = field(default_factory=list)
    told: list[m.Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, incarnation in SERVERS.items():
            table_server = self.holdings[name] = TableServer(name, incarnation, self.table, 1 << 20)
            table_server.set_up(SERVERS, None)
            self.carry_out(name, table_server.apply_placement(self.now, self.table, SERVERS, self.view))
            table_server.set_members({}, {ANN: "ann"})

    def next_view(self, table: m.TablePlaces) -> None:
        """Make the next view; no server has it yet."""
        self.view, self.table = self.view + 1, table

    def takes(self, *names: str) -> None:
        for name in names:
            self.carry_out(name, self.holdings[name].apply_placement(self.now, self.table, SERVERS, self.view))

    def become(self, table: m.TablePlaces) -> None:
        self.next_view(table)
        self.takes(*SERVERS)

    def push(self, number: int, server: str = "a", segments: Sequence[int] = (0, 1), floor: int = 0) -> None:
        """Ann adds 1 to every row of these segments, at this server."""
        own = self.holdings[server].primary
        assert own is not None
        stream = 0 if isinstance(self.table.spec.apply, Step) else -ANN
        keys = np.concatenate([np.arange(4, dtype=np.uint64) + 4 * segment for segment in segments])
        facts: dict[str, Any] = {"request": number + 1, "table": 1, "view": self.view, "generation": 0}
        facts |= {"incarnation": ANN, "stream": stream, "number": number, "floor": floor, "step": 0, "entered": 0}
        push = m.Push(**facts, count=len(keys), spell=0, first=segments[0], last=segments[-1] + 1)
        self.carry_out(server, own.push(self.now, "ann", push, (keys, np.ones(len(keys), np.float32))))

    def carry_out(self, sender: str, outcome: HandlerResult | list[Effect]) -> None:
        if isinstance(outcome, HandlerResult):
            assert not outcome.computations
            outcome = outcome.effects
        for effect in outcome:
            assert isinstance(effect, Send)
            if effect.to == COORDINATOR:
                self.told.append(effect.message)
            elif effect.to == "ann":
                self.answers.append(effect.message)
            else:
                self.post.append((sender, effect))

    def deliver(self, *to: str) -> None:
        """Deliver messages in flight and their effects; only to these servers, if named."""
        held: list[tuple[str, Send]] = []
        while self.post:
            sender, send = self.post.popleft()
            if to and send.to not in to:
                held.append((sender, send))
                continue
            assert isinstance(send.message, FromServer)
            outcome = self.holdings[send.to].handle(self.now, sender, send.message, tuple(send.arrays))
            self.carry_out(send.to, outcome)
        self.post.extend(held)

    def tick(self, *names: str) -> None:
        for name in names or SERVERS:
            self.carry_out(name, self.holdings[name].tick(self.now, False))

    def settle(self) -> None:
        """Let time pass: everything that was refused or lost is sent again."""
        for _ in range(20):
            self.deliver()
            self.now += SECOND // 4
            self.tick()

    def counted(self) -> list[int]:
        return [answer.request for answer in self.answers if isinstance(answer, m.Counted)]

    def values(self, segment: int) -> dict[str, float]:
        """Returns the first row of a segment, for each server that has it."""
        found = {}
        for name, table_server in self.holdings.items():
            parts = [table_server.primary, *(follow.state for follow in table_server.backups.by_primary.values())]
            for part in parts:
                if part is not None and segment in part.segments:
                    found[name] = float(part.table.pull(np.array([4 * segment], np.uint64)).item())
        return found

    def digests(self, segment: int) -> set[str]:
        ask = m.TableStatusRequest(1, 1, self.view, digests=True)
        told = [table_server.status(ask).digests for table_server in self.holdings.values()]
        return {one[segment] for one in told if segment in one}

    def opened(self) -> list[list[int]]:
        return [one.segments for one in self.told if isinstance(one, m.Opened)]


def moving(spec: Table, first: str, second: str, filling: str = "b", instead: str = "a") -> m.TablePlaces:
    """The second segment is being moved."""
    return placed(spec, first, m.Replicas(1, list(second), filling=filling, since=1, instead=instead))


def handed(spec: Table, first: str, second: str, view: int) -> m.TablePlaces:
    """The second segment has another primary since this view."""
    return placed(spec, first, m.Replicas(view, list(second), since=view))


# ---------------------------------------------------------------- to a new server


@pytest.mark.parametrize("spec", [DENSE, SPARSE, STEPS], ids=["dense", "sparse", "steps"])
@pytest.mark.parametrize("others", ["", "x", "xy"], ids=["alone", "a backup", "two backups"])
def test_a_segment_changes_hands_with_all_that_was_counted(spec: Table, others: str) -> None:
    town = Town(placed(spec, "a" + others, "a" + others))
    town.push(0)
    town.deliver()
    town.become(moving(spec, "a" + others, "a" + others))
    town.push(1)  # during the backfill
    town.deliver()
    assert any(isinstance(one, m.BackfillComplete) for one in town.told)
    town.push(2)  # before the coordinator decides
    town.deliver()
    town.become(handed(spec, "a" + others, "b" + others, town.view + 1))
    town.settle()
    assert town.opened() == [[1]] and town.counted() == [1, 2, 3]
    town.push(3, "a", [0])
    town.push(3, "b", [1])
    town.settle()
    assert set(town.values(0)) == {"a", *others} and set(town.values(0).values()) == {4.0}
    assert set(town.values(1)) == {"b", *others} and set(town.values(1).values()) == {4.0}
    assert len(town.digests(0)) == len(town.digests(1)) == 1


def test_a_segment_that_stays_remembers_which_keys_came_how_often_and_one_that_moved_does_not() -> None:
    spec = Sparse(keys=ROWS, update=Sum(), admit=3)
    town = Town(placed(spec, "a", "a"))
    town.push(0)
    town.become(moving(spec, "a", "a"))
    town.deliver()
    town.push(1)
    town.deliver()
    town.become(handed(spec, "a", "b", 3))
    town.settle()
    town.push(2, "a", [0])
    town.push(2, "b", [1])
    assert town.values(0) == {"a": 1.0} and town.values(1) == {"b": 0.0}
    for number in (3, 4):
        town.push(number, "b", [1])
    assert town.values(1) == {"b": 1.0}


def test_what_comes_again_is_not_counted_again_by_the_next_owner() -> None:
    """The ledger moves with the rows.

    A push whose response was lost is sent again, to the server that has the segment now.
    """
    town = Town(placed(DENSE, "a", "a"))
    town.push(0)
    town.become(moving(DENSE, "a", "a"))
    town.deliver()
    town.become(handed(DENSE, "a", "b", 3))
    town.deliver()
    town.push(0, "b", [1])
    assert isinstance(town.answers[-1], m.Counted) and not town.answers[-1].new
    assert town.values(1) == {"b": 1.0}


def test_an_owner_that_has_not_heard_of_it_counts_nothing_more() -> None:
    town = Town(placed(DENSE, "a", "a"))
    town.become(moving(DENSE, "a", "a"))
    town.deliver()
    town.next_view(handed(DENSE, "a", "b", 3))
    town.takes("b")
    town.push(0)  # to the former primary
    town.settle()
    assert not town.counted()  # b refuses a's changes to its segment
    assert town.opened() == [[1]]  # b has waited long enough for a
    town.takes("a")
    town.settle()
    assert town.values(1) == {"b": 0.0}  # the client asks again, by the new view
    assert town.values(0) == {"a": 1.0}


def test_nothing_is_served_before_the_former_owner_has_let_go() -> None:
    """Otherwise a client with the old view would read outdated values at the former primary."""
    town = Town(placed(DENSE, "ax", "ax"))
    town.become(moving(DENSE, "ax", "ax"))
    town.deliver()
    town.next_view(handed(DENSE, "ax", "bx", 3))
    town.takes("b", "x")
    town.deliver("b", "x")
    town.tick("b")
    town.deliver("b", "x")
    assert not town.opened()
    town.takes("a")
    town.deliver()
    assert town.opened() == [[1]]


@pytest.mark.parametrize("spec", [DENSE, STEPS], ids=["each", "steps"])
def test_what_waits_for_a_copy_is_cut_to_what_is_left_and_the_rest_goes_on(spec: Table) -> None:
    """Otherwise the copies would refuse it for ever, with everything after it."""
    town = Town(placed(spec, "ax", "ax"))
    town.become(moving(spec, "ax", "ax"))
    town.deliver()
    town.next_view(handed(spec, "ax", "bx", 3))
    town.takes("b", "x")
    town.push(0)  # for both segments: x and b refuse it, since one of them is b's
    town.deliver()
    town.takes("a")
    town.settle()
    assert town.values(0) == {"a": 1.0, "x": 1.0} and town.values(1) == {"b": 0.0, "x": 0.0}
    town.push(0, "a", [0])
    town.push(0, "b", [1])
    town.settle()
    assert set(town.values(0).values()) == set(town.values(1).values()) == {1.0}
    assert len(town.digests(0)) == len(town.digests(1)) == 1


def test_a_change_that_one_copy_has_and_another_has_not_is_levelled_though_their_former_primary_goes_on() -> None:
    """The former primary's log goes on with other segments.

    Acknowledgements in that log say nothing about the segment that it gave away.
    """
    town = Town(placed(DENSE, "ax", "ax"))
    town.become(moving(DENSE, "ax", "ax"))
    town.deliver()
    town.push(0)
    town.deliver("b")  # the new server has it, x has not
    town.post.clear()
    town.next_view(handed(DENSE, "ax", "bx", 3))
    town.takes("x", "a")
    town.push(1, "a", [0])
    town.now += SECOND
    town.tick("a")
    town.deliver("x", "a")  # x follows a's log further, without the segment
    town.next_view(town.table)
    town.takes("x")  # another view, for any reason
    town.takes("a", "b")
    town.settle()
    assert town.opened() == [[1]]
    assert town.values(1) == {"b": 1.0, "x": 1.0} and len(town.digests(1)) == 1
    assert town.values(0) == {"a": 2.0, "x": 2.0} and len(town.digests(0)) == 1


@pytest.mark.parametrize("spec", [DENSE, STEPS], ids=["dense", "steps"])
def test_what_was_done_to_a_segment_on_its_way_is_not_skipped_because_another_one_is_followed_from_later_on(
    spec: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is being filled is cut off from its primary.

    The same primary levels it in another segment, at a later number of its log.
    """
    monkeypatch.setattr(limits, "FILL_BYTES", 24)  # a segment is two pieces
    on_its_way = m.Replicas(1, ["a"], filling="b", since=1)
    town = Town(placed(spec, on_its_way, "xab"))
    town.post = deque(list(town.post)[:1])  # one of two pieces arrives
    town.deliver()
    town.post.clear()
    for number in range(3):
        town.push(number, "a", [0], floor=number)
        town.post.clear()  # b is cut off
    town.become(placed(spec, on_its_way, m.Replicas(2, ["a", "b"], since=2)))
    town.settle()
    assert town.opened() == [[1]] and any(isinstance(one, m.BackfillComplete) for one in town.told)
    assert town.values(0) == {"a": 3.0, "b": 3.0} and len(town.digests(0)) == 1
    # Numbers below the floor in the first segment said nothing about the second, on either side.
    assert len(town.digests(1)) == 1


def test_what_is_over_in_other_segments_of_a_former_primary_says_nothing_about_those_it_gave_away() -> None:
    """All copies of a segment know the same about a stream.

    Its former primary goes on with other segments.
    """
    town = Town(placed(DENSE, "ax", "axy"))
    # Y must wait for a message of x.
    town.become(placed(DENSE, "ax", m.Replicas(2, ["y", "x"], since=2)))
    for number in range(4):
        town.push(number, "a", [0], floor=number)
        town.deliver("a", "x")
    town.settle()
    assert town.opened() == [[1]]
    assert len(town.digests(0)) == len(town.digests(1)) == 1


def test_a_pull_that_need_not_wait_any_more_by_the_very_view_that_takes_a_segment_away_is_asked_again() -> None:
    waits = Dense(rows=ROWS, update=Sum(), apply=Step(slots=1), max_delay=0)
    # Every read is a separate computation.
    table_server = TableServer("a", SERVERS["a"], placed(waits, "ab", "ab"), inline=0)
    table_server.set_up(SERVERS, None)
    table_server.apply_placement(0, table_server.placed, SERVERS, 1)
    table_server.set_members({ANN: "ann"}, {ANN: "ann"})
    assert table_server.primary is not None
    facts: dict[str, Any] = {"request": 1, "table": 1, "view": 1, "generation": 0, "incarnation": ANN, "clock": 5}
    pull = m.Pull(**facts, entered=0, spell=0, first=0, last=2, count=ROWS)
    assert isinstance(
        answer(table_server.primary.pull(0, "ann", pull, (np.arange(ROWS, dtype=np.uint64),))), m.RequestHeld
    )
    free = Dense(rows=ROWS, update=Sum(), apply=Step(slots=1), max_delay=None)
    outcome = table_server.apply_placement(1, handed(free, "ab", "b", 2), SERVERS, 2)
    for work in outcome.computations:
        work.function()
    assert table_server.primary.segments == [0]


def answer(outcome: HandlerResult) -> m.Message:
    (effect,) = outcome.effects
    assert isinstance(effect, Send)
    return effect.message


def test_an_owner_opens_though_there_is_another_view_with_every_message() -> None:
    """What was asked and answered in one view is not asked again in the next.

    That holds if the next view says nothing new about it.
    """
    town = Town(placed(DENSE, "ax", "axy"))
    town.push(0)
    town.deliver("y", "a")  # y has it, x has not
    town.post.clear()
    town.become(placed(DENSE, "ax", m.Replicas(2, ["x", "y"], since=2)))
    for _ in range(12):
        town.next_view(town.table)
        town.takes(*SERVERS)
        if town.post:
            sender, send = town.post.popleft()
            assert isinstance(send.message, FromServer)
            town.carry_out(send.to, town.holdings[send.to].handle(town.now, sender, send.message, tuple(send.arrays)))
    assert town.opened() == [[1]]
    town.settle()
    assert town.values(1) == {"x": 1.0, "y": 1.0} and len(town.digests(1)) == 1


def test_a_backup_changes_hands_and_the_owner_stays() -> None:
    town = Town(placed(DENSE, "ax", "ax"))
    town.push(0)
    town.become(moving(DENSE, "ax", "ax", "y", "x"))
    town.push(1)
    town.deliver()
    town.become(placed(DENSE, "ax", m.Replicas(3, ["a", "y"], since=1)))
    town.push(2)
    town.settle()
    assert town.counted() == [1, 2, 3] and not town.opened()
    assert town.values(1) == {"a": 3.0, "y": 3.0} and town.values(0) == {"a": 3.0, "x": 3.0}


def test_an_owner_whose_last_segment_went_may_have_others_later() -> None:
    town = Town(placed(DENSE, "x", "ax"))
    town.become(moving(DENSE, "x", "ax"))
    town.deliver()
    town.push(0, "a", [1])
    town.become(handed(DENSE, "x", "bx", 3))
    town.settle()
    town.become(placed(DENSE, "x", m.Replicas(3, ["b", "x"], filling="a", since=3, instead="b")))
    town.settle()
    town.become(placed(DENSE, "x", m.Replicas(5, ["a", "x"], since=5)))
    town.settle()
    town.push(1, "a", [1])
    town.settle()
    assert town.counted()[-1] == 2 and len(set(town.values(1).values())) == 1 and len(town.digests(1)) == 1


# ---------------------------------------------------------------- fills that are stopped


def test_nobody_is_waited_for_any_more_when_its_fill_was_given_up() -> None:
    town = Town(placed(DENSE, "a", "a"))
    town.become(moving(DENSE, "a", "a"))
    town.deliver()
    town.push(0)
    assert not town.counted()  # it is full: nothing counts without it
    town.become(placed(DENSE, "a", m.Replicas(3, ["a"], since=1)))
    assert town.counted() == [1] and town.values(1) == {"a": 1.0}


def test_one_that_was_told_of_as_full_is_waited_for_whatever_else_it_is_to_be_filled_with() -> None:
    """The coordinator may have made it the primary already."""
    town = Town(placed(DENSE, "a", "a"))
    town.become(moving(DENSE, "a", "a"))
    town.deliver()
    assert any(isinstance(one, m.BackfillComplete) for one in town.told)
    both = m.Replicas(1, ["a"], filling="b", since=1, instead="a")
    town.next_view(placed(DENSE, both, both))
    town.takes("a")
    town.push(0)
    assert not town.counted()


def test_who_is_filled_and_silent_is_told_of() -> None:
    town = Town(placed(DENSE, "a", "a"))
    town.become(moving(DENSE, "a", "a"))
    town.post.clear()
    town.now += DEFAULT.shrink + SECOND
    town.tick("a")
    assert any(isinstance(one, m.Shrink) and one.server == "b" for one in town.told)


# ---------------------------------------------------------------- replicas that swap roles


@pytest.mark.parametrize("spec", [DENSE, SPARSE, STEPS], ids=["dense", "sparse", "steps"])
@pytest.mark.parametrize("others", ["", "y"], ids=["two", "three"])
def test_an_owner_and_its_backup_change_places_and_nothing_is_copied(spec: Table, others: str) -> None:
    town = Town(placed(spec, "ax" + others, "ax" + others))
    town.push(0)
    town.deliver()
    town.become(handed(spec, "ax" + others, "xa" + others, 2))
    assert not any(isinstance(send.message, m.BackfillPiece) for _, send in town.post)
    town.settle()
    assert town.opened() == [[1]]
    town.push(1, "a", [0])
    town.push(1, "x", [1])
    town.settle()
    assert set(town.values(1).values()) == set(town.values(0).values()) == {2.0}
    assert len(town.digests(0)) == len(town.digests(1)) == 1


def test_what_only_the_backup_has_is_there_when_it_is_the_owner() -> None:
    town = Town(placed(DENSE, "ax", "ax"))
    town.push(0)
    town.deliver("x")  # a does not know that x has it
    town.post.clear()
    town.become(handed(DENSE, "ax", "xa", 2))
    town.settle()
    assert town.values(1) == {"a": 1.0, "x": 1.0} and len(town.digests(1)) == 1


def test_an_owner_that_has_its_place_again_in_the_next_view_lacks_nothing_and_doubles_nothing() -> None:
    """This also holds if the backup never saw the view between the two."""
    town = Town(placed(DENSE, "ax", "ax"))
    town.push(0)
    town.deliver("x")
    town.post.clear()
    town.next_view(handed(DENSE, "ax", "xa", 2))
    town.takes("a")
    town.next_view(handed(DENSE, "ax", "ax", 3))
    town.takes("a", "x", "b", "y")
    town.settle()
    assert town.opened() == [[1]]
    town.push(0)  # Ann sends it again
    town.settle()
    assert set(town.values(1).values()) == set(town.values(0).values()) == {1.0}
    town.push(1)
    town.settle()
    assert set(town.values(1).values()) == {2.0} and len(town.digests(1)) == 1


def test_a_change_that_still_waits_for_a_copy_elsewhere_is_not_brought_again_to_a_segment_that_came_back() -> None:
    """A segment moves away, back and away again, while its log waits for another copy.

    That copy is of another segment. The change is in the segment when it moves back. So its
    primary, when it is deposed again, may not say that its copy has only what the log has carried
    out: the next primary would send it the change a second time.
    """
    town = Town(placed(DENSE, "ay", "a"))
    town.become(moving(DENSE, "ay", "a"))
    town.deliver("a", "b")
    town.push(0)
    town.deliver("a", "b")  # y is cut off from here on: the push is in a's log, and not carried out
    assert not town.counted() and town.holdings["a"].log.applied == 0
    for view, place in [
        (3, m.Replicas(3, ["b"], since=3)),
        (4, m.Replicas(3, ["b"], filling="a", since=3)),
        (5, m.Replicas(5, ["b", "a"], since=3)),
        (6, m.Replicas(6, ["a", "b"], since=6)),
        (7, m.Replicas(7, ["b", "a"], since=7)),
    ]:
        town.become(placed(DENSE, "ay", place))
        assert town.view == view
        town.deliver("a", "b")
    assert town.opened() == [[1], [1], [1]] and town.holdings["a"].log.applied == 0
    assert town.values(1) == {"a": 1.0, "b": 1.0} and len(town.digests(1)) == 1
    town.settle()  # y is reachable again
    assert town.values(0) == {"a": 1.0, "y": 1.0} and town.values(1) == {"a": 1.0, "b": 1.0}


def on_its_way(segment_0: str = "x", segment_1: str = "") -> m.TablePlaces:
    """Server a holds both segments; each is being moved to the named server, or stays."""
    to = [m.Replicas(1, ["a"], filling=one, since=1, instead="a" if one else "") for one in (segment_0, segment_1)]
    return placed(DENSE, *to)


def deposed(town: Town) -> None:
    """x is primary of the first segment and knows it; a does not know yet, and gets a push."""
    before = town.view
    town.next_view(placed(DENSE, m.Replicas(2, ["x"], since=town.view + 1), "a"))
    town.takes("x")
    after, town.view = town.view, before
    town.push(1, segments=(0,))
    town.view = after


def test_a_view_that_comes_before_the_coordinator_is_told_lets_nothing_be_counted_without_whom_it_is_told_of() -> None:
    town = Town(placed(DENSE, "a", "a"))
    town.become(on_its_way())
    town.deliver("x")
    town.push(0)  # x is not required yet
    # X is full, and has not acknowledged this push: the coordinator is not informed yet.
    town.deliver("a")
    assert town.counted() == [1] and not town.told
    town.become(on_its_way(segment_1="y"))
    town.deliver("x", "a")
    assert [type(one) for one in town.told] == [m.BackfillComplete]
    deposed(town)
    assert town.counted() == [1]  # push 1 is not counted: only a has it, and x will never have it
    town.takes("a", "b", "y")
    town.settle()
    assert town.values(0)["x"] == 1
    town.push(1, "x", segments=(0,))  # ann sends it again
    assert town.counted() == [1, 2] and town.values(0)["x"] == 2


def test_who_is_full_because_it_gets_no_more_is_required_before_the_coordinator_is_told() -> None:
    town = Town(placed(DENSE, "a", "a"))
    town.become(on_its_way(segment_1="x"))
    town.deliver("x")
    town.deliver("a")  # the first segment is there, the second is being sent
    town.become(on_its_way())  # which is cancelled
    town.tick("a")
    assert [one.segments for one in town.told if isinstance(one, m.BackfillComplete)] == [[0]]
    deposed(town)
    assert town.counted() == []


# ---------------------------------------------------------------- changes that are not pushes


def with_ann() -> Town:
    """Ann is a worker and has clocks.

    Server a is primary of the first segment with backup y, and x of the second with backup a.
    """
    town = Town(placed(DENSE, "ay", "xa"))
    for table_server in town.holdings.values():
        table_server.set_members({ANN: "ann"}, {ANN: "ann"})
    return town


def enters(town: Town, server: str = "a", request: int = 1) -> None:
    own = town.holdings[server].primary
    assert own is not None
    pull = m.Pull(request, 1, town.view, 0, ANN, 0, 0, 0, 0, m.EVERYWHERE, 0, 0, ROWS, enter=True)
    town.carry_out(server, own.pull(town.now, "ann", pull, ()))


def parks(town: Town, server: str = "a", request: int = 7) -> None:
    own = town.holdings[server].primary
    assert own is not None
    town.carry_out(server, own.park(town.now, ANN, 0, lambda now: HandlerResult([Send("ann", m.Done(request))])))


def test_who_enters_while_a_segment_opens_is_known_to_all_copies_of_it() -> None:
    """Her enter waits for a copy of another segment.

    When it is carried out, she has entered all segments, also the new one.
    """
    town = with_ann()
    enters(town)
    town.become(handed(DENSE, "ay", "ax", 2))
    town.deliver("a", "x")  # y is cut off
    assert town.opened() == [[1]] and town.holdings["a"].log.applied == 0
    town.settle()
    assert len(town.digests(0)) == len(town.digests(1)) == 1
    assert town.holdings["a"].primary is not None and town.holdings["a"].primary.clocks.has_entered(ANN, 0)


def test_a_segment_that_opens_says_once_who_came_and_who_went() -> None:
    town = with_ann()
    enters(town, "a")
    enters(town, "x")
    town.settle()
    parks(town)
    town.become(handed(DENSE, "ay", "ax", 2))
    town.deliver("a", "x")
    assert town.opened() == [[1]]
    to_x = [parcel.change.kind for parcel in town.holdings["a"].log.links["x"].queue]
    assert to_x == [] and town.holdings["a"].log.links["x"].acked == town.holdings["a"].log.seq
    to_y = [parcel.change.kind for parcel in town.holdings["a"].log.links["y"].queue]
    # What waited, and what the copies of the new segment need as well.
    assert to_y == ["park", "enter", "park"]
    town.settle()
    assert len(town.digests(0)) == len(town.digests(1)) == 1


def test_a_copy_whose_primary_changed_learns_of_a_park_with_other_segments_and_says_so_when_it_opens() -> None:
    """Two segments have one primary, and the second moves to its backup.

    Then Ann parks at the first segment, which that server still backs up.
    """
    town = Town(placed(DENSE, "ax", "ax"))
    for table_server in town.holdings.values():
        table_server.set_members({ANN: "ann"}, {ANN: "ann"})
    enters(town, "a")
    town.settle()
    town.next_view(handed(DENSE, "ax", "xa", 2))
    town.takes("a", "x")
    held = list(town.post)  # levelling messages are held back
    town.post.clear()
    parks(town)
    town.deliver()  # x has it for both segments: it is recorded by worker, not by segment
    town.post.extend(held)
    town.settle()
    assert town.opened() == [[1]] and len(town.digests(1)) == 1


def test_who_entered_one_segment_only_has_entered_all_copies_of_all_when_they_have_one_owner() -> None:
    town = with_ann()
    enters(town, "x")
    town.settle()
    town.become(handed(DENSE, "ay", "ax", 2))
    town.settle()
    assert len(town.digests(0)) == len(town.digests(1)) == 1
    assert town.holdings["a"].primary is not None and town.holdings["a"].primary.clocks.has_entered(ANN, 0)


def test_a_park_that_is_asked_for_again_goes_to_the_copies_once() -> None:
    """While a copy is silent, the worker asks again and again.

    What waits for the copy must not grow with that.
    """
    town = with_ann()
    enters(town)
    town.settle()
    log = town.holdings["a"].log
    seq = log.seq
    for _ in range(5):
        parks(town)
    assert log.seq == seq + 1 and not any(isinstance(one, m.Done) for one in town.answers)
    town.settle()
    assert [one for one in town.answers if isinstance(one, m.Done)] == [m.Done(7)]
    parks(town, request=8)  # the response was lost, or another incarnation asks: all copies know it
    assert log.seq == seq + 1 and town.answers[-1] == m.Done(8)


def test_a_park_of_one_who_never_entered_a_table_is_told_to_no_copy() -> None:
    """A worker parks in all tables of a server, also in those that it never pulled from."""
    town = with_ann()
    parks(town)
    assert town.holdings["a"].log.seq == 0 and town.answers == [m.Done(7)]
    enters(town)
    parks(town)  # her enter waits for a copy: so does this park
    assert town.holdings["a"].log.seq == 2 and town.answers == [m.Done(7)]
    town.settle()
    assert len(town.digests(0)) == 1 and town.answers[-1] == m.Done(7)


def test_an_enter_that_is_asked_for_again_goes_to_the_copies_once() -> None:
    """The second enter is another request: after a new view the worker had to ask again."""
    town = with_ann()
    log = town.holdings["a"].log
    enters(town)
    enters(town, request=4)
    assert log.seq == 1 and not town.answers
    town.settle()
    assert [one.request for one in town.answers if isinstance(one, m.Values)] == [4]
    enters(town)  # the first request is repeated: it need not wait any more
    assert log.seq == 1
    assert [one.request for one in town.answers if isinstance(one, m.Values)] == [4, 1]


def test_a_park_that_waits_when_another_segment_opens_is_asked_for_again_and_answered() -> None:
    town = with_ann()
    enters(town, "a")
    enters(town, "x")
    town.settle()
    parks(town)
    town.become(handed(DENSE, "ay", "ax", 2))
    town.deliver("a", "x")
    assert town.opened() == [[1]]
    parks(town)
    town.settle()
    assert [one for one in town.answers if isinstance(one, m.Done)] == [m.Done(7)]
    assert len(town.digests(0)) == len(town.digests(1)) == 1


def test_who_parks_is_not_told_so_because_a_segment_that_came_knows_it() -> None:
    """The copies of the other segments do not know it yet.

    If one of them took over, it would wait for her.
    """
    town = with_ann()
    enters(town, "a")
    enters(town, "x")
    town.settle()
    parks(town, "x")
    town.settle()
    town.answers.clear()
    town.become(handed(DENSE, "ay", "ax", 2))
    town.deliver("a", "x")  # y is cut off: it does not know that she is parked
    assert town.opened() == [[1]]
    parks(town)
    town.deliver("a", "x")
    assert not any(isinstance(one, m.Done) for one in town.answers)
    town.settle()
    assert [one for one in town.answers if isinstance(one, m.Done)] == [m.Done(7)]
    assert len(town.digests(0)) == len(town.digests(1)) == 1
