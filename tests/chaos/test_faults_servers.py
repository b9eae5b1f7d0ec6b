"""Server and coordinator processes are killed or stopped (F5-F9, F14, F15).

There are three servers with two copies of everything, and three workers in the counting model. All
traffic passes the proxy, which is the failpoint: it holds a message back at the exact moment at
which the server is killed. Every server is the primary of some segments and a backup of others, so
one that is killed is both (F5, F7). All tests share one cluster; the servers take turns as the
victim. At the end the checker's rules hold (I1-I6), every segment has one owner (I7), and all
copies of a segment are equal in rows, versions, ledgers and clocks (I8).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from random import Random

import pytest

from shoal.chaos.proxy import ProxiedCluster
from shoal.errors import Refused, SegmentsLost
from shoal.timing import Timing
from shoal.wire import messages as m
from tests.support import PATIENCE
from tests.support.counting import (
    TABLE,
    Crowd,
    create,
    plan_of,
)
from tests.support.faulty_proxy import FaultyProxy, HeldMessages, LinkFaults
from tests.support.quick import QUICK
from tests.support.sandbox import Den, soon

WORKERS, SLOTS = 3, 60


class Scene:
    """Runs a cluster behind a proxy, and workers that use it."""

    def __init__(self, proxy: FaultyProxy, servers: int, copies: int, timing: Timing | None = None) -> None:
        self.proxy, self.copies = proxy, copies
        self.servers = [f"server-{i}" for i in range(servers)]
        self.cluster = ProxiedCluster(proxy.through, servers, copies)
        self.cluster.timing = timing
        self.cluster.start()
        self.kv = self.cluster.client("operator")
        self._turns = cycle(self.servers)

    def begin(self, den: Den) -> None:
        self._den, self.victim, self.before = den, next(self._turns), self.cluster.look()

    def gather(self, kind: str) -> Crowd:
        slots = SLOTS if kind != "clients" else SLOTS // WORKERS
        plan = plan_of(kind, WORKERS, slots, servers=len(self.servers), copies=self.copies, think=30)
        create(self.kv, plan)
        self.crowd = Crowd(plan, self.cluster.address, self._den)
        for column in range(WORKERS):
            self.crowd.start(column, range(column, slots, WORKERS))
        for column in range(WORKERS):
            self.crowd.until(column, 3)
        return self.crowd

    def kill(self, *names: str) -> dict[str, int]:
        """Kills all these processes while the workers are at work."""
        assert any(process.poll() is None for process in self.crowd.processes.values()), "all is done"
        pids = {name: self.cluster.pids[name] for name in names}
        for name in names:
            self.cluster.signal(name, signal.SIGKILL)
        return pids

    def is_replaced(self, pids: dict[str, int]) -> bool:
        """Returns whether new processes run in their places."""
        now = self.cluster.pids
        return all(now.get(name, pid) != pid for name, pid in pids.items())

    def told(self) -> dict[str, m.TableStatusReply]:
        """Asks each server for its status of the table, with a hash of each of its segments."""
        view = self.cluster.status().view
        number = next(table.number for table in view.tables if table.name == TABLE)

        def ask(request: int) -> m.TableStatusRequest:
            return m.TableStatusRequest(request, number, 0, digests=True)

        looking = self.cluster._looking
        answers: dict[str, m.TableStatusReply] = {}
        for one in view.members:
            if one.role == "server":
                # A killed server is left out: the proxy accepts the connection and closes it, as a
                # server that refuses us would.
                with contextlib.suppress(Refused):
                    answer = looking._ask("ask for digests", one.name, ask, m.Message, PATIENCE, one.address)
                    if isinstance(answer, m.TableStatusReply):
                        answers[one.name] = answer
        return answers

    def places(self) -> list[m.Replicas]:
        return next(table.places for table in self.cluster.status().view.tables if table.name == TABLE)

    def is_whole(self) -> bool:
        """Returns whether every segment has all its copies again, and they are equal."""
        places, told = self.places(), self.told()
        self.last = places, told
        return all(
            len(place.servers) == self.copies
            and not place.filling
            and all(server in told and segment in told[server].digests for server in place.servers)
            and len({told[server].digests[segment] for server in place.servers}) == 1
            for segment, place in enumerate(places)
        )

    def check(self) -> None:
        """Checks that every push is counted once, and in all copies."""
        self.crowd.finish()
        assert self.crowd.violations(self.kv) == []
        assert soon(self.is_whole), (self.places(), self.told())
        places, told = self.last
        # I7: every segment has one owner.
        assert sorted(segment for one in told.values() for segment in one.own) == list(range(len(places)))


@contextlib.contextmanager
def staged(servers: int, copies: int, timing: Timing | None = None) -> Iterator[Scene]:
    with FaultyProxy(seed=1) as proxy:
        scene = Scene(proxy, servers, copies, timing)
        try:
            yield scene
        finally:
            scene.cluster.close()


@contextlib.contextmanager
def one_act(stage: Scene) -> Iterator[Scene]:
    with Den() as den:
        stage.begin(den)
        yield stage
        stage.proxy.weather = LinkFaults()
        for held in list(stage.proxy.holds):
            held.discard()
    for table in stage.kv.tables():
        stage.kv.drop(table)
    assert stage.proxy.error is None


@pytest.fixture(scope="module")
def stage() -> Iterator[Scene]:
    with staged(servers=3, copies=2) as stage:
        yield stage


@pytest.fixture(scope="module")
def large_stage() -> Iterator[Scene]:
    with staged(servers=4, copies=3) as stage:
        yield stage


@pytest.fixture
def scene(stage: Scene) -> Iterator[Scene]:
    with one_act(stage) as scene:
        yield scene


@pytest.fixture
def large(large_stage: Scene) -> Iterator[Scene]:
    with one_act(large_stage) as scene:
        yield scene


@pytest.fixture
def quick() -> Iterator[Scene]:
    """Yields a scene for tests that wait until a node is declared dead."""
    with staged(servers=3, copies=2, timing=QUICK) as stage, one_act(stage) as scene:
        yield scene


# ---------------------------------------------------------------- one server


@pytest.mark.variants(slow=["each"])
@pytest.mark.parametrize("kind", [pytest.param("clients", marks=pytest.mark.soak), "each", "step"])
def test_a_server_killed_in_steady_state_is_made_up_for(kind: str, scene: Scene) -> None:
    """F5, F7."""
    scene.gather(kind)
    killed = scene.kill(scene.victim)
    assert soon(lambda: scene.is_replaced(killed))
    scene.check()
    assert scene.cluster.look().generation == scene.before.generation  # there was no rollback


EDGES: dict[str, Callable[[FaultyProxy, str], HeldMessages]] = {
    "the push has not come": lambda proxy, victim: proxy.hold("push", to=victim),
    "its record is not sent": lambda proxy, victim: proxy.hold("append", sender=victim),
    "the copies have it and say so": lambda proxy, victim: proxy.hold("appended", to=victim),
    "it is counted and the answer is on its way": lambda proxy, victim: proxy.hold("counted", sender=victim),
}


@pytest.mark.variants(
    slow=[
        "its record is not sent-late-clients",
        "the copies have it and say so-late-clients",
        "it is counted and the answer is on its way-late-clients",
    ]
)
@pytest.mark.parametrize("kind", ["clients", pytest.param("step", marks=pytest.mark.soak)])
@pytest.mark.parametrize("late", [pytest.param(False, marks=pytest.mark.soak), True], ids=["lost", "late"])
@pytest.mark.parametrize("edge", EDGES)
def test_a_server_killed_at_any_edge_of_a_push_neither_loses_nor_doubles_it(
    edge: str, late: bool, kind: str, scene: Scene
) -> None:
    """F6: messages in transit are lost with it, or arrive after the failover."""
    scene.gather(kind)
    held = EDGES[edge](scene.proxy, scene.victim)
    held.wait(1)
    killed = scene.kill(scene.victim)
    assert soon(lambda: scene.is_replaced(killed))
    (held.release if late else held.discard)()
    scene.check()


def test_a_server_asleep_across_a_failover_is_no_owner_when_it_wakes(quick: Scene) -> None:
    """F9: it is removed, others take over, and its late messages are refused.

    It joins again as a new incarnation.
    """
    crowd, victim = quick.gather("clients"), quick.victim
    incarnation = {one.name: one.incarnation for one in quick.cluster.status().view.members}[victim]
    quick.cluster.signal(victim, signal.SIGSTOP)
    try:
        assert soon(lambda: victim not in {one.name for one in quick.cluster.status().view.members})
        for column in range(WORKERS):
            crowd.until(column, 6)  # they go on without it
    finally:
        quick.cluster.signal(victim, signal.SIGCONT)
    crowd.finish()

    def is_back() -> bool:
        here = {one.name: one.incarnation for one in quick.cluster.status().view.members}
        return here.get(victim, 0) > incarnation

    assert soon(is_back)
    quick.check()


@pytest.mark.slow
def test_segments_of_which_every_copy_is_lost_are_named_and_the_table_can_be_made_again(scene: Scene) -> None:
    """F8 without a run and a checkpoint: nothing replaces what is lost."""
    crowd = scene.gather("clients")
    others = [name for name in scene.servers if name != scene.victim]
    lost = [place for place in scene.places() if set(place.servers) == set(others)]
    assert lost, "no segment is held by these two"
    for column in range(WORKERS):
        crowd.signal(column, signal.SIGSTOP)
    killed = scene.kill(*others)
    assert soon(lambda: scene.is_replaced(killed))
    with pytest.raises(SegmentsLost, match="create it again"):
        scene.kv.stats(TABLE)
    for column in range(WORKERS):
        crowd.kill(column)
    scene.kv.drop(TABLE)
    crowd = scene.gather("clients")
    scene.check()


# ---------------------------------------------------------------- the coordinator


def test_pushes_and_pulls_go_on_while_the_coordinator_is_started_again(scene: Scene) -> None:
    """F14."""
    crowd = scene.gather("each")
    places, killed = scene.places(), scene.kill("coordinator")
    for column in range(WORKERS):
        crowd.until(column, 6)
    assert soon(lambda: scene.is_replaced(killed))
    after = scene.cluster.look(PATIENCE)
    assert after.term > scene.before.term
    scene.check()
    assert scene.places() == places
    assert crowd.ended == []


@pytest.mark.slow
def test_a_coordinator_and_a_server_that_die_together_are_made_up_for_one_after_the_other(scene: Scene) -> None:
    """F15."""
    scene.gather("clients")
    killed = scene.kill(scene.victim, "coordinator")
    assert soon(lambda: scene.is_replaced(killed))
    scene.check()
    assert scene.cluster.look(PATIENCE).term > scene.before.term


# ---------------------------------------------------------------- two, one after the other


@pytest.mark.soak
@pytest.mark.parametrize("late", [False, True], ids=["lost", "late"])
@pytest.mark.parametrize("end", ["sender", "to"])
@pytest.mark.parametrize("edge", ["level", "levels", "adopt", "adopted", "fill", "filled"])
def test_a_second_server_killed_while_the_others_come_level_costs_nothing(
    edge: str, end: str, late: bool, large: Scene
) -> None:
    """F6 with three copies: a second server is killed while the survivors become level.

    It is the sender or the receiver of a message that brings them level.
    """
    large.gather(Random(f"{edge} {end} {late}").choice(["clients", "each", "step"]))
    with large.proxy.hold(edge) as held:
        killed = large.kill(large.victim)
        second = getattr(held.wait(1)[0], end)
        if second == large.victim:  # the process that replaced it
            assert soon(lambda: large.is_replaced(killed))
        killed |= {second: large.cluster.pids[second]}
        large.cluster.signal(second, signal.SIGKILL)
        assert soon(lambda: large.is_replaced(killed))
        if not late:
            held.discard()
    large.check()


# ---------------------------------------------------------------- several faults at once


WEATHERS = {
    "repeats": LinkFaults(repeat=0.2, late=0.4, later=2.0),
    "cuts": LinkFaults(cut=0.01, later=0.8, most=15),
    "losses": LinkFaults(drop=0.03, most=25),
    "delays": LinkFaults(delay=0.03),
    "damage": LinkFaults(flip=0.01, where=("prefix", "header"), most=15),
    "all": LinkFaults(repeat=0.1, late=0.5, later=3.0, drop=0.01, cut=0.004, delay=0.01, most=60),
}
STRIKES = ["nothing", "kill", "kill the coordinator", "kill both", "nap", "sleep"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_bad_weather_between_all_nodes_and_a_loss_in_it(seed: int, scene: Scene) -> None:
    """F21, F22, F24 between servers too, with F5, F9, F14 or F15 at the same time.

    This is a part of F44.
    """
    draw = Random(seed)
    kind, weather, strike = draw.choice(["clients", "each", "step"]), draw.choice(list(WEATHERS)), draw.choice(STRIKES)
    print(f"{kind}, {weather}, {strike} ({scene.victim})")
    crowd = scene.gather(kind)
    scene.proxy.weather = replace(WEATHERS[weather], most=scene.proxy.struck + WEATHERS[weather].most)
    crowd.until(0, draw.randrange(4, 8))
    if strike in ("nap", "sleep"):  # replica sets shrink without it (nap); it is removed (sleep)
        scene.cluster.signal(scene.victim, signal.SIGSTOP)
        time.sleep(draw.uniform(2.2, 3.5) if strike == "nap" else draw.uniform(5.5, 7.0))
        scene.cluster.signal(scene.victim, signal.SIGCONT)
    elif strike != "nothing":
        names = {"kill": [scene.victim], "kill both": [scene.victim, "coordinator"]}.get(strike, ["coordinator"])
        killed = {name: scene.cluster.pids[name] for name in names}
        for name in names:
            scene.cluster.signal(name, signal.SIGKILL)
        assert soon(lambda: scene.is_replaced(killed))
    crowd.finish()
    scene.proxy.weather = LinkFaults()
    scene.check()
