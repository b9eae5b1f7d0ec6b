"""A key list that is sent as a number has the same effect as its keys.

Two tables with the same spec get the same calls, one with reused lists and one with plain keys.
The network loses and repeats messages, and servers die and restart, forget lists, and have too
little room. The responses are the same, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import limits
from shoal.errors import ShoalError
from shoal.keys import KeyList, Keys, Values
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.worker import Worker
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.faults import FaultPlan
from shoal.simulation.store_scenario import idle_scheduler
from shoal.simulation.world import World
from shoal.store.server import primary
from shoal.store.server.primary import Primary
from shoal.store.table.update import AdaGrad, Sum
from shoal.tables import Dense, Sparse, Table, Uniform
from shoal.timing import DEFAULT

SPAN = 4_000
LISTS = 5
LAWS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SPECS = st.sampled_from(
    [
        Dense(rows=SPAN, update=Sum()),
        Dense(rows=SPAN, width=3, update=AdaGrad()),
        Sparse(keys=SPAN, update=Sum()),
        Sparse(keys=SPAN, update=Sum(), evict=True),
        Sparse(keys=SPAN, update=Sum(), evict=True, admit=2),
        Sparse(keys=SPAN, width=2, update=AdaGrad(), initial=Uniform(seed=3)),
        Sparse(hashed=True, update=Sum()),
        Sparse(keys=SPAN, update=Sum(), wire="bfloat16"),
    ]
)
LIST = st.integers(0, LISTS - 1)
SEEDS = st.integers(0, 1 << 20)
DEEDS = st.one_of(
    st.tuples(st.sampled_from(["push", "push back", "pull", "push_pull"]), LIST, SEEDS),
    st.tuples(st.sampled_from(["push", "pull"]), LIST, SEEDS),  # these are drawn most often
    st.tuples(st.sampled_from(["ahead", "push back"]), LIST, SEEDS),
    st.tuples(st.sampled_from(["another list", "grow", "forget", "scramble", "crash", "silence"]), LIST, SEEDS),
)


def some_keys(chance: np.random.Generator) -> Keys:
    """Mostly the same number of keys as in the other lists, so that only the keys differ."""
    count = int(chance.choice([24, 24, 24, chance.integers(1, 60)]))
    return np.sort(chance.choice(SPAN, count, replace=False)).astype(np.uint64)


class Twins:
    """A simulated cluster with a client that makes the same calls on two tables."""

    def __init__(self, seed: int, spec: Table, servers: int, copies: int, storm: bool) -> None:
        plan = FaultPlan(seed=seed, servers=servers, copies=min(servers, copies), kind="clients")
        self.spec, self.world = spec, World(seed)
        self.cluster = SimulatedCluster(self.world, plan, idle_scheduler)
        self.cluster.set_up()
        self.worker = Worker("ann", "client", "only")
        self.cluster.add(self.worker)
        self.storm = storm
        chance = np.random.default_rng(seed)
        self.lists = [KeyList(some_keys(chance)) for _ in range(LISTS)]
        self.last: Values = np.ones(0, np.float32)

    def do(self, deeds: list[tuple[str, int, int]]) -> None:
        task = self.worker.start(self._all(deeds))
        self.world.tell("ann")
        assert self.world.run(lambda: task.done, 900 * SECOND, 2_000_000), "it hangs"
        task.result()

    def parts(self) -> list[Primary]:
        held = [
            table_server.primary for server in self.cluster.servers.values() for table_server in server.tables.values()
        ]
        return [own for own in held if own is not None]

    async def _all(self, deeds: list[tuple[str, int, int]]) -> None:
        client = self.worker.client
        while sum(member.role == "server" for member in client.session.view.members) < len(self.cluster.servers):
            await self.worker.sleep(10 * MILLISECOND)
        await client.create("plain", self.spec)
        await client.create("named", self.spec, like="plain")
        while len(client.session.layouts) < 2:  # the view may come after the response
            await client.refresh()
        if self.storm:
            weather = self.world.weather
            weather.loss, weather.repeat, weather.late, weather.slow = 0.02, 0.2, 0.1, 0.05
        for deed, which, seed in deeds:
            await self._one(deed, which, np.random.default_rng(seed))
        for listed in self.lists:
            await self._same("pull", listed)

    async def _one(self, deed: str, which: int, chance: np.random.Generator) -> None:
        listed, server = self.lists[which], sorted(self.cluster.servers)[which % len(self.cluster.servers)]
        values = chance.integers(-8, 8, (len(listed), self.spec.width)).astype(np.float32)
        match deed:
            case "push" | "push_pull":
                await self._same(deed, listed, values)
            case "push back":  # so that rows are zero again, and may be evicted
                before = await self._same("pull", listed)
                await self._same("push", listed, -before)
            case "pull":
                await self._same("pull", listed)
            case "ahead" if not self.spec.hashed:
                await self._same("push", listed, values, ahead=self.lists[(which + 1) % LISTS])
            case "another list":
                # The old list is gone, its number is free.
                self.lists[which] = KeyList(some_keys(chance))
            case "grow":
                keys = KeyList(np.unique(chance.integers(0, SPAN, 1_500)).astype(np.uint64))
                await self._same("push", keys, np.ones((len(keys), self.spec.width), np.float32))
            case "forget":
                self.cluster.servers[server].key_lists.drop_departed({})
            case "scramble":
                # As if late messages had come under numbers that mean another list by now.
                lists = self.cluster.servers[server].key_lists._lists
                for key, one in zip(list(lists), list(lists.values())[::-1], strict=True):
                    lists[key] = one
            case "crash" if self._may_crash(server) and self.cluster.crash(server, seen=True):
                await self.worker.sleep(2 * SECOND)
                self.cluster.restart(server)
                for _ in range(100):
                    if self.cluster.is_complete():
                        break
                    await self.worker.sleep(100 * MILLISECOND)
            case "silence":  # long enough to be taken for dead and join again as a new member
                self.world.hosts["ann"].paused_until = self.world.now + DEFAULT.dead + 2 * SECOND
                await self._settled()

    def _may_crash(self, server: str) -> bool:
        """A new primary starts its admission counts from zero, at different times in two tables."""
        return server in self.world.hosts and getattr(self.spec, "admit", 0) <= 1

    async def _settled(self) -> None:
        for _ in range(200):
            await self.worker.sleep(100 * MILLISECOND)
            try:
                await self.worker.client.pull("plain", [0])
                return
            except ShoalError:
                continue
        raise AssertionError("it did not come back")

    async def _same(self, call: str, listed: KeyList, values: Any = None, **more: Any) -> Any:
        """Calls both tables, one with the list and the other with its keys."""
        client, answers = self.worker.client, []
        for table in ("named", "plain"):
            keys = listed if table == "named" or more else listed.keys.copy()
            # Only lists can be prefetched, so use new lists that no server knows.
            if table == "plain" and more:
                keys, more = KeyList(listed.keys.copy()), {"ahead": KeyList(more["ahead"].keys.copy())}
            given = () if values is None else (values if self.spec.width > 1 else values.reshape(-1),)
            answers.append(await getattr(client, call)(table, keys, *given, **more))
        named, plain = (None if one is None else np.asarray(one) for one in answers)
        if named is None or plain is None:
            assert named is plain
        else:
            assert named.tobytes() == plain.tobytes(), (call, listed.keys)
        return named


@contextmanager
def room(kept: int) -> Iterator[None]:
    with mock.patch.object(limits, "HANDLE_BYTES", kept), mock.patch.object(primary, "EVICT_ROWS", 16):
        yield


@LAWS
@given(
    spec=SPECS,
    seed=SEEDS,
    servers=st.integers(1, 3),
    copies=st.integers(1, 2),
    storm=st.booleans(),
    kept=st.sampled_from([3_000, limits.HANDLE_BYTES]),
    deeds=st.lists(DEEDS, min_size=5, max_size=40),
)
def test_lists_by_number_do_what_their_keys_would_do(
    spec: Table, seed: int, servers: int, copies: int, storm: bool, kept: int, deeds: list[tuple[str, int, int]]
) -> None:
    with room(kept):
        Twins(seed, spec, servers, copies, storm).do(deeds)


def test_what_the_law_is_about_does_happen() -> None:
    chance, calls = np.random.default_rng(5), ["push", "pull", "push_pull", "ahead", "push back", "pull"]
    deeds = [(calls[n % 6], int(chance.integers(LISTS)), n) for n in range(60)]
    for number, deed in enumerate(("silence", "another list", "grow", "forget", "scramble", "crash")):
        deeds.insert(9 * number + 9, (deed, number % LISTS, number))
    twins = Twins(1, Sparse(keys=SPAN, update=Sum(), evict=True), servers=2, copies=2, storm=True)
    with room(8_000):
        twins.do(deeds)
    counts = twins.worker.client.session.key_cache.counts
    assert counts["hits"] > 20 and counts["misses"] > 10 and counts["forgotten"] > 1 and counts["bytes saved"] > 0
    assert twins.world.counts["network: repeated"] > 0 and any(own.counts["evicted"] for own in twins.parts())
    assert twins.worker.client.session.view.number > 4  # segments failed over, and back
