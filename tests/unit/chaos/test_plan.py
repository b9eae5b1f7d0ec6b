"""The nemesis spares nodes whose loss would lose data, and a seed gives one schedule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.chaos.plan import COORDINATOR, ChaosFault, ChaosSettings, ClusterState, FaultPlanner, role_of

SERVERS = [f"server-{i}" for i in range(4)]
WORKERS = [f"worker-{i}" for i in range(3)]
ALL = [COORDINATOR, *SERVERS, *WORKERS]
PAIRS = [[SERVERS[i], SERVERS[(i + 1) % 4]] for i in range(4)]  # two copies, on a ring


def nemesis(**settings: object) -> FaultPlanner:
    return FaultPlanner(ChaosSettings(**settings))  # type: ignore[arg-type]


def test_a_server_is_hurt_only_while_every_segment_of_it_has_another_that_is_well() -> None:
    one = nemesis()
    assert one.may_hurt("server-0", ClusterState(ALL, PAIRS))
    assert not one.may_hurt("server-0", ClusterState([name for name in ALL if name != "server-1"], PAIRS))
    # server-2 is no neighbour.
    assert one.may_hurt("server-0", ClusterState([name for name in ALL if name != "server-2"], PAIRS))


def test_a_set_that_has_shrunk_to_one_is_left_alone() -> None:
    shrunk = [["server-0"], *PAIRS[1:]]
    assert not nemesis().may_hurt("server-0", ClusterState(ALL, shrunk))
    assert nemesis(beyond=True).may_hurt("server-0", ClusterState(ALL, shrunk))


def test_where_the_sets_are_not_known_no_server_is_hurt() -> None:
    assert not nemesis().may_hurt("server-0", ClusterState(ALL))
    assert not nemesis(beyond=True).may_hurt("server-0", ClusterState(ALL))


def test_the_last_worker_is_left_alone() -> None:
    assert nemesis().may_hurt("worker-0", ClusterState(["worker-0", "worker-1"]))
    assert not nemesis().may_hurt("worker-0", ClusterState(["worker-0"]))


def test_nobody_is_hurt_who_has_not_recovered() -> None:
    assert not nemesis().may_hurt("worker-9", ClusterState(ALL, PAIRS))
    assert nemesis().next(ClusterState([])) == []


def test_a_seed_is_a_schedule() -> None:
    def drawn(seed: int) -> list[tuple[float, list[ChaosFault]]]:
        one = nemesis(seed=seed)
        return [(one.gap(), one.next(ClusterState(ALL, PAIRS))) for _ in range(30)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_who_cannot_be_hurt_changes_nothing_of_what_comes_later() -> None:
    one, other = nemesis(seed=7, together=0.0), nemesis(seed=7, together=0.0)
    one.next(ClusterState([]))
    other.next(ClusterState(ALL, PAIRS))
    assert [one.gap(), one.next(ClusterState(ALL, PAIRS))] == [other.gap(), other.next(ClusterState(ALL, PAIRS))]


def test_a_server_that_is_due_is_killed_if_one_may_be_and_the_schedule_stays() -> None:
    one, other = nemesis(seed=7), nemesis(seed=7)
    (fault,) = one.next(ClusterState(ALL, PAIRS), kill_server=True)
    assert (fault.kind, fault.role) == ("kill", "server")
    other.next(ClusterState(ALL, PAIRS))
    assert [one.gap(), one.next(ClusterState(ALL, PAIRS))] == [other.gap(), other.next(ClusterState(ALL, PAIRS))]
    # Kills are not enabled.
    for settings in ({"pauses": 1.0}, {"joins": 0.3, "drains": 0.2, "cuts": 0.5}):
        assert all(
            fault.kind != "kill" for fault in nemesis(**settings).next(ClusterState(ALL, PAIRS), kill_server=True)
        )
    shrunk = ClusterState(WORKERS, PAIRS)
    assert all(fault.role == "worker" for fault in nemesis(seed=7).next(shrunk, kill_server=True))


def test_everybody_is_hit_in_the_end_and_in_both_ways() -> None:
    one = nemesis(seed=1)
    hit = {(fault.role, fault.kind) for _ in range(300) for fault in one.next(ClusterState(ALL, PAIRS))}
    assert hit == {(role, kind) for role in (COORDINATOR, "server", "worker") for kind in ("kill", "pause")}


def test_pauses_are_on_both_sides_of_what_counts_as_death() -> None:
    one = nemesis(seed=1, pauses=1.0)
    lengths = [fault.seconds for _ in range(200) for fault in one.next(ClusterState(ALL, PAIRS))]
    assert 1.0 <= min(lengths) < 2.0 and 6.0 < max(lengths) <= 8.0


@given(
    st.integers(0, 1_000),
    st.lists(st.lists(st.sampled_from(SERVERS), min_size=1, max_size=3, unique=True), min_size=1, max_size=12),
    st.sets(st.sampled_from(ALL)),
)
def test_after_any_faults_every_segment_has_a_server_that_is_well(
    seed: int, sets: list[list[str]], hurt: set[str]
) -> None:
    """A segment that had no healthy server before is not the nemesis's fault."""
    one = nemesis(seed=seed, together=1.0)
    well = [name for name in ALL if name not in hurt]
    for _ in range(5):
        before = [any(name in well for name in holders) for holders in sets]
        for fault in one.next(ClusterState(well, sets)):
            assert fault.name in well
            well = [name for name in well if name != fault.name]
        assert [any(name in well for name in holders) for holders in sets] == before
    assert any(role_of(name) == "worker" for name in well) or all(name in hurt for name in WORKERS)


ELASTIC = {"joins": 0.2, "drains": 0.2, "cuts": 0.2, "servers": (2, 6)}


def test_servers_come_and_go_and_are_cut_off_where_that_is_asked_for() -> None:
    one = nemesis(seed=1, **ELASTIC)
    kinds = {
        fault.kind
        for _ in range(300)
        for fault in one.next(ClusterState(ALL, PAIRS, SERVERS, "server-4"))
        if fault.name
    }
    assert kinds == {"kill", "pause", "cut", "join", "drain"}


def test_there_are_never_more_or_fewer_servers_than_planned() -> None:
    one = nemesis(seed=2, joins=0.5, drains=0.5, servers=(4, 4), together=1.0)
    drawn = [fault for _ in range(100) for fault in one.next(ClusterState(ALL, PAIRS, SERVERS, "server-4"))]
    assert drawn == []
    some = nemesis(seed=2, joins=0.5, drains=0.5, servers=(3, 5), together=1.0)
    for _ in range(100):
        staying = list(SERVERS)
        for fault in some.next(ClusterState(ALL, PAIRS, staying, "server-4")):
            staying = [*staying, fault.name] if fault.kind == "join" else [s for s in staying if s != fault.name]
        assert 3 <= len(staying) <= 5


def test_who_is_cut_off_is_cut_off_from_another_that_holds_or_knows_something() -> None:
    one = nemesis(seed=3, cuts=1.0)
    cuts = [fault for _ in range(200) for fault in one.next(ClusterState(ALL, PAIRS, SERVERS))]
    assert cuts and all(fault.kind == "cut" and fault.name != fault.other for fault in cuts)
    assert {role_of(fault.name) for fault in cuts} == {"server", "worker"}
    assert {role_of(fault.other) for fault in cuts} == {"server", COORDINATOR}


def test_where_the_sets_are_not_known_nobody_is_asked_to_go_or_to_come() -> None:
    one = nemesis(seed=4, joins=0.5, drains=0.5, servers=(1, 9))
    assert [fault for _ in range(50) for fault in one.next(ClusterState(ALL, (), SERVERS, "server-4"))] == []
