"""Drives a server by hand: access, work for the compute thread, and new views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.keys import KeyRange
from shoal.limits import SECOND
from shoal.nodes.server import Backlog, Server, max_wait
from shoal.store.table import slab
from shoal.tables import Dense, Sparse, Table, Update
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Compute, Computed, Effect, Event, Received, Send, Tick, Wake

DENSE = Dense(rows=8, max_delay=0)
EVE, DAN = 2, 3  # a worker and a client
FOLK = [m.Member("eve", EVE, "worker", ""), m.Member("dan", DAN, "client", "")]


@dataclass
class Hall:
    """A server, the computations it requested, and its messages."""

    server: Server
    now: int = 10 * SECOND
    asked: list[Compute] = field(default_factory=list)
    requests: int = 0
    arrays: list[Any] = field(default_factory=list)

    def feed(self, event: Event) -> list[tuple[str, m.Message]]:
        effects = self.server.handle(self.now, event)
        assert isinstance(effects[-1], Wake)
        return self.said(effects)

    def said(self, effects: list[Effect]) -> list[tuple[str, m.Message]]:
        self.asked += [effect for effect in effects if isinstance(effect, Compute)]
        sends = [one for one in effects if isinstance(one, Send) and not isinstance(one.message, m.Heartbeat | m.Hello)]
        self.arrays = [send.arrays for send in sends]
        return [(send.to, send.message) for send in sends]

    def compute(self, error: BaseException | None = None) -> list[tuple[str, m.Message]]:
        """Finish the one computation that is under way."""
        (job,) = self.asked
        self.asked.clear()
        if error is None:
            job.function()
        return self.feed(Computed(job.token, error=error))

    def push(self, keys: list[int], values: list[float], number: int = 0, **more: Any) -> list[tuple[str, m.Message]]:
        self.requests += 1
        arrays = (np.array(keys, np.uint64), np.array(values, np.float32))
        defaults = {"view": 5, "generation": 0, "incarnation": DAN, "stream": -DAN, "number": number, "floor": 0}
        defaults |= {"table": 1, "step": 0, "entered": 0, "spell": 0, "first": 0, "last": m.EVERYWHERE}
        sender = more.pop("sender", "dan")
        message = m.Push(**{"request": self.requests, "count": len(keys), **defaults, **more})
        return self.feed(Received(sender, message, arrays))

    def pull(self, keys: Any, **more: Any) -> list[tuple[str, m.Message]]:
        self.requests += 1
        defaults: dict[str, Any] = {"view": 5, "generation": 0, "incarnation": DAN, "clock": -1, "entered": 0}
        defaults |= {"table": 1, "spell": 0, "first": 0, "last": m.EVERYWHERE, "request": self.requests}
        arrays: tuple[Any, ...] = ()
        if isinstance(keys, KeyRange):
            defaults |= {"start": keys.start, "stop": keys.stop, "count": 0}
        else:
            arrays = (np.array(keys, np.uint64),)
            defaults["count"] = len(keys)
        sender = more.pop("sender", "dan")
        return self.feed(Received(sender, m.Pull(**{**defaults, **more}), arrays))


def placed(number: int, spec: Table = DENSE, owners: tuple[str, ...] = ("ann", "bob")) -> m.TablePlaces:
    starts = [i * spec.span // len(owners) for i in range(len(owners))]
    return m.TablePlaces(
        number, f"table {number}", spec, starts, [m.Replicas(1, [owner] if owner else []) for owner in owners]
    )


def view(number: int, *tables: m.TablePlaces, members: list[m.Member] | None = None, generation: int = 0) -> m.View:
    return m.View(
        1, number, generation, [m.Member("ann", 1, "server", ""), *(FOLK if members is None else members)], [*tables]
    )


def hall(*tables: m.TablePlaces, inline: int = limits.INLINE_ELEMENTS) -> Hall:
    """Returns server ann, a member since view 5, with these tables set up."""
    made = Hall(Server("ann", "token", inline=inline))
    made.feed(Tick())
    made.feed(Received("coordinator", m.Welcome("token.0", 1, view(5, *(tables or (placed(1),))))))
    made.compute()
    return made


# ---------------------------------------------------------------- access


def test_before_it_is_a_member_a_server_asks_to_come_later() -> None:
    made = Hall(Server("ann", "token"))
    assert made.push([1], [1]) == [("dan", m.Busy(1, limits.BUSY_RETRY))]


def test_a_member_is_answered() -> None:
    made = hall()
    assert made.push([1], [4]) == [("dan", m.Counted(1, new=True))]
    assert made.pull([1, 2]) == [("dan", m.Values(2, 2, [1]))]
    assert made.arrays[0][0].tolist() == [4, 0]


def test_an_incarnation_that_is_not_in_the_view_is_fenced() -> None:
    made = hall()
    assert made.push([1], [1], incarnation=9) == [("dan", m.Fence(1, 9))]
    assert made.pull([1], incarnation=9) == [("dan", m.Fence(2, 9))]
    assert made.feed(Received("dan", m.Park(3, 9, 5, 0))) == [("dan", m.Fence(3, 9))]
    assert made.server.counts["fenced"] == 3
    assert made.pull([1]) == [("dan", m.Values(3, 1, [0]))]


def test_nobody_speaks_in_anothers_name() -> None:
    assert hall().push([1], [1], sender="mallory") == [("mallory", m.Fence(1, DAN))]


def test_a_former_life_is_fenced_when_the_view_says_so() -> None:
    made = hall()
    made.push([1], [1])
    reborn = [m.Member("eve", EVE, "worker", ""), m.Member("dan", 7, "client", "")]
    made.feed(Received("coordinator", view(6, placed(1), members=reborn)))
    assert made.push([1], [1], number=1) == [("dan", m.Fence(2, DAN))]
    assert made.push([1], [1], incarnation=7, stream=-7) == [("dan", m.Counted(3, new=True))]


def test_a_request_by_a_newer_view_waits_until_this_one_has_it() -> None:
    made = hall()
    assert made.push([1], [1], view=6) == []
    assert made.push([1], [1], number=1, view=6) == []
    assert made.server.counts["view behind"] == 2
    came = made.feed(Received("coordinator", view(6, placed(1))))
    # In their old order.
    assert came[-2:] == [("dan", m.Counted(1, new=True)), ("dan", m.Counted(2, new=True))]
    assert made.push([1], [1], number=2, view=6) == [("dan", m.Counted(3, new=True))]


def test_a_request_that_came_too_soon_is_sent_back_when_it_has_waited_long_enough() -> None:
    made = hall()
    assert made.push([1], [1], view=6) == []
    made.now += max_wait(DEFAULT) - 1
    assert made.feed(Tick()) == []
    made.now += DEFAULT.notice
    assert made.feed(Tick()) == [("dan", m.Busy(1, limits.BUSY_RETRY))]
    made.feed(Received("coordinator", view(6, placed(1))))
    assert made.pull([1], view=6)[0][1].count == 1
    assert made.arrays[0][0].tolist() == [0]  # counted when it is sent again, not before


def test_a_request_that_comes_again_while_it_waits_does_not_wait_twice() -> None:
    made = hall()
    made.push([1], [1], view=6)
    assert made.push([1], [1], view=6, request=1) == [("dan", m.Busy(1, limits.BUSY_RETRY))]
    assert made.push([1], [1], view=6, request=1) == []
    assert made.feed(Received("coordinator", view(6, placed(1))))[-1:] == [("dan", m.Counted(1, new=True))]


def test_what_waits_for_a_view_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG", 1)
    made = hall()
    made.push([1], [1], view=6)
    assert made.push([1], [1], number=1, view=6) == [("dan", m.Busy(2, limits.BUSY_RETRY))]


# ---------------------------------------------------------------- requests by an older view


def moved_to(view_number: int, *owners: str, since: Sequence[int]) -> m.View:
    """A view with the table in parts, each with its primary and the view since which it has it."""
    places = [m.Replicas(at, [owner], since=at) for owner, at in zip(owners, since, strict=True)]
    starts = [i * DENSE.span // len(owners) for i in range(len(owners))]
    servers = [m.Member(name, i, "server", "") for i, name in enumerate(("ann", "bob", "cid"), 1)]
    folk = [m.Member("eve", 12, "worker", ""), m.Member("dan", 13, "client", "")]
    return m.View(1, view_number, 0, [*servers, *folk], [m.TablePlaces(1, "table 1", DENSE, starts, places)])


def seated_by(first: m.View) -> Hall:
    made = Hall(Server("ann", "token"))
    made.feed(Tick())
    made.feed(Received("coordinator", m.Welcome("token.0", 1, first)))
    made.compute()
    return made


def test_what_moves_elsewhere_is_no_reason_to_refuse_an_older_view() -> None:
    made = seated_by(moved_to(5, "ann", "bob", since=(1, 1)))
    made.feed(Received("coordinator", moved_to(6, "ann", "cid", since=(1, 6))))
    asked = {"incarnation": 13, "stream": -13}
    assert made.push([1], [1], view=5, **asked) == [("dan", m.Counted(1, new=True))]
    # Another server had it in view 7, which we missed.
    made.feed(Received("coordinator", moved_to(8, "ann", "cid", since=(8, 6))))
    assert made.push([1], [1], number=1, view=6, **asked) == [("dan", m.SegmentsMoved(2, 8))]


def test_whoever_waits_for_what_is_given_away_is_told_to_ask_by_the_new_view() -> None:
    made = seated_by(moved_to(5, "ann", "ann", since=(1, 1)))
    enter = {"incarnation": 12, "sender": "eve", "view": 5}
    made.pull([1], enter=True, **enter)
    ((_, held),) = made.pull([1], clock=3, **enter)
    assert isinstance(held, m.RequestHeld)
    told = made.feed(Received("coordinator", moved_to(6, "ann", "bob", since=(1, 6))))
    assert ("eve", m.SegmentsMoved(held.request, 6)) in told


def test_an_unknown_table_has_moved() -> None:
    assert hall().push([1], [1], table=2) == [("dan", m.SegmentsMoved(1, 5))]
    assert hall().pull([1], table=2) == [("dan", m.SegmentsMoved(1, 5))]
    assert hall().feed(Received("dan", m.TableStatusRequest(1, 2, 5))) == [("dan", m.SegmentsMoved(1, 5))]


def test_a_table_of_which_nothing_is_held_has_moved() -> None:
    made = hall(placed(1), placed(2, owners=("bob",)))
    assert made.pull([1], table=2) == [("dan", m.SegmentsMoved(1, 5))]


def test_another_generation_is_told_of_the_rollback() -> None:
    assert hall().push([1], [1], generation=1) == [("dan", m.Rollback(1, 0))]


def test_only_a_worker_can_enter() -> None:
    made = hall()
    ((_, answer),) = made.pull([1], enter=True)
    assert isinstance(answer, m.Refusal) and "dan is a client" in answer.reason
    ((_, answer),) = made.pull([1], enter=True, sender="eve", incarnation=EVE)
    assert answer == m.Values(2, 1, [0], entered=0)


def test_parking_is_answered_and_releases_who_waits() -> None:
    made = hall()
    made.pull([1], enter=True, sender="eve", incarnation=EVE)
    ((_, answer),) = made.pull([1], clock=3)
    assert answer == m.RequestHeld(2, "eve at step 0")
    said = made.feed(Received("eve", m.Park(3, EVE, 5, 0)))
    assert said == [("eve", m.Done(3)), ("dan", m.Values(2, 1, [0]))]


def test_facts_are_told_to_whoever_asks() -> None:
    made = hall()
    made.push([1], [1])
    ((to, told),) = made.feed(Received("anyone", m.TableStatusRequest(9, 1, 5)))
    assert to == "anyone" and isinstance(told, m.TableStatusReply)
    assert (told.facts["rows"], told.facts["counted"]) == (4, 1)


def test_who_waits_is_told_for_whom_every_second() -> None:
    made = hall()
    made.pull([1], enter=True, sender="eve", incarnation=EVE)
    made.pull([1], clock=3)
    told = []
    for _ in range(40):
        made.now += SECOND // 10
        told += made.feed(Tick())
    assert told == [("dan", m.RequestHeld(2, "eve at step 0"))] * len(told)
    assert 3 <= len(told) <= 4


# ---------------------------------------------------------------- views


def test_rows_of_what_it_let_go_of_are_cleared_away_between_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab, "CLEAR_ROWS", 4)
    spec = Sparse(keys=20)
    made = hall(placed(1, spec, ("ann", "ann")), inline=8)
    made.push([*range(20)], [1.0] * 20)
    made.compute()
    made.feed(Received("coordinator", view(6, placed(1, spec, ("ann", "bob")))))
    own = made.server.tables[1].primary
    assert own is not None and own.table.rows == 20
    made.now += SECOND
    made.push([*range(10)], [1.0] * 10, number=1, view=6)
    assert made.asked and own.table.rows == 20  # a computation is using the rows
    made.compute()
    left = own.table.rows
    assert 10 < left < 20
    assert made.server.handle(made.now, Tick())[-1] == Wake(made.now + limits.CLEAR_EVERY)
    assert own.table.rows == left  # not before that time
    for _ in range(10):
        made.now += limits.CLEAR_EVERY
        made.feed(Tick())
    assert own.table.rows == 10 and own.table.pull(np.arange(10, dtype=np.uint64)).sum() == 20


def test_a_view_is_shown_once_its_tables_are_set_up() -> None:
    made = Hall(Server("ann", "token"))
    made.feed(Tick())
    made.feed(Received("coordinator", m.Welcome("token.0", 1, view(5, placed(1)))))
    assert made.server.member.active_view == 0
    (job,) = made.asked
    job.function()
    effects = made.server.handle(made.now, Computed(job.token))
    assert Send("coordinator", m.Heartbeat(1, 5)) in effects
    assert made.server.tables[1].primary.check.ranges == [KeyRange(0, 4)]


def test_a_table_that_cannot_be_set_up_is_told_with_the_reason() -> None:
    made = hall(placed(1, Dense(rows=8, update=Update("nobody knows"))), placed(2))
    assert list(made.server.tables) == [2]
    (reason,) = made.server.member.failed.values()
    assert "nobody knows" in reason
    made.feed(Received("coordinator", view(6, placed(2))))
    assert made.server.member.failed == {}


def test_a_table_too_large_for_this_machine_is_told_and_others_are_not_harmed() -> None:
    made = hall(placed(1, Dense(rows=1 << 60, width=60_000)), placed(2))
    assert "no memory" in made.server.member.failed[1]
    assert list(made.server.tables) == [2]


def test_a_table_that_is_not_in_the_view_is_forgotten() -> None:
    made = hall()
    made.push([1], [1])
    made.feed(Received("coordinator", view(6)))
    assert made.pull([1], view=6) == [("dan", m.SegmentsMoved(2, 6))]


def test_a_table_that_stays_keeps_its_rows() -> None:
    made = hall()
    made.push([1], [4])
    made.feed(Received("coordinator", view(6, placed(1), placed(2))))
    made.compute()
    made.pull([1], view=6)
    assert made.arrays[0][0].tolist() == [4]


def test_a_new_bound_releases_who_waits() -> None:
    made = hall()
    made.pull([1], enter=True, sender="eve", incarnation=EVE)
    made.pull([1], clock=3)
    said = made.feed(Received("coordinator", view(6, placed(1, Dense(rows=8, max_delay=3)))))
    assert said == [("dan", m.Values(2, 1, [0]))]


def test_nobody_waits_for_a_worker_that_is_not_in_the_view() -> None:
    made = hall()
    made.pull([1], enter=True, sender="eve", incarnation=EVE)
    made.pull([1], clock=3)
    said = made.feed(Received("coordinator", view(6, placed(1), members=FOLK[1:])))
    assert said == [("dan", m.Values(2, 1, [0]))]


def test_a_fenced_server_forgets_everything_and_joins_again() -> None:
    made = hall()
    made.push([1], [4])
    effects = made.server.handle(made.now, Received("coordinator", m.Fence(0, 1)))
    assert Send("coordinator", m.Hello("ann", "server", "token.1")) in effects
    assert made.server.tables == {}
    assert made.push([1], [1], number=1) == [("dan", m.Busy(2, limits.BUSY_RETRY))]
    made.feed(Received("coordinator", m.Welcome("token.1", 8, view(9, placed(1)))))
    made.compute()
    made.pull([1], view=9)
    assert made.arrays[0][0].tolist() == [0]


# ---------------------------------------------------------------- one computation at a time


def test_a_long_push_is_computed_elsewhere_and_requests_wait_in_order() -> None:
    made = hall(inline=2)
    assert made.push([0, 1, 2], [1, 1, 1]) == []
    assert len(made.asked) == 1
    assert made.pull([0]) == []
    assert made.push([0], [5], number=1) == []
    assert made.pull([0]) == []
    assert made.compute() == [
        ("dan", m.Counted(1, new=True)),
        ("dan", m.Values(2, 1, [1])),
        ("dan", m.Counted(3, new=True)),
        ("dan", m.Values(4, 1, [2])),
    ]
    assert [arrays[0].tolist() for arrays in made.arrays if arrays] == [[1], [6]]


def test_a_long_request_that_waited_makes_the_rest_wait_on() -> None:
    made = hall(inline=2)
    made.push([0, 1, 2], [1, 1, 1])
    made.push([0, 1, 2], [1, 1, 1], number=1)
    made.pull([0])
    assert made.compute() == [("dan", m.Counted(1, new=True))]
    assert made.compute() == [("dan", m.Counted(2, new=True)), ("dan", m.Values(3, 1, [2]))]
    assert made.asked == []


def test_a_long_pull_is_computed_elsewhere() -> None:
    made = hall(inline=2)
    made.push([0], [3])
    assert made.pull([0, 1, 2, 3]) == []
    assert made.push([0], [5], number=1) == []  # nobody writes during the read
    said = made.compute()
    assert said == [("dan", m.Values(2, 4, [1])), ("dan", m.Counted(3, new=True))]
    assert made.arrays[0][0].tolist() == [3, 0, 0, 0]


def test_heartbeats_go_on_while_something_is_computed() -> None:
    made = hall(inline=0)
    made.push([0], [1])
    made.now += SECOND
    effects = made.server.handle(made.now, Tick())
    assert Send("coordinator", m.Heartbeat(1, 5)) in effects


def test_a_backlog_that_is_full_asks_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG", 2)
    made = hall(inline=0)
    for number in range(3):
        assert made.push([0], [1], number=number) == []
    assert made.push([0], [1], number=3) == [("dan", m.Busy(4, limits.BUSY_RETRY))]
    made.compute()
    made.compute()
    made.compute()
    assert made.push([0], [1], number=3) == []


def test_what_opens_a_segment_goes_before_the_pushes_that_wait() -> None:
    made = hall(inline=0)
    bob = m.Member("bob", 4, "server", "")
    made.feed(Received("coordinator", view(6, placed(1), members=[*FOLK, bob])))
    made.push([0], [1])
    made.push([0], [1], number=1)
    # A computation is under way.
    assert made.feed(Received("bob", m.Level(1, 6, 4, 1, [1], [0], 1))) == []
    levels = m.Levels(1, 6, 4, [1], [0], [])
    assert made.compute() == [("dan", m.Counted(1, new=True)), ("bob", levels)]
    assert made.compute() == [("dan", m.Counted(2, new=True))]


def test_what_comes_by_a_view_of_later_goes_before_the_others_of_its_kind() -> None:
    backlog = Backlog()
    early = [Received("bob", m.Appended(1, 1, seq)) for seq in (1, 2)]
    early.insert(1, Received("bob", m.Adopted(1, 6, 1, [0])))
    late = [Received("bob", m.Appended(1, 1, 3)), Received("bob", m.Adopted(1, 6, 1, [1]))]
    assert all(backlog.add(one) for one in late) and late[0] in backlog
    backlog.put_back(early)
    assert [backlog.next() for _ in range(len(backlog))] == [early[1], late[1], early[0], early[2], late[0]]


def test_a_view_that_comes_during_a_computation_waits_for_it() -> None:
    made = hall(inline=0)
    made.push([0], [1])
    made.pull([0])
    made.feed(Received("coordinator", view(6, placed(2))))
    assert list(made.server.tables) == [1]  # it is being written
    said = made.compute()
    assert said == [("dan", m.Counted(1, new=True))]
    assert made.compute() == [("dan", m.SegmentsMoved(2, 6))]  # the pull waited behind the view
    assert list(made.server.tables) == [2]


def test_no_memory_in_the_middle_is_an_answer() -> None:
    made = hall(inline=0)
    made.push([0], [1])
    ((_, answer),) = made.compute(error=MemoryError())
    assert isinstance(answer, m.Refusal) and answer.kind == "full"
    made.push([0], [1])
    assert made.compute() == [("dan", m.Counted(2, new=True))]


def test_a_broken_computation_ends_the_server() -> None:
    made = hall(inline=0)
    made.push([0], [1])
    with pytest.raises(ZeroDivisionError):
        made.compute(error=ZeroDivisionError())


def test_what_was_computed_for_a_former_life_comes_back_to_nobody() -> None:
    made = hall(inline=0)
    made.push([0], [1])
    (job,) = made.asked
    made.asked.clear()
    made.feed(Received("coordinator", m.Fence(0, 1)))
    made.feed(Received("coordinator", m.Welcome("token.1", 8, view(9, placed(1)))))
    job.function()
    assert made.feed(Computed(job.token)) == []
    made.compute()  # the table of the new incarnation
    assert made.server.tables[1].primary.facts()[0]["version"] == 0


def test_only_the_coordinator_can_change_what_a_server_believes() -> None:
    made = hall()
    tables = dict(made.server.tables)
    made.feed(Received("mallory", m.Fence(0, 1)))
    made.feed(Received("mallory", m.View(9, 9, 0, [], [])))
    assert made.server.tables == tables
    assert made.server.counts["not from the coordinator"] == 2
