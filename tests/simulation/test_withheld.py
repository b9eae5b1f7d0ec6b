"""The simulator withholds crashes that copies do not protect from.

No promise covers them.
"""

from __future__ import annotations

from shoal import limits
from shoal.limits import COORDINATOR
from shoal.nodes.worker import Worker
from shoal.simulation.faults import FaultPlan
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.store_workload import TABLE
from shoal.wire import messages as m


def begun(servers: int, copies: int) -> StoreRun:
    """A cluster with a table that has no users."""
    run = StoreRun(FaultPlan(seed=1, servers=servers, copies=copies))
    run.cluster.set_up()
    operator = Worker("operator", "client", "only")
    run.cluster.add(operator)
    operator.start(run._create(operator))
    assert run._until(
        lambda: TABLE in operator.client.session.layouts and run.cluster.all_have_newest_view(), 20 * limits.SECOND
    )
    return run


def leaving(run: StoreRun, name: str) -> None:
    run.world.send("operator", COORDINATOR, m.Drain(1 << 40, name))
    assert run._until(lambda: run.cluster.coordinator.roster.members[name].member.leaving, limits.SECOND)


def knows(run: StoreRun, name: str) -> bool:
    return any(member.leaving for member in run.cluster.servers[name].member.view.members)


def test_one_that_stays_is_the_last_copy_as_soon_as_its_word_that_it_does_without_the_other_may_be_under_way() -> None:
    run = begun(servers=2, copies=2)
    assert run.cluster.may_lose("server-1")
    leaving(run, "server-0")
    # It has not said anything yet.
    assert not knows(run, "server-1") and run.cluster.may_lose("server-1")
    assert run._until(lambda: knows(run, "server-1"), limits.SECOND)
    person = run.cluster.coordinator.roster.members["server-1"]
    assert person.view < run.cluster.coordinator.roster.number, "its word has not come yet"
    places = [place for table in run.cluster.tables() for place in table.places]
    assert all(sorted(place.servers) == ["server-0", "server-1"] for place in places)
    assert not run.cluster.may_lose("server-1")
    assert run.cluster.may_lose("server-0")


def test_one_that_leaves_counts_where_another_is_to_take_its_place() -> None:
    run = begun(servers=3, copies=2)
    leaving(run, "server-0")
    assert run._until(lambda: knows(run, "server-1"), limits.SECOND)
    holds = [place.servers for table in run.cluster.tables() for place in table.places if "server-1" in place.servers]
    assert any("server-0" in servers for servers in holds) and run.cluster.may_lose("server-1")


def test_a_primary_is_the_last_copy_as_soon_as_its_word_that_it_does_without_the_other_is_under_way() -> None:
    """It cannot reach the other server, so it asks to go on alone.

    If it dies before that request arrives, the request still counts.
    """
    run = begun(servers=2, copies=2)
    cluster, world = run.cluster, run.world
    assert cluster.may_lose("server-0") and cluster.may_lose("server-1")
    mine, theirs = (cluster.servers[name].member.incarnation for name in ("server-0", "server-1"))
    world.weather.delay = 10 * limits.MILLISECOND
    world.send("server-0", COORDINATOR, m.Shrink(mine, "server-1", theirs))
    assert not cluster.may_lose("server-0")
    assert cluster.may_lose("server-1")  # server-0 holds all that it holds
    assert run._until(
        lambda: any(place.servers == ["server-0"] for one in cluster.tables() for place in one.places), limits.SECOND
    )
    assert not cluster.may_lose("server-0")
    # The other server is filled again, and that is on disk.
    assert run._until(lambda: cluster.is_complete() and cluster.may_lose("server-0"), 20 * limits.SECOND)


def test_a_word_that_was_lost_makes_nobody_the_last_copy() -> None:
    run = begun(servers=2, copies=2)
    mine, theirs = (run.cluster.servers[name].member.incarnation for name in ("server-0", "server-1"))
    run.world.weather.cuts["server-0", COORDINATOR] = run.world.now + limits.MILLISECOND
    run.world.send("server-0", COORDINATOR, m.Shrink(mine, "server-1", theirs))
    run.world.weather.cuts.clear()
    assert run.cluster.may_lose("server-0")
