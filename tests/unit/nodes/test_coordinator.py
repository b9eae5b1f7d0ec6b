"""Drives the coordinator by hand: hello, silence, tables, and a journal that outlives it."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal import limits
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes import membership_journal
from shoal.nodes.coordinator import Coordinator
from shoal.tables import Dense, Table, Update
from shoal.timing import DEFAULT
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Durable, Effect, Persist, ProcessEnd, Received, Send, Tick, Wake
from shoal.wire.messages.groups import Allow, GroupLimits


@dataclass
class Office:
    """A coordinator, its messages, and a disk that writes at once or never."""

    coordinator: Coordinator = field(default_factory=Coordinator)
    now: int = 100 * SECOND
    journal: list[bytes] = field(default_factory=list)
    disk_error: str | None = ""  # None: the disk never answers

    def feed(self, *events: object) -> list[tuple[str, m.Message]]:
        said: list[tuple[str, m.Message]] = []
        queue = list(events)
        while queue:
            for effect in self.coordinator.handle(self.now, queue.pop(0)):
                said += self._carry_out(effect, queue)
        return said

    def _carry_out(self, effect: Effect, queue: list[object]) -> list[tuple[str, m.Message]]:
        match effect:
            case Send(to, message):
                return [(to, message)]
            case Persist(token, record) if self.disk_error is not None:
                if not self.disk_error:
                    self.journal.append(record)
                queue.append(Durable(token, self.disk_error))
            case Wake(at):
                assert at == self.now + DEFAULT.heartbeat
        return []

    def say(self, sender: str, message: m.Message) -> list[tuple[str, m.Message]]:
        return self.feed(Received(sender, message))

    def join(self, name: str, role: str = "server", token: str = "") -> m.Welcome:
        said = self.say(name, m.Hello(name, role, token or f"{name}.0", f"memory:{name}"))
        return next(message for to, message in said if to == name and isinstance(message, m.Welcome))

    def beat(self, name: str, incarnation: int, view: int | None = None) -> list[tuple[str, m.Message]]:
        shown = self.coordinator.roster.number if view is None else view
        return self.say(name, m.Heartbeat(incarnation, shown))

    def wait(self, nanoseconds: int, *beating: tuple[str, int]) -> list[tuple[str, m.Message]]:
        """Let time pass as a loop would; only these members send heartbeats."""
        said = []
        until = self.now + nanoseconds
        while self.now < until:
            self.now = min(until, self.now + DEFAULT.heartbeat)
            for name, incarnation in beating:
                said += self.beat(name, incarnation)
            said += self.feed(Tick())
        return said

    def create(self, request: int, name: str = "w", spec: Table | None = None) -> list[tuple[str, m.Message]]:
        return self.say("ann", m.Create(request, name, spec or Dense(rows=8)))

    @property
    def members(self) -> list[str]:
        """The members of the announced view."""
        return [member.name for member in self.coordinator.view.members]

    def restart(self) -> Office:
        """Kill the coordinator, and start another from what is on disk."""
        return Office(Coordinator(journal=self.journal), self.now + 5 * SECOND, list(self.journal))


def answers(said: list[tuple[str, m.Message]], to: str = "ann") -> list[m.Message]:
    """Returns the messages to one node, without views and heartbeat answers."""
    return [message for name, message in said if name == to and not isinstance(message, m.View | m.Alive)]


# ---------------------------------------------------------------- members


def test_hello_is_answered_with_an_incarnation_and_the_view() -> None:
    office = Office()
    welcome = office.join("ann")
    assert (welcome.token, welcome.incarnation) == ("ann.0", 1)
    assert [member.name for member in welcome.view.members] == ["ann"]
    assert office.join("bob", "worker").incarnation == 2
    assert office.members == ["ann", "bob"]


def test_a_hello_that_is_sent_again_has_the_same_answer() -> None:
    office = Office()
    first = office.join("ann")
    again = office.join("ann")
    assert again.incarnation == first.incarnation
    assert len(office.journal) == 1
    assert office.coordinator.roster.number == 1


def test_nobody_is_welcome_before_the_incarnation_is_on_disk() -> None:
    office = Office(disk_error=None)
    hello = m.Hello("ann", "server", "ann.0", "memory:ann")
    (persist,) = [
        one for one in office.coordinator.handle(office.now, Received("ann", hello)) if isinstance(one, Persist)
    ]
    assert office.say("ann", hello) == []  # a repeat: the first is still being written
    assert office.members == []
    ((to, message), *_) = office.feed(Durable(persist.token))
    assert to == "ann" and isinstance(message, m.Welcome)
    assert office.feed(Durable(persist.token)) == []  # reported twice


def test_a_disk_that_is_full_refuses_newcomers_and_nobody_else() -> None:
    office = Office()
    office.join("ann")
    office.disk_error = "no space left on device"
    ((to, message),) = office.say("bob", m.Hello("bob", "worker", "bob.0"))
    assert to == "bob" and isinstance(message, m.Refusal) and "no space left" in message.reason
    assert office.members == ["ann"]
    office.disk_error = ""
    office.now += SECOND  # the journal is tried again every second
    assert office.join("bob", "worker").incarnation == 3  # 2 may be on disk


def test_incarnations_never_repeat_not_even_after_a_restart() -> None:
    office, seen = Office(), []
    for life in range(4):
        seen += [office.join(name, "worker", f"{life}").incarnation for name in ("ann", "bob", "ann")]
        seen.append(office.join("ann", "worker", f"{life} again").incarnation)
        office = Office(Coordinator(journal=office.journal), journal=office.journal)
    assert len(set(seen)) == 4 * 3  # ann's second hello of each life was a repeat
    assert sorted(set(seen)) == list(dict.fromkeys(seen))


def test_every_life_of_the_coordinator_has_its_own_term() -> None:
    office = Office()
    assert office.join("ann").view.term == 1
    for term in (2, 3, 4):
        office = office.restart()
        office.feed(Tick())
        assert office.coordinator.view.term == term
    office = office.restart()  # this one was killed before it did anything at all
    office = office.restart()
    # The view on disk is announced; its next term is not on disk yet.
    assert office.join("ann").view.term == 4
    assert office.coordinator.view.term == 5


def test_a_name_that_is_not_the_senders_is_refused() -> None:
    ((to, message),) = Office().say("mallory", m.Hello("ann", "server", "t"))
    assert to == "mallory" and isinstance(message, m.Refusal) and "your name is 'mallory'" in message.reason


def test_a_role_that_is_none_is_refused() -> None:
    ((_, message),) = Office().say("ann", m.Hello("ann", "king", "t"))
    assert isinstance(message, m.Refusal) and message.request == 0


def test_every_member_is_told_of_every_change() -> None:
    office = Office()
    office.join("ann")
    said = office.say("bob", m.Hello("bob", "worker", "bob.0"))
    views = [(to, message.number) for to, message in said if isinstance(message, m.View)]
    assert views == [("ann", 2), ("bob", 2)]


def test_a_second_process_of_the_same_name_fences_the_first() -> None:
    office = Office()
    first = office.join("ann", "worker", "one")
    second = office.join("ann", "worker", "two")
    assert second.incarnation > first.incarnation
    assert office.beat("ann", first.incarnation) == [("ann", m.Fence(0, first.incarnation))]
    assert office.say("ann", m.Hello("ann", "worker", "one")) == [("ann", m.IncarnationOver("one"))]
    assert office.coordinator.roster.members["ann"].member.incarnation == second.incarnation


def test_a_late_hello_of_a_dead_process_does_not_shut_the_living_one_out() -> None:
    office = Office()
    office.join("ann", "worker", "old.0")
    office.join("ann", "worker", "new.0")
    office.join("ann", "worker", "late.0")  # sent between the two, by a process that is dead now
    # Wait: is the other process alive?
    assert answers(office.say("ann", m.Hello("ann", "worker", "new.1", ""))) == []
    office.wait(DEFAULT.suspect)
    assert office.join("ann", "worker", "new.1").token == "new.1"


def test_of_two_living_processes_of_a_name_the_first_is_refused() -> None:
    office = Office()
    office.join("ann", "worker", "first.0")
    second = office.join("ann", "worker", "second.0").incarnation
    office.beat("ann", second)
    (refused,) = answers(office.say("ann", m.Hello("ann", "worker", "first.1", "")))
    assert isinstance(refused, m.Refusal) and "has taken the name" in refused.reason


def test_a_heartbeat_is_answered_with_what_the_sender_lacks() -> None:
    office = Office()
    office.join("ann")
    assert office.beat("ann", 1, view=1) == [("ann", m.Alive(1, 1))]
    ((_, message),) = office.beat("ann", 1, view=0)
    assert isinstance(message, m.View) and message.number == 1


def test_a_stranger_that_sends_heartbeats_is_fenced() -> None:
    assert Office().beat("ann", 9) == [("ann", m.Fence(0, 9))]


def test_the_silent_are_removed_and_the_others_told() -> None:
    office = Office()
    office.join("ann")
    office.join("eve", "worker")
    office.wait(DEFAULT.dead - MILLISECOND, ("ann", 1))
    assert office.members == ["ann", "eve"]
    said = office.wait(MILLISECOND, ("ann", 1))
    assert office.members == ["ann"]
    assert [message.number for to, message in said if to == "ann" and isinstance(message, m.View)] == [3]
    assert office.beat("eve", 2) == [("eve", m.Fence(0, 2))]


def test_a_server_that_alone_holds_segments_is_kept_however_long_it_is_silent() -> None:
    office = Office()
    office.join("ann")
    office.join("bob")
    office.create(1, spec=Dense(rows=64))
    office.wait(60 * SECOND)
    assert office.members == ["ann", "bob"]
    office.beat("ann", 1)
    office.beat("bob", 2)
    office.say("ann", m.Drop(2, "w"))
    office.wait(60 * SECOND, ("ann", 1))
    assert office.members == ["ann"]


def test_a_coordinator_that_was_cut_off_removes_nobody_because_of_the_last_word_of_one_that_is_dead() -> None:
    """For six seconds the coordinator receives only one late message from ann, which is dead.

    bob and cat are alive, and must not be removed as dead.
    """
    office = Office(Coordinator(copies=3))
    for name in ("ann", "bob", "cat"):
        office.join(name)
    office.create(1, spec=Dense(rows=64))
    office.wait(SECOND, ("ann", 1), ("bob", 2), ("cat", 3))
    office.wait(3 * SECOND)
    office.beat("ann", 1)  # this message was delayed for a long time
    office.wait(3 * SECOND)
    office.beat("cat", 3)
    assert office.members == ["ann", "bob", "cat"]
    office.beat("bob", 2)
    office.wait(DEFAULT.dead, ("bob", 2), ("cat", 3))
    assert office.members == ["bob", "cat"]  # ann is removed in the end
    assert not office.coordinator.roster.assignment.has_lost()


def test_a_coordinator_that_slept_blames_nobody() -> None:
    office = Office()
    office.join("ann")
    office.join("eve", "worker")
    office.wait(2 * SECOND)  # eve has been silent for two seconds
    office.now += 3_600 * SECOND
    office.feed(Tick())
    assert office.members == ["ann", "eve"]
    office.wait(DEFAULT.dead - 2 * SECOND - MILLISECOND)
    assert office.members == ["ann", "eve"]
    office.wait(MILLISECOND)  # but silence before and after the sleep counts
    assert office.members == []


def test_who_leaves_is_gone_at_once_and_only_in_its_own_name() -> None:
    office = Office()
    office.join("ann")
    office.join("eve", "worker")
    office.say("ann", m.Leave(2))
    office.say("eve", m.Leave(1))
    assert office.members == ["ann", "eve"]
    office.say("eve", m.Leave(2))
    assert office.members == ["ann"]


def test_a_process_that_was_seen_to_end_is_removed_even_if_it_held_segments() -> None:
    office = Office()
    office.join("ann")
    office.create(1)
    office.feed(ProcessEnd("nobody", "who?"))
    office.feed(ProcessEnd("ann", "killed by signal 9"))
    assert office.members == []
    assert office.coordinator.roster.lost["ann"] == "killed by signal 9"
    assert all(place.servers == [] for place in office.coordinator.roster.tables["w"].places)


def test_a_refresh_is_answered_with_the_view_first() -> None:
    office = Office()
    office.join("ann")
    (_, view), (_, done) = office.say("ann", m.Refresh(4))
    assert isinstance(view, m.View) and done == m.Done(4)


def test_a_message_that_makes_no_sense_here_is_counted() -> None:
    office = Office()
    assert office.say("ann", m.Counted(1, new=True)) == []
    assert office.coordinator.counts["unexpected"] == 1


# ---------------------------------------------------------------- tables


def test_create_is_answered_when_every_server_has_shown_the_view() -> None:
    office = Office()
    office.join("ann")
    office.join("bob")
    office.join("eve", "worker")
    assert answers(office.create(1)) == []
    view = office.coordinator.roster.number
    assert answers(office.beat("ann", 1)) == []
    assert answers(office.beat("bob", 2, view=view - 1)) == []
    said = office.beat("bob", 2)  # nobody waits for eve
    assert answers(said) == [m.Done(1)]
    views = [message for to, message in said if to == "ann" and isinstance(message, m.View)]
    assert [table.name for table in views[0].tables] == ["w"]


def test_a_create_that_is_sent_again_is_not_done_twice() -> None:
    office = Office()
    office.join("ann")
    office.create(1)
    assert answers(office.create(1)) == [m.RequestHeld(1, "ann")]  # it waits for ann
    office.beat("ann", 1)
    assert answers(office.create(1)) == [m.Done(1)]
    assert office.coordinator.roster.tables_made == 1
    (answer,) = answers(office.create(2))
    assert isinstance(answer, m.Refusal) and "exists already" in answer.reason


def test_a_create_that_cannot_be_is_answered_at_once() -> None:
    office = Office()
    (answer,) = answers(office.create(1))
    assert isinstance(answer, m.Refusal) and "only a member" in answer.reason
    office.join("ann", "client")
    (answer,) = answers(office.create(1))
    assert isinstance(answer, m.Refusal) and "no server has joined" in answer.reason
    office.join("bob")
    assert answers(office.create(1)) == [answer]  # a repeated request gets the same answer
    assert answers(office.create(2)) == []


def test_a_server_that_dies_is_not_waited_for() -> None:
    office = Office()
    office.join("ann")
    office.join("bob")
    office.create(1)
    office.beat("ann", 1)
    assert answers(office.feed(ProcessEnd("bob", "killed"))) == [m.Done(1)]


def test_a_table_that_a_server_cannot_set_up_is_dropped_and_the_reason_told() -> None:
    office = Office()
    office.join("ann")
    office.join("bob")
    office.create(1, spec=Dense(rows=64, update=Update("mine")))
    number = office.coordinator.roster.tables["w"].number
    office.beat("bob", 2)
    shown = office.coordinator.roster.number
    said = office.say("ann", m.Heartbeat(1, shown, {number: "ann: no update 'mine' here"}))
    assert office.coordinator.roster.tables == {}
    assert answers(said) == []  # no answer until every server has forgotten the table
    office.beat("bob", 2)
    assert answers(office.beat("ann", 1)) == [m.Refusal(1, "table", "ann: no update 'mine' here")]
    assert answers(office.create(2)) == []  # the name is free again


def test_a_failure_of_a_table_that_is_settled_undoes_nothing() -> None:
    office = Office()
    office.join("ann")
    office.create(1)
    office.beat("ann", 1)
    office.say("ann", m.Heartbeat(1, office.coordinator.roster.number, {1: "late", 77: "who?"}))
    assert list(office.coordinator.roster.tables) == ["w"]


def test_drop_and_delay_are_settled_like_create() -> None:
    office = Office()
    office.join("ann")
    office.create(1)
    office.beat("ann", 1)
    assert answers(office.say("ann", m.Delay(2, "w", 4))) == []
    assert answers(office.beat("ann", 1)) == [m.Done(2)]
    assert office.coordinator.roster.tables["w"].spec.max_delay == 4
    assert answers(office.say("ann", m.Drop(3, "w"))) == []
    assert answers(office.beat("ann", 1)) == [m.Done(3)]
    (answer,) = answers(office.say("ann", m.Drop(4, "w")))
    assert isinstance(answer, m.Refusal)


def test_answers_are_remembered_but_not_for_ever() -> None:
    office = Office()
    for request in range(limits.MEMBERS + 50):
        office.say("ann", m.Drop(request, "w"))
    assert len(office.coordinator.table_admin._answered) <= limits.MEMBERS


# ---------------------------------------------------------------- the journal outlives it (F14)


def with_all() -> Office:
    """Returns an office with two servers, a worker, a removed client and a table."""
    office = Office()
    for name, role in (("ann", "server"), ("bob", "server"), ("eve", "worker"), ("tom", "client")):
        office.join(name, role)
    office.create(1, spec=Dense(rows=64))
    office.beat("ann", 1)
    office.beat("bob", 2)
    office.say("tom", m.Leave(4))
    return office


def test_after_a_restart_there_are_the_same_members_and_tables_under_the_next_term() -> None:
    office = with_all()
    before, after = office.coordinator.view, office.restart()
    said = after.feed(Tick())
    view = after.coordinator.view
    assert (view.term, view.number, view.generation) == (2, before.number + 1, before.generation)
    assert (view.members, view.tables) == (before.members, before.tables)
    assert said == [(member.name, view) for member in view.members]  # sent once it was on disk
    assert after.join("new", "worker").incarnation == 5


def test_members_of_the_former_term_go_on_as_who_they_are_and_strangers_are_fenced() -> None:
    office = with_all().restart()
    office.feed(Tick())
    view = office.coordinator.view
    assert office.beat("ann", 1, view.number - 1) == [("ann", view)]
    assert office.beat("ann", 1) == [("ann", m.Alive(2, view.number))]
    assert office.beat("tom", 4) == [("tom", m.Fence(0, 4))]
    assert office.say("tom", m.Hello("tom", "client", "tom.0")) == [("tom", m.IncarnationOver("tom.0"))]
    (again,) = office.say("eve", m.Hello("eve", "worker", "eve.0"))
    assert again == ("eve", m.Welcome("eve.0", 3, view))


def test_nobody_is_blamed_for_what_was_not_heard_while_there_was_no_coordinator() -> None:
    office = with_all().restart()
    office.now += 3_600 * SECOND
    office.feed(Tick())
    office.wait(DEFAULT.dead - MILLISECOND, ("ann", 1), ("bob", 2))
    assert office.members == ["ann", "bob", "eve"]
    office.wait(MILLISECOND, ("ann", 1), ("bob", 2))
    assert office.members == ["ann", "bob"]


def test_a_change_is_on_disk_before_anybody_hears_of_it() -> None:
    office = with_all()
    office.disk_error = None  # it never answers
    before = office.coordinator.view
    assert office.feed(ProcessEnd("eve", "killed")) == []
    assert office.coordinator.view is before
    # Not fenced: the removal is not on disk yet, so a restart may forget it.
    assert office.beat("eve", 3) == []
    assert office.beat("ann", 1, before.number) == [("ann", m.Alive(1, before.number))]
    (shown, _) = office.say("ann", m.Refresh(9))
    assert shown == ("ann", before)
    assert "eve" in [member.name for member in office.restart().coordinator.view.members]


def test_what_changes_while_a_record_is_written_goes_out_together_with_the_next() -> None:
    office = with_all()
    office.disk_error = None
    effects = office.coordinator.handle(office.now, ProcessEnd("eve", "killed"))
    (persist,) = [one for one in effects if isinstance(one, Persist)]
    for name in ("one", "two"):
        assert office.say(name, m.Hello(name, "worker", f"{name}.0")) == []
    office.disk_error, lines = "", len(office.journal)
    said = office.feed(Durable(persist.token))
    assert len(office.journal) == lines + 1
    numbers = [message.number for to, message in said if to == "ann" and isinstance(message, m.View)]
    assert len(numbers) == 2 and numbers == sorted(numbers)
    assert office.members == ["ann", "bob", "one", "two"]


def test_a_full_disk_is_tried_again_every_second_and_nothing_is_announced_until_then() -> None:
    office = with_all()
    office.disk_error = "no space left on device"
    lines = len(office.journal)
    office.feed(ProcessEnd("eve", "killed"))
    said = office.say("new", m.Hello("new", "worker", "new.0"))
    said += office.wait(2 * SECOND, ("ann", 1), ("bob", 2))
    assert {message.reason for to, message in said if to == "new" and isinstance(message, m.Refusal)} == {
        "the journal cannot be written: no space left on device"
    }
    said = answers(office.create(7, "v")) + answers(office.wait(2 * SECOND, ("ann", 1), ("bob", 2)))
    assert said == [m.Refusal(7, "full", "the journal cannot be written: no space left on device")]
    assert (office.members, len(office.journal)) == (["ann", "bob", "eve"], lines)
    office.disk_error = ""
    office.wait(2 * SECOND, ("ann", 1), ("bob", 2))
    assert office.members == ["ann", "bob"]
    assert list(office.coordinator.roster.tables) == ["w"]
    assert office.join("new", "worker").view.tables


def test_a_change_of_tables_that_is_sent_again_to_the_next_life_is_done_once() -> None:
    office = with_all()
    office.say("ann", m.Delay(2, "w", 4))
    office = office.restart()
    office.feed(Tick())
    assert answers(office.create(1, spec=Dense(rows=64)) + office.say("ann", m.Delay(2, "w", 4))) == []
    office.beat("bob", 2)
    assert answers(office.beat("ann", 1)) == [m.Done(1), m.Done(2)]
    assert office.coordinator.roster.tables_made == 1
    (answer,) = answers(office.create(3, spec=Dense(rows=64)))  # another request is not a repeat
    assert isinstance(answer, m.Refusal) and "exists already" in answer.reason


def test_a_table_of_a_former_life_that_is_asked_for_again_stays_though_the_disk_is_full_now() -> None:
    office = with_all()
    office = office.restart()
    office.disk_error = "no space left on device"
    office.feed(Tick())
    said = answers(office.create(1, spec=Dense(rows=64)) + office.wait(2 * SECOND, ("ann", 1), ("bob", 2)))
    assert list(office.coordinator.roster.tables) == ["w"]
    office.disk_error = ""
    said += answers(office.wait(2 * SECOND, ("ann", 1), ("bob", 2)))
    assert said == [m.Done(1)]
    assert [placed.name for placed in office.coordinator.view.tables] == ["w"]


def test_a_drop_that_is_sent_again_to_the_next_life_is_done() -> None:
    office = with_all()
    office.say("ann", m.Drop(2, "w"))
    office = office.restart()
    office.feed(Tick())
    office.beat("bob", 2)
    assert answers(office.say("ann", m.Drop(2, "w"))) == []
    assert answers(office.beat("ann", 1)) == [m.Done(2)]


def test_an_end_that_is_told_late_ends_the_life_it_is_about_and_no_other() -> None:
    office = with_all()
    office.feed(ProcessEnd("eve", "killed", "eve"))
    office.join("eve", "worker", "other.0")
    office = office.restart()
    office.feed(ProcessEnd("eve", "killed", "eve"))  # the launcher repeats its report
    assert "eve" in office.members
    office.feed(ProcessEnd("eve", "killed again", "other"))
    assert "eve" not in office.members


def test_a_journal_is_replayed_from_its_last_record_alone() -> None:
    office = with_all()
    assert len(office.journal) > 3
    short = membership_journal.needed(office.journal)
    assert len(short) == 1
    assert Coordinator(journal=short).view == office.coordinator.view


def test_a_new_cluster_takes_the_counters_of_the_old_one_and_nobody_of_it() -> None:
    office = with_all()
    new = Office(Coordinator(journal=membership_journal.afresh(office.journal)))
    new.feed(Tick())
    assert (new.members, new.coordinator.view.tables, new.coordinator.view.term) == ([], [], 2)
    assert new.join("ann", token="another").incarnation == 5
    assert membership_journal.afresh([]) == []


def test_whatever_was_on_disk_when_it_was_killed_no_incarnation_that_was_told_is_given_again() -> None:
    """A welcome is sent after its incarnation is on disk.

    With the records up to there no other node gets the same number.
    """
    office, told = Office(), []
    for number in range(5):
        welcome = office.join(f"worker-{number}", "worker")
        told.append((welcome.incarnation, list(office.journal)))
    for incarnation, journal in told:
        assert Office(Coordinator(journal=journal)).join("late", "worker").incarnation > incarnation


def test_anyone_may_look_at_how_it_stands() -> None:
    office = with_all()
    office.now += SECOND
    ((_, answer),) = office.say("stranger", m.StatusRequest(5))
    assert isinstance(answer, m.StatusReply)
    assert (answer.request, answer.term, answer.view) == (5, 1, office.coordinator.view.number)
    assert [(one.name, one.role, one.incarnation, one.silence) for one in answer.members] == [
        ("ann", "server", 1, SECOND),
        ("bob", "server", 2, SECOND),
        ("eve", "worker", 3, SECOND),
    ]
    assert answer.course is None and answer.lost == {}


def test_only_a_server_says_that_it_cannot_set_a_table_up() -> None:
    office = Office()
    office.join("ann", "client")
    office.join("bob", "worker")
    office.join("server-0")
    office.create(1)
    shown = office.coordinator.roster.number
    office.say("bob", m.Heartbeat(2, shown, {1: "I say so"}))
    said = office.beat("server-0", 3)
    assert ("ann", m.Done(1)) in said and "w" in office.coordinator.roster.tables


def test_a_hello_has_an_end() -> None:
    office = Office()
    for hello in (
        m.Hello("ann", "client", "t" * 100_000),
        m.Hello("ann", "client", "t", group="g" * 100_000),
        m.Hello("ann", "server", "t", "tcp://127.0.0.1" + "1" * 100_000),
    ):
        ((to, no),) = office.say("ann", hello)
        assert to == "ann" and isinstance(no, m.Refusal)
    assert not office.coordinator.roster.members


def test_whose_key_was_revoked_is_gone_at_once_and_the_reason_is_kept() -> None:
    office = Office()
    office.join("ann")
    office.join("bob")
    office.say("bob", m.Refusal(0, "key", "its key was revoked"))
    assert list(office.coordinator.roster.members) == ["ann"]
    assert office.coordinator.roster.lost["bob"] == "its key was revoked"


def test_what_groups_may_read_never_keeps_a_view_from_being_told() -> None:
    office = Office()
    office.join("ann", "client")
    long = [f"{'g' * 28}{i:03d}" for i in range(limits.GROUPS)]
    answers = [
        office.say("ann", Allow(i, GroupLimits(f"{'b' * 20}{i}", reads=long))) for i in range(1, limits.GROUPS + 1)
    ]
    assert all(said for said in answers)
    assert len(coding.encode(office.coordinator.roster.view())) < limits.HEADER_BYTES
