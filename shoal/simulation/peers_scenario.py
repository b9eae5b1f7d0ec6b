"""The scenario PEERS: peers join, leave, die and are cut off, and must agree in the end.

When all faults are over and all words are delivered:

    equal     all living peers have the same weights and versions, to the last bit
    once      no slot is in them twice; every slot that a living peer published is in them
    closed    no peer hears another word of a life after it was closed
    copied    no peer must rejoin because of words that another has copied, unless it had no model
              itself when it entered that other
    lead      of two peers with models that list each other as members, at most one leads
    live      all this within ``LIVE_WITHIN``, and no peer retains words any more; if a founder died
              before another had ever heard it, ``timing.join_within`` later, since for the other
              its process has yet to start

The peers are real ones with a model that counts: a slot adds 1 to a few weights of its own, so the
weights say which slots are in them, and how often. Sums of ones are exact in float32: two models
are equal to the last bit, or something was lost or added twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import numpy as np
from msgspec.structs import replace

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND, SECOND
from shoal.schedule.stop_rules import StopRules
from shoal.simulation.faults import Fault, SeedPlan, by_time, draw_scale
from shoal.simulation.scenarios import Scenario, Trace, Verdict, Violations, counters, judge
from shoal.simulation.world import World
from shoal.strategies.peers.compute import Change, Floats, Keys
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.mesh import CUT_SHORT, Mesh, is_cut_short
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import AGAIN, TWICE
from shoal.wire.messages import peers as p

PLACES = 3  # weights of one slot, far from each other: they have different owners
PARTS = 8
ALONE = "the last peer was asked to leave"  # an early end


class CountingReplica:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._weights = np.zeros(slots * PLACES, np.float32)
        self._own: list[int] = []

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
        learned = [slot for first, stop in slots for slot in range(first, stop)]
        self._own += learned
        np.add.at(self._weights, self._keys(learned).astype(np.int64), 1)
        return float(len(learned)), len(learned)

    def _keys(self, slots: Sequence[int]) -> Keys:
        places = np.arange(PLACES) * self._slots
        return np.unique((np.array(slots, np.int64)[:, None] + places).reshape(-1)).astype(np.uint64)

    def take(self) -> Change:
        keys = self._keys(self._own)
        self._own = []
        return keys, np.ones(len(keys), np.float32)

    def add(self, keys: Keys, values: Floats) -> None:
        np.add.at(self._weights, keys.astype(np.int64), values)

    def weights(self) -> Floats:
        return self._weights.copy()

    snapshot = weights

    def restore(self, slab: Floats) -> None:
        self._weights = slab.copy()
        self._own = []


def loss_of(weights: Floats) -> tuple[float, Mapping[str, float | None]]:
    """A loss that falls with every learned slot."""
    return 1.0 / (1.0 + float(weights.sum())), {}


class CountingLearner:
    def __init__(self, mesh: Mesh, plan: PeersPlan) -> None:
        self._limit = plan.slots
        facts = PeerFacts(
            Slots(max(1, plan.slots // 3), 1, plan.seed),
            StopRules(steps=plan.slots),
            evaluate=max(1, plan.slots // 5),
            every=plan.told_every,
            owned=plan.send == "owned",
        )
        self.mesh, self.name, self.leaving = mesh, mesh.me.life, False
        self.replica = CountingReplica(plan.slots)
        self.node = PeerNode(mesh, self.replica, facts, loss_of, keys=plan.slots * PLACES, parts=PARTS)

    @property
    def leads(self) -> bool:
        return self.node.leads and not self.mesh.evicted

    def leave(self) -> None:
        self.leaving = True
        self.node.leave()

    def errors(self) -> list[str]:
        """Where the weights differ from what the log says."""
        log, found = self.node.log, []
        asked = log.halt is not None and log.halt.why == ALONE
        if log.done != self._limit and not asked:
            found.append(f"{log.done} of {self._limit} slots are counted: {log.counted.runs}")
        more = self.replica.weights().reshape(PLACES, -1) - self._expected()
        if (more < 0).any():
            found.append(f"slots {np.unique((more < 0).nonzero()[1]).tolist()} are counted, but not in the weights")
        twice, many = log.counts[TWICE], more.clip(min=0).sum() / PLACES
        if round(PLACES * many) != PLACES * twice:
            slots = np.unique((more > 0).nonzero()[1]).tolist()
            found.append(f"{many:g} extra slots are in the weights, expected {twice}: {slots}")
        return found

    def _expected(self) -> Floats:
        """By weight: slots that are counted, and those in some parts of the weights only.

        The latter are of peers that died: promised to be known, not undone (decision 0034). They
        are expected weight by weight, so a slot that nobody knows of is found beside them.
        """
        log = self.node.log
        expected = np.zeros((PLACES, self._limit), np.float32)
        for first, stop in log.counted.runs:
            expected[:, first:stop] += 1
        size = expected.size
        part_of = (np.arange(size) * PARTS // size).reshape(PLACES, -1)
        for life, contributions in log.open.items():
            for one in contributions if self.mesh.is_closed(life) else ():
                is_in = np.array([part.get(life, 0) >= one.part for part in log.included])
                for first, stop in one.slots:
                    expected[:, first:stop] += is_in[part_of[:, first:stop]]
        return expected


WEATHER = ("loss", "repeat", "slow")
MOST_EVENTS = 40_000
LIVE_WITHIN = 40 * SECOND
ANSWER_WITHIN = 15 * SECOND  # then a newcomer without an answer is started again


class PeersScenario:
    def __init__(self, plan: PeersPlan, trace: Trace | None = None) -> None:
        self.plan, self.world = plan, World(plan.seed, trace)
        self.world.weather.delay = plan.delay * MILLISECOND
        self.world.computing = (MILLISECOND, plan.took * MILLISECOND)
        self.world.after_event = self._after
        self.world.watch(self._on_piece, p.ModelPiece)
        self.world.watch(self._on_relay, p.Relay)
        self.peers: dict[str, CountingLearner] = {}
        self._closed: dict[str, dict[str, int]] = {}  # whom it closed, after how many words
        self._entered: dict[str, dict[str, bool]] = {}  # whom; did it have a model then
        self._had_model: dict[str, bool] = {}  # by life: it had a model after the last event
        self.counts = self.world.counts
        self.violations = Violations()
        self._random = Random(f"{plan.seed}/peering")
        self._lives = 0
        self._numbers = plan.founders
        self._healed = False
        self._on_pieces: list[Fault] = []
        self._on_words: list[tuple[str, Fault]] = []

    def verdict(self) -> Verdict:
        return judge(self.plan, self._run, [self.world])

    def _run(self) -> Violations:
        world = self.world
        self._begin()
        world.run(lambda: self._healed, self.plan.lasts * MILLISECOND + SECOND, MOST_EVENTS)
        if not world.run(self._settled, world.now + self._rests_within(), MOST_EVENTS):
            self.violations.add("live", self._unsettled())
        self._check()
        for peer in self.peers.values():
            self._collect_counts(peer)
        return self.violations

    def _begin(self) -> None:
        founders = [self._new_peer(f"worker-{i}", i) for i in range(self.plan.founders)]
        for me in founders:
            self._add(Mesh(me, founders, timing=self.plan.timing))
        for fault in self.plan.faults:
            self.world.at(fault.at * MILLISECOND, partial(self._strike, fault))
        self.world.at(self.plan.lasts * MILLISECOND, self._heal)

    def _new_peer(self, name: str, number: int) -> p.Peer:
        self._lives += 1
        return p.Peer(f"{name}.{self._lives}", name, number, f"memory:{name}")

    def _add(self, mesh: Mesh) -> None:
        peer = self.peers[mesh.me.life] = CountingLearner(mesh, self.plan)
        self._closed[mesh.me.life] = {}
        self._entered[mesh.me.life] = dict.fromkeys(mesh.members, mesh.has_model)
        self._had_model[mesh.me.life] = mesh.has_model
        self.world.add(peer.node, self._random.uniform(-0.02, 0.02), self._random.randrange(SECOND))

    def _join(self, name: str, through: list[str]) -> None:
        """A peer joins through these lives, whose addresses it knows."""
        self._numbers += 1
        ways = [(life, f"memory:{life}") for life in through]
        mesh = Mesh(self._new_peer(name, self._numbers), through=ways, timing=self.plan.timing)
        self._add(mesh)
        within = round(ANSWER_WITHIN * max(1.0, self.plan.scale))
        self.world.at(self.world.now + within, lambda: self._still_alone(mesh))

    def _still_alone(self, mesh: Mesh) -> None:
        """Restart a lone newcomer through a member, as its user would."""
        life = mesh.me.life
        if life in self.peers and not mesh.has_model and not mesh.evicted and not mesh.members and self._with_model:
            self._end(life, reported=False)
            self._join(mesh.me.name, [self._pick(self._with_model, 0.0)])

    @property
    def _with_model(self) -> list[str]:
        return [life for life, peer in self.peers.items() if peer.mesh.has_model and not peer.mesh.evicted]

    @property
    def _staying(self) -> list[str]:
        return [life for life in self._with_model if not self.peers[life].leaving]

    def _pick(self, lives: list[str], at: float) -> str:
        return lives[int(at * len(lives))]

    def _end(self, life: str, reported: bool) -> None:
        """kill -9."""
        self.world.crash(life)
        self._collect_counts(self.peers.pop(life))
        if reported:
            for other in list(self.peers.values()):
                self.world.at(self.world.now + MILLISECOND, partial(self._tell, other, life))

    def _tell(self, other: CountingLearner, life: str) -> None:
        """Report the end of a process, as the launcher does."""
        if other.name in self.peers and not other.mesh.evicted:
            host = self.world.hosts[other.name]
            other.mesh.mark_gone(self.world.local_time(host), life, "its process ended")
            self.world.tell(other.name)

    def _collect_counts(self, peer: CountingLearner) -> None:
        self.counts.update(peer.mesh.counts)
        self.counts["repeated words"] += peer.mesh.broadcast.repeated
        self.counts["donors lost"] += peer.mesh.newcomer.donors_lost

    def _after(self, life: str) -> None:
        """A peer that has left goes; one that is evicted rejoins."""
        peer = self.peers.get(life)
        if peer is None:
            return
        mesh, closed = peer.mesh, self._closed[life]
        for one in mesh.gone:
            if one not in closed and mesh.has_model and mesh.is_closed(one):
                closed[one] = mesh.heard.get(one, 0)
        entered = self._entered[life]
        for one in mesh.members:
            entered.setdefault(one, self._had_model[life])
        self._had_model[life] = mesh.has_model
        if peer.leads:
            self._check_leads(peer)
        if mesh.evicted == CUT_SHORT:
            self._check_copies(mesh)
        if peer.node.has_left and peer.node.may_go:
            self._end(life, reported=False)
        elif peer.node.evicted:
            self._end(life, reported=False)
            self.counts["rejoined"] += 1
            self._join(peer.mesh.me.name, [one.life for one in peer.mesh.contacts])

    def _check_leads(self, peer: CountingLearner) -> None:
        for life in peer.mesh.members:
            other = self.peers.get(life)
            if other is not None and other.leads and peer.name in other.mesh.members:
                self.violations.add("lead", f"{' and '.join(sorted((peer.name, life)))} lead at once")

    def _check_copies(self, mesh: Mesh) -> None:
        """Finds copies that were adopted too soon; since it rejoins, no other rule shows them."""
        versions = [(one.heard, one.copied) for one in mesh.members.values() if one.has_model]
        for life, one in mesh.members.items():
            if self._entered[mesh.me.life][life] and is_cut_short(mesh.heard, one.copied, versions, mesh.gone):
                what = f"{life} adopted messages that {mesh.me.life} had not received when it entered {life}"
                self.violations.add("copied", what)

    def _strike(self, fault: Fault) -> None:
        world, lives = self.world, list(self.peers)
        filled = self._with_model
        if self._healed or not filled:
            return
        until = world.now + fault.lasts * MILLISECOND
        victim = self._pick(lives, fault.pick)
        match fault.kind:
            case kind if kind in WEATHER:
                setattr(world.weather, kind, fault.rate)
                world.weather.late = 0.3
                world.at(until, lambda: setattr(world.weather, kind, 0.0))
                return
            case "join":
                self._numbers += 1
                self._join(f"worker-{self._numbers}", [victim])
            case "leave":
                if len(self._staying) < 2:
                    return
                self.peers[self._pick(self._staying, fault.pick)].leave()
            case "crash":
                if fault.how == "lead":
                    victim = min(filled, key=lambda life: self.peers[life].mesh.me.number)
                if not self._crash(victim, fault.lasts):
                    return
            case "crash on piece":
                self._on_pieces.append(fault)
                return
            case "crash on word":
                self._on_words.append((victim, fault))
                return
            case "pause":
                world.pause(victim, fault.lasts * MILLISECOND)
            case "cut":
                self._cut(fault, victim, self._pick(lives, fault.other), lives, until)
            case "hush":
                for a in filled:
                    for b in filled:
                        world.weather.cuts[a, b] = until
            case "part":
                side = Random(fault.other)
                left = [life for life in lives if side.random() < 0.2 + 0.6 * fault.pick]
                for a in left:
                    for b in lives:
                        if b not in left:
                            world.weather.cuts[a, b] = world.weather.cuts[b, a] = until
            case other:
                raise ValueError(f"unknown fault {other!r}")
        self.counts[f"fault: {fault.kind}"] += 1
        if fault.how == "lead":
            self.counts["fault: crash lead"] += 1

    def _cut(self, fault: Fault, one: str, other: str, lives: list[str], until: int) -> None:
        cuts = self.world.weather.cuts
        others = [other] if fault.how in ("both", "one way") else lives
        for two in others:
            if fault.how != "all in":
                cuts[one, two] = until
            if fault.how in ("both", "all in", "alone"):
                cuts[two, one] = until

    def _crash(self, life: str, back: int) -> bool:
        """Crash a peer; False if no other with a model lives."""
        if life not in self.peers or self._staying in ([life], []):
            self.counts["fault: withheld"] += 1
            return False
        name = self.peers[life].mesh.me.name
        self._end(life, reported=self.plan.told)
        if back:
            self.world.at(self.world.now + back * MILLISECOND, lambda: self._back(name))
        return True

    def _back(self, name: str) -> None:
        if filled := self._with_model:
            self._join(name, [self._pick(filled, self._random.random())])

    def _on_piece(self, sender: str, to: str, piece: p.ModelPiece) -> None:
        if not self._on_pieces or self._healed:
            return
        fault = self._on_pieces.pop()
        others = [life for life in self.peers if life not in (sender, to)] or [to]
        victim = {"donor": sender, "newcomer": to}.get(fault.how) or self._pick(others, fault.pick)
        after = int(fault.pick * 600) * MILLISECOND  # in flight, arrived, or entered
        self.world.at(self.world.now + after, lambda: self._crash_on(victim, "piece"))

    def _on_relay(self, sender: str, to: str, relay: p.Relay) -> None:
        for one in self._on_words:
            victim, fault = one
            if victim == sender == relay.origin and not self._healed and fault.pick * 7 % 1 < 0.5:
                self._on_words.remove(one)
                for life in self.peers:  # from here on no peer hears it
                    self.world.weather.cuts[sender, life] = self.world.now + 1
                self.world.at(self.world.now, lambda: self._crash_on(sender, "word"))
                return

    def _crash_on(self, victim: str, what: str) -> None:
        if not self._healed and self._crash(victim, 0):
            self.counts[f"fault: crash on {what}"] += 1

    def _heal(self) -> None:
        world = self.world
        for kind in WEATHER:
            setattr(world.weather, kind, 0.0)
        world.weather.cuts.clear()
        world.wake_within(SECOND)
        self._healed = True

    def _rests_within(self) -> int:
        plan = self.plan
        alone = plan.slots * plan.took * MILLISECOND  # one may be left for all
        within = round(LIVE_WITHIN * max(1.0, plan.scale)) + alone
        members = [item for peer in self.peers.values() for item in peer.mesh.members.items()]
        unheard = any(one.patient and not one.met and life not in self.peers for life, one in members)
        # A peer cannot tell a founder that died from one that is late if it never heard it.
        return within + (plan.timing.join_within if unheard else 0)

    def _settled(self) -> bool:
        if not self._with_model:
            return True  # all evicted each other: see ``_check``
        lives = list(self.peers)
        for peer in self.peers.values():
            mesh = peer.mesh
            together = set(mesh.members) == set(lives) - {peer.name}
            ended = peer.node.ended and peer.node.may_go and peer.node.compute.is_idle
            if not (together and ended and mesh.has_model and mesh.is_quiet and all(map(mesh.is_closed, mesh.gone))):
                return False
            if mesh.broadcast.retained or mesh.broadcast.early:
                return False
        return True

    def _unsettled(self) -> str:
        found = []
        for life, peer in self.peers.items():
            mesh, node, log = peer.mesh, peer.node, peer.node.log
            out = {other: slots.runs for other, slots in log.out.items() if slots}
            found.append(
                f"{life}: has_model={mesh.has_model} quiet={mesh.is_quiet} retained={mesh.broadcast.retained} early={mesh.broadcast.early} "
                f"leads={node.leads} ended={node.ended} may_go={node.may_go} done={log.done} halt={log.halt is not None} "
                f"todo={node.compute.todo.size} running={node.compute.running is not None} out={out} "
                f"judged={len(log.judged)} rested={list(log.rested)} unpublished={node.compute.unpublished.slots.size} "
                f"members={list(mesh.members)} open={[gone for gone in mesh.gone if not mesh.is_closed(gone)]}"
            )
        return "not at rest: " + "; ".join(found)

    def _check(self) -> None:
        peers = [self.peers[life] for life in self._with_model]
        if not peers:
            self.violations.add("live", "no peer has a model any more: all evicted each other")
            return
        first = peers[0]
        log = first.node.log
        self.counts.update({name: log.counts[name] for name in (TWICE, AGAIN)})
        self.counts.update({"elections": len({one.by for one in log.judged}) - 1, "words of owners": len(log.since)})
        for peer in peers:
            if _version(peer) != _version(first):
                self.violations.add("equal", f"versions: {peer.name} {_version(peer)}, {first.name} {_version(first)}")
            if (differ := peer.replica.weights() != first.replica.weights()).any():
                self.violations.add("equal", f"{peer.name} and {first.name} differ in {differ.sum()} weights")
            for what in peer.errors():
                self.violations.add("once", f"{peer.name}: {what}")
            for life, number in self._closed[peer.name].items():
                if (heard := first.mesh.heard.get(life, 0)) != number:
                    self.violations.add("closed", f"{peer.name} closed {life} at {number}, but {heard} were heard")


def _version(peer: CountingLearner) -> dict[str, int]:
    return {life: number for life, number in peer.mesh.heard.items() if number}


class PeersPlan(SeedPlan, frozen=True, kw_only=True, repr_omit_defaults=True):
    of = "peers"
    founders: int = 1
    told: bool = False  # the launcher reports deaths at once
    send: str = "all"  # or owned
    slots: int = 30  # to be learned
    told_every: int = 1  # slots
    took: int = 20  # milliseconds for one, at most

    @classmethod
    def draw(cls, seed: int) -> PeersPlan:
        random = Random(f"{seed}/peers")
        founders, lasts = random.choice([1, 2, 2, 3, 3, 4, 5, 6]), random.choice([4_000, 8_000, 14_000])
        delay, told = random.choice([1, 1, 5, 30]), random.random() < 0.5
        random.choice([100, 300, 700])  # no longer used: without it all seeds would be other runs
        plan = cls(
            seed=seed,
            founders=founders,
            lasts=lasts,
            delay=delay,
            told=told,
            send=random.choice(["all", "all", "all", "owned"]),
            slots=random.choice([30, 100, 250]),
            told_every=random.choice([1, 3, 8]),
            took=random.choice([20, 200, 400]),
            scale=draw_scale(seed),
        )
        families = random.sample(list(_DRAW), random.choice([0, 1, 2, 2, 3, 4, 5]))
        faults = [fault for family in families for fault in _DRAW[family](plan, random)]
        if random.random() < 0.1:
            faults += _hushed(plan, random)
        return replace(plan, faults=by_time(faults))


def _times(plan: PeersPlan, random: Random, most: int) -> list[int]:
    return [random.randrange(plan.lasts) for _ in range(random.randint(1, most))]


Family = Callable[[PeersPlan, Random], list[Fault]]


def _strikes(kind: str, most: int, lasts: list[int] | None = None, hows: list[str] | None = None) -> Family:
    def draw(plan: PeersPlan, random: Random) -> list[Fault]:
        faults = []
        for at in _times(plan, random, most):
            long, pick = random.choice(lasts) if lasts else 0, random.random()
            faults.append(Fault(kind, at, long, pick=pick, how=random.choice(hows) if hows else ""))
        return faults

    return draw


def _crowd(plan: PeersPlan, random: Random) -> list[Fault]:
    """Several peers join at once, through different peers."""
    at = random.randrange(plan.lasts)
    return [Fault("join", at + random.randrange(50), pick=random.random()) for _ in range(random.randint(2, 4))]


def _row(plan: PeersPlan, random: Random) -> list[Fault]:
    """Peers die one after the other, up to all but one."""
    at, gap = random.randrange(plan.lasts), random.choice([0, 20, 400])
    return [
        Fault("crash", at + i * gap, random.choice([0, 1_000]), pick=random.random())
        for i in range(random.randint(2, 5))
    ]


def _half_joined(plan: PeersPlan, random: Random) -> list[Fault]:
    """The donor, the newcomer or another peer dies during a model transfer."""
    faults = []
    for at in _times(plan, random, 2):
        faults += [Fault("join", at, pick=random.random())]
        faults += [Fault("join", at + random.randrange(30), pick=random.random())]
        who = random.random(), random.choice(["donor", "donor", "newcomer", "other"])
        faults += [Fault("crash on piece", at, pick=who[0], how=who[1])]
    return faults


def _hushed(plan: PeersPlan, random: Random) -> list[Fault]:
    """A newcomer copies words that no other peer has heard, and the donor dies."""
    at = random.randrange(plan.lasts)
    crash = Fault("crash on piece", at + 300, pick=random.random() / 3, how="donor")
    return [Fault("hush", at, 3_000), Fault("join", at + 300, pick=random.random()), crash]


def _cuts(plan: PeersPlan, random: Random) -> list[Fault]:
    """Cuts between two peers, in one direction, or around one peer."""
    return [
        Fault("cut", at, random.choice([500, 3_000, 7_000]), pick=random.random(), other=random.random(), how=how)
        for at in _times(plan, random, 3)
        for how in (random.choice(["both", "one way", "all in", "all out", "alone"]),)
    ]


def _partition(plan: PeersPlan, random: Random) -> list[Fault]:
    at, lasts = random.randrange(plan.lasts), random.choice([1_000, 6_000, 8_000])
    return [Fault("part", at, lasts, pick=random.random(), other=random.random())]


def _weather(kind: str, rates: list[float]) -> Family:
    return lambda plan, random: [
        Fault(kind, at, random.choice([1_000, 5_000]), rate=random.choice(rates)) for at in _times(plan, random, 2)
    ]


_DRAW: dict[str, Family] = {
    "joins": _strikes("join", 4),
    "crowd": _crowd,
    "leaves": _strikes("leave", 2),
    "crashes": _strikes("crash", 3, [0, 0, 500, 3_000], ["", "", "lead"]),
    "row": _row,
    "half joined": _half_joined,
    "mid word": _strikes("crash on word", 3, [0, 1_000]),  # it has sent a word to some peers only
    "pauses": _strikes("pause", 2, [300, 2_000, 6_500, 9_000]),
    "cuts": _cuts,
    "partition": _partition,
    "loss": _weather("loss", [0.05, 0.2, 0.5]),
    "repeat": _weather("repeat", [0.2, 0.5]),
    "slow": _weather("slow", [0.05, 0.2]),
}


PEERS = Scenario(
    name="peers",
    draw=PeersPlan.draw,
    run=lambda plan, trace: PeersScenario(plan, trace).verdict(),
    sometimes=counters("""
        claims refused; donors lost; elections; evicted; gone; models copied; rejoined; relayed
        repeated words; resent; slots dealt again; words of owners
        fault: crash; crash lead; crash on piece; crash on word; cut; hush; join; leave; part; pause
        network: cut off; lost; repeated; slow; very late
    """),
)
