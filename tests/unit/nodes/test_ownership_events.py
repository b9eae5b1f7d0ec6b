"""Who holds how many parts is told whenever it has changed, and not otherwise."""

from __future__ import annotations

import msgspec

from shoal.events import Shared
from shoal.nodes.ownership_events import OwnershipEvents
from shoal.tables import Dense
from shoal.wire import messages as m
from shoal.wire.effects import Tell
from tests.support.fake_run import dealing


def view(*places: list[str], servers: tuple[str, ...] = ("a", "b")) -> m.View:
    members = [m.Member(name, number + 1, "server", "") for number, name in enumerate(servers)]
    members.append(m.Member("worker-0", 9, "worker", ""))
    table = m.TablePlaces(
        1, "weights", Dense(rows=60), list(range(len(places))), [m.Replicas(1, one) for one in places]
    )
    return m.View(1, 1, 0, members, [table] if places else [])


def test_parts_and_copies_are_told_by_server_once_for_each_change() -> None:
    holders, run = OwnershipEvents(), dealing()
    assert holders.told(view(), run) == []  # no table yet
    two = view(["a", "b"], ["b"], ["a", "b"])
    assert holders.told(two, run) == [Tell(Shared(seconds=0.0, serves={"a": 2, "b": 1}, copies={"a": 0, "b": 2}))]
    assert holders.told(msgspec.structs.replace(two, number=7), run) == []
    (told,) = holders.told(view(["a", "b"], ["b"], [], servers=("a", "b", "c")), run)
    assert isinstance(told, Tell) and isinstance(told.event, Shared)
    assert told.event.serves == {"a": 1, "b": 1, "c": 0}  # a part that nobody has is nobody's; a newcomer has none


def test_of_a_store_and_of_a_run_that_is_over_nothing_is_told() -> None:
    run = dealing()
    assert OwnershipEvents().told(view(["a"], ["b"]), None) == []
    run.failed = "somebody ended it"
    assert OwnershipEvents().told(view(["a"], ["b"]), run) == []


def test_parts_of_a_groups_tables_are_not_the_runs() -> None:
    ours, run = view(["a"], ["b"]), dealing()
    theirs = msgspec.structs.replace(ours.tables[0], number=2, name="b/weights")
    (told,) = OwnershipEvents().told(msgspec.structs.replace(ours, tables=[*ours.tables, theirs]), run)
    assert told == Tell(Shared(seconds=0.0, serves={"a": 1, "b": 1}, copies={"a": 0, "b": 0}))
