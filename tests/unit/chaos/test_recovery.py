"""Views show when a fault has healed."""

from __future__ import annotations

from shoal.chaos.plan import COORDINATOR, ChaosFault
from shoal.chaos.recovery import FaultyNode, look, states
from shoal.tables import Dense
from shoal.wire import messages as m


def view(number: int, members: dict[str, int], *places: m.Replicas) -> m.View:
    people = [m.Member(name, incarnation, name.rpartition("-")[0], "") for name, incarnation in members.items()]
    table = m.TablePlaces(1, "tally", Dense(rows=8), [0, 4][: len(places)], list(places))
    return m.View(1, number, 0, people, [table])


def standing(*suspected: str) -> m.StatusReply:
    seen = [m.MemberStatus(name, "server", 1, 1, 0, True) for name in suspected]
    return m.StatusReply(1, 1, 1, 0, 2, seen, {}, None, "", {})


UP = {"server-0": 1, "server-1": 2, "server-2": 3}
WHOLE = (m.Replicas(1, ["server-0", "server-1"]), m.Replicas(1, ["server-1", "server-2"]))


def test_a_killed_server_is_seen_dead_then_pushes_count_then_copies_are_full() -> None:
    patient = FaultyNode(ChaosFault("kill", "server-1"), at=10.0, incarnation=2, owned=1, probe=False)
    assert look(patient, 10.2, view(5, UP, *WHOLE), 2, asked=10.1) == []
    without = {name: number for name, number in UP.items() if name != "server-1"}
    shrunk = (m.Replicas(6, ["server-0"], filling="server-2"), m.Replicas(6, ["server-2"], filling="server-0"))
    assert "after 0.5 s" in look(patient, 10.5, view(6, without, *shrunk), 2, asked=10.4)[0]
    patient.probe = True
    patient.saw("promoted", 10.6)
    look(patient, 11.0, view(7, without | {"server-1": 9}, *shrunk), 2, asked=10.9)
    assert not patient.is_well
    filled = (m.Replicas(8, ["server-0", "server-2"]), m.Replicas(8, ["server-2", "server-0"]))
    look(patient, 12.0, view(8, without | {"server-1": 9}, *filled), 2, asked=11.9)
    assert patient.is_well
    healed = patient.healed()
    assert (healed.detected, healed.promoted, healed.back, healed.full) == (0.5, 0.6, 1.0, 2.0)


def test_a_view_that_was_asked_for_before_the_fault_says_nothing_of_it() -> None:
    patient = FaultyNode(ChaosFault("kill", COORDINATOR), at=10.0)
    assert look(patient, 10.1, view(5, UP), 1, asked=9.9) == []
    assert look(patient, 12.1, view(5, UP), 1, asked=12.0) == ["the coordinator answers again after 2.1 s"]
    assert patient.is_well


def test_a_short_pause_is_over_when_the_same_incarnation_goes_on() -> None:
    patient = FaultyNode(ChaosFault("pause", "worker-0", 1.5), at=10.0, incarnation=7, until=11.5)
    here = view(5, {"worker-0": 7})
    assert look(patient, 11.0, here, 1, asked=10.9) == []
    patient.until = None
    assert look(patient, 11.6, here, 1, asked=11.5) == ["worker-0 is a member again after 1.6 s"]
    assert patient.is_well and "detected" not in patient.times


def test_a_pause_that_was_taken_for_death_is_over_when_it_has_joined_again() -> None:
    patient = FaultyNode(ChaosFault("pause", "worker-0", 7.0), at=10.0, incarnation=7, until=17.0)
    look(patient, 15.2, view(6, {}), 1, asked=15.1)
    assert patient.times == {"detected": 15.2 - 10.0}
    patient.until = None
    look(patient, 17.2, view(6, {}), 1, asked=17.1)
    assert not patient.is_well
    look(patient, 17.4, view(7, {"worker-0": 9}), 1, asked=17.3)
    assert patient.is_well


def test_a_killed_worker_is_healed_by_the_one_in_its_place() -> None:
    patient = FaultyNode(ChaosFault("kill", "worker-0", 1.0), at=10.0, incarnation=7, successor="worker-4")
    assert look(patient, 11.5, view(6, {"worker-4": 9}), 1, asked=11.4)[-1] == "worker-4 is a member after 1.5 s"
    assert patient.is_well


def test_how_members_look() -> None:
    hurt = {
        "server-1": FaultyNode(ChaosFault("kill", "server-1"), at=1.0, incarnation=2),
        "worker-0": FaultyNode(ChaosFault("pause", "worker-0", 3.0), at=1.0, incarnation=4, until=4.0),
    }
    places = (m.Replicas(6, ["server-0"], filling="server-2"),)
    found = states(view(6, UP | {"worker-0": 4, "worker-1": 5}, *places), standing("worker-1"), hurt)
    assert found == {
        COORDINATOR: "up",
        "server-0": "up",
        "server-1": "down",
        "server-2": "filling",
        "worker-0": "paused",
        "worker-1": "suspected",
    }


def test_a_server_that_joins_is_there_when_it_holds_something_and_nobody_is_being_filled() -> None:
    patient = FaultyNode(ChaosFault("join", "server-3"), at=10.0)
    come = UP | {"server-3": 9}
    # A member that holds no segment yet.
    assert look(patient, 11.0, view(6, come, *WHOLE), 2, asked=10.9) == []
    filling = (WHOLE[0], m.Replicas(6, ["server-1", "server-2"], filling="server-3", instead="server-1"))
    assert look(patient, 11.5, view(7, come, *filling), 2, asked=11.4) == []
    moved = (WHOLE[0], m.Replicas(8, ["server-3", "server-2"]))
    assert look(patient, 12.0, view(8, come, *moved), 2, asked=11.9) == ["server-3 holds its share after 2.0 s"]
    assert patient.is_well


def test_a_server_that_was_asked_to_go_is_well_when_it_is_gone_and_all_copies_are_there() -> None:
    patient = FaultyNode(ChaosFault("drain", "server-1"), at=10.0, incarnation=2)
    without = {name: number for name, number in UP.items() if name != "server-1"}
    assert look(patient, 11.0, view(6, UP, *WHOLE), 2, asked=10.9) == []
    shrunk = (m.Replicas(6, ["server-0"], filling="server-2"), m.Replicas(6, ["server-2", "server-0"]))
    assert look(patient, 11.5, view(7, without, *shrunk), 2, asked=11.4) == []
    moved = (m.Replicas(8, ["server-0", "server-2"]), m.Replicas(6, ["server-2", "server-0"]))
    assert look(patient, 12.0, view(8, without, *moved), 2, asked=11.9) == ["server-1 is gone after 2.0 s"]
    assert patient.is_well
