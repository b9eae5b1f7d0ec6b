"""A segment and its copies on several servers: when a push counts, how a copy is filled.

S1-20 to S1-23.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.keys import KeyRange, KeyValues
from shoal.limits import COORDINATOR, SECOND
from shoal.store.server.backup import ArrivingSegment, Backup, BackupEntry
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.replicate import LogEntry, ReplicationLog, packed
from shoal.store.server.segment_state import SegmentState
from shoal.store.server.table_server import FromServer, TableServer
from shoal.store.table.update import Assign, Sum
from shoal.tables import Dense, Each, Sparse, Step, Wire
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send
from shoal.wire.half_precision import shortened

ANN = 9
SERVERS = {"server-0": 1, "server-1": 2, "server-2": 3}
ROWS = 4


def placed(*servers: str, filling: str = "", epoch: int = 1, apply: Step | None = None) -> m.TablePlaces:
    """A table of one segment on these servers."""
    spec = Dense(rows=ROWS, update=Sum(), apply=apply or Each())
    return m.TablePlaces(1, "w", spec, [0], [m.Replicas(epoch, list(servers), filling=filling, since=1)])


@dataclass
class Town:
    """Servers that hold a table; messages between them wait until they are delivered."""

    table: m.TablePlaces
    now: int = 0
    view: int = 1
    holdings: dict[str, TableServer] = field(default_factory=dict)
    post: deque[tuple[str, Send]] = field(default_factory=deque)
    answers: list[m.Message] = field(default_factory=list)  # to clients
    told: list[m.Message] = field(default_factory=list)  # to the coordinator

    def __post_init__(self) -> None:
        for name, incarnation in SERVERS.items():
            table_server = self.holdings[name] = TableServer(name, incarnation, self.table, 1 << 20)
            table_server.set_up(SERVERS, None)
            self.carry_out(name, table_server.apply_placement(self.now, self.table, SERVERS, self.view))
            table_server.set_members({}, {ANN: "ann"})

    def become(self, table: m.TablePlaces) -> None:
        """All servers apply the next view, in which the table is placed like this."""
        self.view += 1
        for name, table_server in self.holdings.items():
            self.carry_out(name, table_server.apply_placement(self.now, table, SERVERS, self.view))

    def push(self, number: int, form: Wire = "float32") -> None:
        """Ann adds 1 to all rows, as her next push or as a slot."""
        own = self.holdings["server-0"].primary
        assert own is not None
        stream = 0 if isinstance(self.table.spec.apply, Step) else -ANN
        facts: dict[str, Any] = {"request": number + 1, "table": 1, "view": self.view, "generation": 0, "count": ROWS}
        facts |= {"incarnation": ANN, "stream": stream, "number": number, "floor": 0, "step": 0, "entered": 0}
        push = m.Push(**facts, spell=0, first=0, last=m.EVERYWHERE, start=0, stop=ROWS, form=form)
        ones = shortened(np.ones(ROWS, np.float32), form)
        assert ones is not None
        self.carry_out("server-0", own.push(self.now, "ann", push, (ones,)))

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

    def deliver(self, *kinds: type[m.Message]) -> None:
        """Deliver messages in flight and their effects; only of these kinds, if named."""
        held: list[tuple[str, Send]] = []
        while self.post:
            sender, send = self.post.popleft()
            if kinds and not isinstance(send.message, kinds):
                held.append((sender, send))
                continue
            assert isinstance(send.message, FromServer)
            outcome = self.holdings[send.to].handle(self.now, sender, send.message, tuple(send.arrays))
            self.carry_out(send.to, outcome)
        self.post.extend(held)

    def counted(self) -> list[int]:
        """Returns the requests that were answered as counted."""
        return [answer.request for answer in self.answers if isinstance(answer, m.Counted)]

    def values(self) -> list[float]:
        """Returns the values of the primary, which a pull would read."""
        own = self.holdings["server-0"].primary
        assert own is not None
        values: list[float] = own.check.read(KeyRange(0, ROWS))[0][-1].tolist()
        return values

    def digests(self) -> set[str]:
        """Returns the digests of all servers that have the segment."""
        ask = m.TableStatusRequest(1, 1, self.view, digests=True)
        told = [table_server.status(ask).digests for table_server in self.holdings.values()]
        return {one[0] for one in told if one}


def test_nothing_is_counted_or_answered_before_all_copies_have_it() -> None:
    town = Town(placed("server-0", "server-1", "server-2"))
    town.push(0)
    late = town.post.pop()
    assert {send.to for _, send in (*town.post, late)} == {"server-1", "server-2"}
    town.deliver()  # one copy has it
    assert not town.counted() and town.values() == [0] * ROWS
    town.post.append(late)
    town.deliver()
    assert town.counted() == [1] and town.values() == [1] * ROWS
    assert len(town.digests()) == 1


def test_copies_get_what_came_shortened_as_it_counts() -> None:
    """Between servers nothing is rounded: a copy adds exactly the numbers that its primary adds."""
    town = Town(placed("server-0", "server-1"))
    town.push(0, form="bfloat16")
    (_, send), *_ = town.post
    assert [(array.dtype, array.tolist()) for array in send.arrays] == [(np.float32, [1.0] * ROWS)]
    town.deliver()
    assert town.counted() == [1] and town.values() == [1] * ROWS and len(town.digests()) == 1


def test_a_step_goes_to_each_copy_once_however_many_slots_it_has() -> None:
    town = Town(placed("server-0", "server-1", "server-2", apply=Step(slots=8)))
    for slot in range(7):
        town.push(slot)
        assert not town.post  # held at the primary: nothing to replicate yet
    town.push(7)
    appends = [(send.to, send.message) for _, send in town.post]
    assert sorted(to for to, _ in appends) == ["server-1", "server-2"]
    for _, append in appends:
        assert isinstance(append, m.Append)
        assert [(change.kind, change.count) for change in append.changes] == [("step", ROWS)]
    town.deliver()
    assert town.counted() == list(range(1, 9)) and town.values() == [8] * ROWS
    assert len(town.digests()) == 1


def test_a_copy_is_filled_while_the_owner_serves_and_then_has_the_changes_since() -> None:
    town = Town(placed("server-0"))
    town.push(0)
    town.become(placed("server-0", filling="server-2"))
    town.push(1)  # nobody waits for a server that is being filled
    assert town.counted() == [1, 2]
    town.deliver()
    assert [type(one) for one in town.told] == [m.BackfillComplete]
    town.push(2)  # from now on it is required, though no view says so yet
    assert town.counted() == [1, 2]
    town.deliver()
    assert town.counted() == [1, 2, 3]
    assert len(town.digests()) == 1


_PUSH = 256 + 4 * ROWS  # bytes of one waiting push


def _resend(town: Town, *kinds: type[m.Message]) -> None:
    """Let time pass until unacknowledged messages are sent again, and deliver them."""
    for _ in range(10):
        town.now += SECOND
        for name, table_server in town.holdings.items():
            town.carry_out(name, table_server.tick(town.now, busy=False))
        town.deliver(*kinds)


def test_what_waits_for_a_copy_has_a_bound_and_who_pushes_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets back-pressure, and nothing is lost.

    It is asked to send again, and every push is counted once when the copy is back.
    """
    monkeypatch.setattr(limits, "COPIES_HELD", 10 * _PUSH)
    town = Town(placed("server-0", "server-1"))
    for number in range(100):  # nothing is delivered
        town.push(number)
    link = town.holdings["server-0"].log.links["server-1"]
    busy = [answer.request for answer in town.answers if isinstance(answer, m.Busy)]
    assert busy == list(range(12, 101))
    assert link.queued_bytes == 11 * _PUSH
    assert all("server-1" in answer.why for answer in town.answers if isinstance(answer, m.Busy))
    for number in range(11, 100):  # it is back: the refused pushes are sent again
        town.deliver()
        town.push(number)
    town.deliver()
    assert town.counted() == list(range(1, 101))
    assert town.values() == [100] * ROWS and len(town.digests()) == 1
    assert link.queued_bytes == 0 and len(town.holdings["server-1"].backups.by_primary["server-0", 1].uncommitted) <= 1


def test_what_a_server_that_is_being_filled_keeps_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image takes long, and pushes go on: beyond the bound they are answered as busy."""
    monkeypatch.setattr(limits, "COPIES_HELD", 10 * _PUSH)
    monkeypatch.setattr(limits, "FILL_BYTES", 1)  # one row per piece
    town = Town(placed("server-0"))
    town.become(placed("server-0", filling="server-2"))
    first = town.post.popleft()
    assert isinstance(first[1].message, m.BackfillPiece)
    slow = [one for one in town.post if isinstance(one[1].message, m.BackfillPiece)]
    town.post = deque([first])
    town.deliver(m.BackfillPiece)
    follow = town.holdings["server-2"].backups.by_primary["server-0", 1]
    assert follow._arriving
    town.post.clear()
    for number in range(100):
        town.push(number)
        town.deliver(m.Append, m.Appended)
        assert follow.waiting_bytes <= 11 * _PUSH
        assert town.holdings["server-0"].log.links["server-2"].queued_bytes <= 11 * _PUSH
    taken = len(town.counted())
    assert taken == 11
    town.post.extend(slow)
    town.deliver()
    _resend(town)
    assert follow.waiting_bytes == 0 and any(isinstance(one, m.BackfillComplete) for one in town.told)
    for number in range(taken, 100):
        town.push(number)
        town.deliver()
    assert town.counted() == list(range(1, 101))
    assert town.values() == [100] * ROWS and len(town.digests()) == 1


def test_changes_that_an_image_has_are_not_kept_for_it() -> None:
    town = Town(placed("server-0"))
    town.become(placed("server-0", filling="server-2"))
    fills = [one for one in town.post if isinstance(one[1].message, m.BackfillPiece)]
    town.post.clear()
    follow = town.holdings["server-2"].backups.backup_for("server-0")
    late = [BackupEntry(m.ReplicatedChange(seq, "push"), None, (0,)) for seq in (0, 1, 2)]
    follow._waiting = list(late)
    town.post.extend(fills)
    message = fills[0][1].message
    assert isinstance(message, m.BackfillPiece) and message.seq == 0
    follow._arriving[0] = ArrivingSegment(0, 2)
    follow._trim_waiting()
    assert follow._waiting == late[1:] and follow.waiting_bytes == 2 * 256
    del follow._arriving[0]
    town.deliver()
    assert not follow._waiting


def test_a_piece_that_was_cut_short_on_its_way_is_not_acknowledged_and_comes_again() -> None:
    town = Town(placed("server-0"))
    town.become(placed("server-0", filling="server-2"))
    (sender, fill) = town.post.popleft()
    assert isinstance(fill.message, m.BackfillPiece)
    for size in range(ROWS):
        cut = fill.arrays[-1][:size]
        town.carry_out("server-2", town.holdings["server-2"].handle(town.now, sender, fill.message, (cut,)))
        assert not town.post
    town.carry_out("server-2", town.holdings["server-2"].handle(town.now, sender, fill.message, tuple(fill.arrays)))
    assert [type(send.message) for _, send in town.post] == [m.BackfillReceived]


def test_a_table_that_one_first_hears_of_while_a_copy_is_to_be_filled_is_filled_there() -> None:
    town = Town(placed("server-0", filling="server-2"))
    assert [type(send.message) for _, send in town.post] == [m.BackfillPiece]
    town.deliver()
    assert any(isinstance(one, m.BackfillComplete) for one in town.told)


def test_a_fill_is_over_when_the_set_changes() -> None:
    town = Town(placed("server-0"))
    town.become(placed("server-0", filling="server-2", epoch=2))
    # Not what a coordinator would do, but enough for this test.
    town.become(placed("server-0", "server-1", epoch=3))
    town.deliver(m.BackfillPiece, m.BackfillReceived)
    assert not town.told
    assert town.holdings["server-2"].status(m.TableStatusRequest(1, 1, town.view)).facts["copies"] == 0


def test_the_coordinator_hears_of_a_copy_when_it_has_all_that_was_counted() -> None:
    """Otherwise it could be promoted without an acknowledged push if the primary dies now (P1)."""
    town = Town(placed("server-0"))
    town.become(placed("server-0", filling="server-2"))
    town.push(0)
    assert town.counted() == [1]
    # The change is late: it was lost, or more than four are ahead of it.
    town.deliver(m.BackfillPiece, m.BackfillReceived)
    assert not town.told
    town.deliver()
    assert [type(one) for one in town.told] == [m.BackfillComplete]


MANY, ONE = np.arange(20, dtype=np.uint64), np.array([3], np.uint64)


def copy_and_changes() -> tuple[Backup, list[tuple[m.ReplicatedChange, KeyValues]]]:
    """Returns a copy that computes little inline, and two changes.

    The first takes long, and the second overwrites a part of it.
    """
    spec = Sparse(keys=100, update=Assign())
    follow = Backup(1, spec, "server-0", 1, lambda segment: KeyRange(0, 100), inline=4)
    follow.begin(SegmentState(1, spec, [(0, KeyRange(0, 100))]))
    given = [KeyValues(MANY, np.ones((20, 1), np.float32)), KeyValues(ONE, np.full((1, 1), 2, np.float32))]
    return follow, [
        (m.ReplicatedChange(seq + 1, "push", stream=-ANN, number=seq), rows) for seq, rows in enumerate(given)
    ]


def append(follow: Backup, changes: list[tuple[m.ReplicatedChange, KeyValues]]) -> HandlerResult:
    sent, arrays = packed(changes)
    return follow.append("server-0", m.Append(1, 1, 1, 1, [0], 0, 0, sent), tuple(arrays))


def done(follow: Backup, outcome: HandlerResult) -> None:
    """Both changes are made in order, by one computation.

    Everything else that waits for it waits once.
    """
    (work,) = outcome.computations
    work.function()
    assert work.then(0) == HandlerResult()
    assert follow.state is not None and follow.state.table.pull(ONE).item() == 2
    assert follow.state.version.tolist() == [2]


def test_a_copy_makes_changes_in_the_order_of_the_log_also_if_the_first_takes_long() -> None:
    """A long change runs on another thread: the next one must not be made before it."""
    follow, changes = copy_and_changes()
    done(follow, append(follow, changes))


def test_a_copy_makes_changes_in_the_order_of_the_log_also_if_the_second_came_first() -> None:
    follow, changes = copy_and_changes()
    assert not append(follow, changes[1:]).computations
    done(follow, append(follow, changes[:1]))


def test_a_push_that_came_in_two_parts_of_which_one_went_elsewhere_is_made() -> None:
    """The part that is left is made.

    The other part stays in the log without segments, and nothing waits for it.
    """
    log = ReplicationLog(1, 1)
    for segments in ([True, False], [False, True]):
        change = m.ReplicatedChange(0, "push", stream=0, number=7)
        log.append(0, LogEntry(change, None, np.array(segments)), [KeyRange(0, 4), KeyRange(4, 8)], [0, 1])
    log.remap_segments([0, -1], 1, [KeyRange(0, 4), KeyRange(4, 8)])
    assert log.pending(0, 7) is not None
    while (entry := log.pop_ready()) is not None:
        log.mark_applied(entry)
    assert log.applied == log.seq == 2 and log.pending(0, 7) is None
