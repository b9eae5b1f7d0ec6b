"""Hosts are cut off from each other, badly connected, or vanish (F16-F20, F23, F26).

They have real TCP between namespaces, with keys. There are one coordinator, three servers with two
copies of everything, and three workers in the counting model, each on a host of its own. The faults
hit packets, as they would on a wire. At the end of each test everything is counted once (I1-I6),
every segment has one owner (I7), and its copies are equal (I8).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]
import pytest

from shoal import limits
from shoal.events import Begin, End
from shoal.wire import messages as m
from tests.support.counting import TABLE, Crowd
from tests.support.hosts import Hosts
from tests.support.multi_host import (
    FIRST_SERVER,
    FIRST_WORKER,
    WORKERS,
    Record,
    Site,
)
from tests.support.packet_link import Air
from tests.support.sandbox import soon

# Hosts, and the names of the servers on the first two.
SERVER, OTHER, WORKER = FIRST_SERVER, FIRST_SERVER + 1, FIRST_WORKER
NAME, OTHER_NAME = "server-0", "server-1"
LONG = 12.0  # seconds: longer than it takes to be removed, and than any allowed silence
A_WHILE = 6.0


def acknowledged_between(crowd: Crowd, start: int, stop: int) -> list[Begin]:
    """Returns pushes that began after ``start`` and were acknowledged before ``stop``."""
    history = crowd.history()
    begun = {
        one.call: one for one in history if isinstance(one, Begin) and one.kind == "push" and start < one.time < stop
    }
    return [
        begun[one.call]
        for one in history
        if isinstance(one, End) and one.call in begun and one.outcome == "ok" and one.time < stop
    ]


def shrunk(before: m.View) -> Callable[[m.View], bool]:
    """Finds views in which a replica set of both our servers has only one of them."""
    pairs = [
        (table.name, i)
        for table in before.tables
        for i, place in enumerate(table.places)
        if {NAME, OTHER_NAME} == set(place.servers)
    ]
    assert pairs, "no segment is held by these two"

    def is_so(view: m.View) -> bool:
        places = {table.name: table.places for table in view.tables}
        return any({NAME, OTHER_NAME} != set(places[table][i].servers) for table, i in pairs if table in places)

    return is_so


def check_nothing_alone(crowd: Crowd, record: Record, cut: int) -> None:
    """Checks that between the cut and the new set nothing was counted without both servers.

    Every push reaches all segments. A twentieth of a second passes between two looks, and more on a
    busy machine.
    """
    changed = record.first(shrunk(record[0][1]))
    assert changed > cut, "no set changed"
    print(f"the set is another after {(changed - cut) / limits.SECOND:.1f} s")
    assert acknowledged_between(crowd, cut, changed - limits.SECOND) == []


# ---------------------------------------------------------------- cut both ways


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["each", "step"])
def test_a_worker_that_does_not_reach_one_server_for_a_while_goes_on_when_it_does(kind: str, site: Site) -> None:
    """F16: its pushes are sent again, and count once."""
    crowd, incarnations = site.gather(kind), site.members()
    site.hosts.cut(WORKER, SERVER)
    time.sleep(A_WHILE)
    site.hosts.heal()
    site.check(crowd)
    assert crowd.ended == []
    assert site.members() == incarnations


@pytest.mark.soak
def test_a_worker_that_does_not_reach_a_server_for_long_is_told_which_one(site: Site) -> None:
    """F16: the request ends with a deadline error, and the next incarnation goes on.

    What may have been counted counts once.
    """
    crowd, incarnations = site.gather("clients"), site.members()
    site.hosts.cut(WORKER, SERVER)
    time.sleep(LONG)
    site.hosts.heal()
    site.check(crowd)
    assert any(f"no answer from {NAME}" in line for line in crowd.ended), crowd.ended
    assert site.members() == incarnations


@pytest.mark.slow
def test_a_primary_cut_off_from_its_backup_counts_nothing_alone_before_its_set_is_smaller(site: Site) -> None:
    """F17."""
    crowd = site.gather("clients", slots=240)
    with site.recorded() as record:
        site.hosts.cut(SERVER, OTHER)
        cut = time.monotonic_ns()
        assert soon(lambda: record.first(shrunk(record[0][1])))
        done = [crowd.acknowledged(column) for column in range(WORKERS)]
        for column in range(WORKERS):
            crowd.until(column, done[column] + 10)  # they go on, with another replica
    check_nothing_alone(crowd, record, cut)
    site.hosts.heal()
    site.check(crowd)
    assert crowd.ended == []
    assert record.returns(NAME) == record.returns(OTHER_NAME) == 0


def test_a_primary_that_only_workers_reach_counts_nothing_more_and_is_another_when_it_is_back(site: Site) -> None:
    """F18: it is cut off from the coordinator and from all backups."""
    crowd, incarnation = site.gather("clients", slots=240), site.members()[NAME]
    with site.recorded() as record:
        for host in (0, OTHER, OTHER + 1):
            site.hosts.cut(SERVER, host)
        cut = time.monotonic_ns()
        assert soon(lambda: NAME not in site.members())
        done = [crowd.acknowledged(column) for column in range(WORKERS)]
        for column in range(WORKERS):
            crowd.until(column, done[column] + 10)
    check_nothing_alone(crowd, record, cut)
    site.hosts.heal()
    assert soon(lambda: site.members().get(NAME, 0) > incarnation)
    site.check(crowd)
    assert crowd.ended == []


# ---------------------------------------------------------------- cut one way


ONE_WAY = {
    "a server that its backup does not hear": (SERVER, OTHER),
    "a server that the coordinator does not hear": (SERVER, 0),
    "a server that does not hear the coordinator": (0, SERVER),
    "a worker that a server does not hear": (WORKER, SERVER),
}


@pytest.mark.soak
@pytest.mark.parametrize("way", ONE_WAY)
def test_who_is_not_heard_is_given_up_once_and_not_again_and_again(way: str, site: Site) -> None:
    """F19: there is at most one change in a minute; the cut lasts a fifth of that here.

    Afterwards all is as before.
    """
    crowd = site.gather("clients", slots=240)
    with site.recorded() as record:
        site.hosts.cut(*ONE_WAY[way], both=False)
        time.sleep(LONG)
    site.hosts.heal()
    site.check(crowd)
    assert record.losses() <= 1
    # A server that others do not receive from does not join again, either.
    assert all(record.returns(name) == 0 for name in site.servers)
    assert site.hosts.ether.counts["cut off"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("both", [True, False], ids=["both ways", "one way"])
def test_two_servers_that_have_nobody_else_try_again_now_and_then_and_lose_each_other_once(
    both: bool, hosts: Hosts
) -> None:
    """F17, F19 without a spare server: each goes on alone.

    One is filled by the other only when they are connected again.
    """
    with Site(hosts, servers=2, port=7_001 + both) as site:
        crowd = site.gather("clients", slots=240, think=100)
        with site.recorded() as record:
            hosts.cut(SERVER, OTHER, both=both)
            time.sleep(LONG)
        hosts.heal()
        site.check(crowd)
    assert record.losses() == 1
    assert len(record) < LONG  # views: there is not one in every second
    assert crowd.ended == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_links_that_are_cut_one_by_one_and_mended_in_another_order_cost_nothing(seed: int, site: Site) -> None:
    """F20."""
    crowd = site.gather("clients", slots=240, think=100)
    for one, other in site.hosts.swizzle(seed):
        site.hosts.cut(one, other)
        time.sleep(0.3)
    for one, other in site.hosts.swizzle(seed + 100):
        site.hosts.mend(one, other)
        time.sleep(0.3)
    site.hosts.heal()
    site.wait_for_servers()
    site.check(crowd)


# ---------------------------------------------------------------- bad weather


AIRS = {
    "delay": Air(delay=0.05, jitter=0.05),
    "8 Mbit/s": Air(rate=8e6),
    "loss": Air(loss=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("air", ["8 Mbit/s", *(pytest.param(air, marks=pytest.mark.soak) for air in ("delay", "loss"))])
def test_bad_weather_makes_it_slower_and_nobody_is_taken_for_dead(air: str, site: Site) -> None:
    """F23: few pushes are sent twice, because TCP already resends packets."""
    incarnations = site.members()
    crowd = site.gather("each")
    began = time.monotonic()
    site.hosts.all(AIRS[air])
    crowd.finish()
    seconds = time.monotonic() - began
    site.hosts.heal()
    stats = site.kv.stats(TABLE)
    sent = len(crowd.history()) * len(site.servers)
    print(f"{air}: {seconds:.1f} s, {stats.get('repeated', 0)} pushes came twice; {dict(site.hosts.ether.counts)}")
    assert stats.get("repeated", 0) <= WORKERS * (seconds + 10) + limits.RESEND_BUDGET * sent
    site.check(crowd)
    assert site.members() == incarnations
    assert crowd.ended == []


# ---------------------------------------------------------------- vanished


def descriptors(site: Site) -> dict[str, int]:
    return {name: psutil.Process(process.pid).num_fds() for name, process in site.processes.items()}


@pytest.mark.soak
def test_a_host_that_vanished_in_the_middle_of_its_pushes_keeps_no_descriptor(site: Site) -> None:
    """F26: no FIN ever comes, and packets in transit to it are never acknowledged."""
    assert soon(lambda: not site.members("client").keys() - {"operator"})
    before = descriptors(site)
    crowd = site.gather("clients", slots=240)
    assert all(now > before[name] for name, now in descriptors(site).items() if name != "coordinator")
    site.hosts.alone(WORKER)
    began = time.monotonic()
    crowd.kill(0)
    for column in range(1, WORKERS):
        crowd.kill(column)  # the servers see that these end
    assert soon(lambda: all(now <= before[name] for name, now in descriptors(site).items())), (
        before,
        descriptors(site),
    )
    print(f"the last of its descriptors was closed after {time.monotonic() - began:.1f} s")
    site.hosts.heal()
    for column in range(WORKERS):
        crowd.start(column)
    site.check(crowd)


@pytest.mark.soak
def test_a_server_whose_host_vanished_is_made_up_for_and_keeps_no_descriptor(site: Site) -> None:
    """F26, from the callers' side."""
    crowd = site.gather("clients", slots=240)
    site.hosts.alone(SERVER)
    site.processes[NAME].kill()
    site.processes[NAME].communicate()
    assert soon(lambda: NAME not in site.members())
    crowd.finish()
    site.hosts.heal()
    gone = site.hosts.address(SERVER)

    def lines() -> list[str]:
        """Returns the connections to it that are left."""
        living = [psutil.Process(one.pid) for one in site.processes.values() if one.poll() is None]
        return [str(line) for one in living for line in one.net_connections() if line.raddr and line.raddr.ip == gone]

    assert soon(lambda: not lines()), lines()
    site.post(NAME)
    site.wait_for_servers()
    site.check(crowd)
