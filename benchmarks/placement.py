"""How even segments lie after many servers joined, left and died, and how much was copied.

    shoal        consistent hashing with bounded loads at first; then the moves of
                 ``cluster.rebalance``, and new copies of what a dead server had (``Roster.refill``)
    ring         consistent hashing with virtual nodes (Karger et al., STOC 1997)
    rendezvous   the servers that rank highest for a segment (Thaler and Ravishankar, 1998)
    modulo       the hash of a segment modulo the number of servers, and the next ones

All rules see the same changes, drawn from a seed. Copied are segments on servers that did not have
them; a new primary of its own copy is free. That is shown over two numbers. ``least`` is what
leads from what each server had to what it has, a bound for every rule with its own counts.
``shares`` is the mean share of each server that joined or left, the same for all rules; it is no
bound, as a rule that gives a newcomer less copies less, so read it beside how even it is. A dead
server's copies are lost; if they were the only ones they come from a checkpoint, and count alike.
Even is the most that one server has over the mean: of primaries, which do the work, and of all
copies, which take the memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

from msgspec.structs import replace

from benchmarks import skew as skewed
from benchmarks.harness import Bench, Cell, Columns, Option, Record, Report, Say, quiet, report, sheet
from shoal.cluster.placement import POINTS_PER_SERVER, HashRing, Holders, point
from shoal.cluster.rebalance_plan import plan
from shoal.cluster.roster import Roster
from shoal.errors import Invalid
from shoal.limits import SEGMENTS_PER_SERVER
from shoal.tables import Dense
from shoal.wire.messages import BackfillComplete, Replicas, TablePlaces

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Change = tuple[str, str]  # join, leave or crash; who
Sets = list[Holders]
RULES = ("shoal", "ring", "rendezvous", "modulo")
Rule = Callable[[Sequence[Change]], Iterator[Sets]]


class Settings(Record, frozen=True, kw_only=True):
    """Which clusters, and how many changes."""

    servers: tuple[int, ...] = (3, 8, 32)  # at first; later half to twice as many
    # segments, at first
    per_server: tuple[int, ...] = (SEGMENTS_PER_SERVER, 4 * SEGMENTS_PER_SERVER)
    copies: tuple[int, ...] = (1, 2, 3)
    changes: int = 100
    seed: int = 0


FULL = Settings()
QUICK = Settings(servers=(3, 8), per_server=(SEGMENTS_PER_SERVER,), copies=(1, 2))


class Figures(Record, frozen=True):
    """How one rule did, over all changes."""

    copied: int  # segments
    least: int  # segments that had to be, to have as many as each then had
    primaries: float  # the most of one server over the mean: on the mean of all changes,
    primaries_worst: float  # and after the worst of them
    held: float  # of all copies, likewise
    held_worst: float

    def ratio(self, shares: float) -> float:
        return self.copied / shares

    @property
    def over_least(self) -> float:
        return self.copied / self.least if self.least else 1.0


class Case(Record, frozen=True):
    """One cluster, all rules."""

    servers: int
    segments: int
    copies: int
    shares: float  # segments: the mean shares of those who came and went, all together
    kinds: dict[str, int]  # changes of each
    rules: dict[str, Figures]


Results = Report[Settings, Case]


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if not (settings.servers and settings.per_server and settings.copies) or settings.changes < 1:
        raise Invalid("a benchmark needs a cluster and at least one change")
    if min(settings.copies) < 1 or max(settings.copies) >= min(settings.servers) + 1 or min(settings.servers) < 2:
        raise Invalid("at least two servers, and as many as there are copies")
    clusters = itertools.product(settings.servers, settings.per_server, settings.copies)
    cases = (case_of(servers, servers * per_server, copies, settings) for servers, per_server, copies in clusters)
    return report(Results, settings, cases, say, SAID)


def case_of(servers: int, segments: int, copies: int, settings: Settings) -> Case:
    changes = _changes(servers, copies, settings)
    rules: dict[str, Rule] = {
        "shoal": lambda changes: _ours(servers, segments, copies, changes),
        "ring": lambda changes: _hashed(_on_ring, segments, copies, changes),
        "rendezvous": lambda changes: _hashed(_by_rank, segments, copies, changes),
        "modulo": lambda changes: _hashed(_by_remainder, segments, copies, changes),
    }
    kinds = {kind: sum(one == kind for one, _ in changes[servers:]) for kind in ("join", "leave", "crash")}
    shares = sum(_shares(changes, servers, segments, copies))
    return Case(
        servers,
        segments,
        copies,
        shares,
        kinds,
        {name: _judged(rule, changes, servers) for name, rule in rules.items()},
    )


def _changes(servers: int, copies: int, settings: Settings) -> list[Change]:
    """First as many joins as there are servers, then the changes that count."""
    draw = Random(f"{settings.seed} {servers} {copies}")
    alive = [f"server-{i}" for i in range(servers)]
    changes = [("join", name) for name in alive]
    fewest, most = max(copies + 1, -(-servers // 2)), 2 * servers
    for i in range(settings.changes):
        may = [
            kind
            for kind in ("join", "leave", "crash")
            if (len(alive) < most if kind == "join" else len(alive) > fewest)
        ]
        kind = draw.choice(may or ["join"])
        name = f"server-{servers + i}" if kind == "join" else draw.choice(alive)
        alive = [*alive, name] if kind == "join" else [one for one in alive if one != name]
        changes.append((kind, name))
    return changes


def _shares(changes: Sequence[Change], servers: int, segments: int, copies: int) -> Iterator[float]:
    """The mean share of each server that joins or leaves."""
    there = servers
    for kind, _ in changes[servers:]:
        yield segments * copies / (there + 1 if kind == "join" else there)
        there += 1 if kind == "join" else -1


def _judged(rule: Rule, changes: Sequence[Change], servers: int) -> Figures:
    alive: dict[str, None] = {}
    before: Sets = []
    copied, least, primaries, held = 0, 0, list[float](), list[float]()
    for at, ((kind, name), sets) in enumerate(zip(changes, rule(changes), strict=True)):
        if kind == "join":
            alive[name] = None
        else:
            del alive[name]
        if any(one not in alive for holders in sets for one in holders):
            raise Invalid(f"after {kind} of {name} somebody who is not there holds a segment: report this")
        if at >= servers:
            had, has = _counts(before, alive), _counts(sets, alive)
            primaries.append(_most(_counts([holders[:1] for holders in sets], alive)))
            held.append(_most(has))
            least += sum(max(0, number - had[one]) for one, number in has.items())
            copied += sum(one not in old for old, new in zip(before, sets, strict=True) for one in new)
        before = sets
    return Figures(copied, least, fmean(primaries), max(primaries), fmean(held), max(held))


def _counts(sets: Sequence[Holders], alive: Iterable[str]) -> dict[str, int]:
    """Of those who are there."""
    counts = dict.fromkeys(alive, 0)
    for holders in sets:
        for name in holders:
            if name in counts:
                counts[name] += 1
    return counts


def _most(counts: dict[str, int]) -> float:
    return max(counts.values()) / fmean(counts.values())


# ---------------------------------------------------------------- rivals


def _hashed(
    choose: Callable[[int, Sequence[str], int], Holders], segments: int, copies: int, changes: Sequence[Change]
) -> Iterator[Sets]:
    alive: list[str] = []
    for kind, name in changes:
        alive = sorted([*alive, name] if kind == "join" else [one for one in alive if one != name])
        yield [choose(segment, alive, min(copies, len(alive))) for segment in range(segments)]


_RINGS: dict[tuple[str, ...], HashRing] = {}


def _on_ring(segment: int, alive: Sequence[str], copies: int) -> Holders:
    names = tuple(alive)
    if names not in _RINGS:
        _RINGS.clear()
        _RINGS[names] = HashRing(names)
    met: dict[str, None] = {}
    for name in _RINGS[names].walk(1, segment):
        met[name] = None
        if len(met) == copies:
            break
    return tuple(met)


def _by_rank(segment: int, alive: Sequence[str], copies: int) -> Holders:
    return tuple(sorted(alive, key=lambda name: point(f"{name} {segment}"), reverse=True)[:copies])


def _by_remainder(segment: int, alive: Sequence[str], copies: int) -> Holders:
    first = point(f"segment {segment}")
    return tuple(alive[(first + i) % len(alive)] for i in range(copies))


# ---------------------------------------------------------------- ours


def _ours(servers: int, segments: int, copies: int, changes: Sequence[Change]) -> Iterator[Sets]:
    """The roster's own bookkeeping; all that is wanted arrives at once."""
    roster = Roster(copies=copies)
    for at, (kind, name) in enumerate(changes):
        if kind == "join":
            roster.join(0, name, "server", name, "", at + 1)
        elif kind == "crash" and copies > 1:
            roster.remove(name, "crash")
        else:
            _rearranged(roster, leaving=[name])
            roster.remove(name, "leave")
        if at + 1 < servers:
            yield []
            continue
        if at + 1 == servers:
            roster.create("w", Dense(rows=segments), starts=list(range(segments)))
        _refilled(roster)
        _rearranged(roster, leaving=[])
        yield [tuple(place.servers) for place in roster.tables["w"].places]


def _rearranged(roster: Roster, leaving: list[str]) -> None:
    while moves := plan(list(roster.tables.values()), roster.servers(), leaving=leaving, balance="count", most=1 << 60):
        for one in moves:
            table = roster.tables[one.table]
            turn = {one.source: one.target, one.target: one.source}
            servers = [turn.get(name, name) for name in table.places[one.segment].servers]
            _put(roster, table, one.segment, replace(table.places[one.segment], servers=[n for n in servers if n]))
        roster.changed()


def _put(roster: Roster, table: TablePlaces, segment: int, place: Replicas) -> None:
    places = list(table.places)
    places[segment] = place
    roster.tables[table.name] = replace(table, places=places)


def _refilled(roster: Roster) -> None:
    """Every set that lost a member gets another."""
    for person in roster.members.values():
        person.view = roster.number
    while roster.assignment.refill():
        for number, place in enumerate(roster.tables["w"].places):
            if place.filling:
                theirs = roster.members[place.filling].member.incarnation
                full = BackfillComplete(0, roster.tables["w"].number, [number], [place.epoch], place.filling, theirs)
                roster.assignment.filled(place.servers[0], full)
        for person in roster.members.values():
            person.view = roster.number


# ---------------------------------------------------------------- showing it


def _said(rule: str) -> Cell:
    return lambda case: f"{case.rules[rule].over_least:.2f} ({case.rules[rule].primaries:.2f})"


SAID: Columns = (
    ("servers", "{0.servers}"),
    ("segments", "{0.segments}"),
    ("copies", "{0.copies}"),
    *((name, _said(name)) for name in RULES),
)
COLUMNS = (  # of a case, a rule of it, and its figures
    ("servers", lambda row: f"{row[0].servers:,}" if row[1] == RULES[0] else ""),
    ("segments", lambda row: f"{row[0].segments:,}" if row[1] == RULES[0] else ""),
    ("copies", lambda row: f"{row[0].copies}" if row[1] == RULES[0] else ""),
    ("<rule", "{0[1]}"),
    ("over the least", "{0[2].over_least:.2f}"),
    ("of shares", lambda row: f"{row[2].ratio(row[0].shares):.2f}"),
    ("primaries even", "{0[2].primaries:.2f}"),
    ("worst", "{0[2].primaries_worst:.2f}"),
    ("all copies even", "{0[2].held:.2f}"),
    ("worst", "{0[2].held_worst:.2f}"),
)


def table(results: Results) -> Table:
    return sheet(
        f"placement after {results.settings.changes:,} servers came, left or died",
        COLUMNS,
        [(case, name, one) for case in results.cases for name, one in case.rules.items()],
        "over the least: copied, over what that rule had to copy for the counts it came to. of shares: over the mean shares of "
        "those who came and went; a rule that leaves copies uneven can copy less. even: the most of one server over the mean, "
        f"on the mean and at worst. The ring has {POINTS_PER_SERVER} points a server",
        section=lambda row: id(row[0]),
    )


def picture(results: Results) -> Figure:
    """A panel for each number of copies: copied against even, a point for each cluster and rule."""
    from shoal.views import axes as draw
    from shoal.views.axes import INK, MARKERS, SERIES

    kinds = list(dict.fromkeys(case.copies for case in results.cases))
    figure = draw.canvas(3.7, 9.6)
    panels = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    for panel, copies in zip(panels, kinds, strict=True):
        cases = [case for case in results.cases if case.copies == copies]
        for name, color, mark in zip(cases[0].rules, SERIES, MARKERS, strict=False):
            x = [case.rules[name].over_least for case in cases]
            y = [case.rules[name].primaries for case in cases]
            panel.plot(x, y, mark, color=color, markersize=5, label=name, alpha=0.85)
        panel.axvline(1, color=INK, linewidth=0.6)
        panel.axhline(1, color=INK, linewidth=0.6)
        draw.titled(panel, "one copy" if copies == 1 else f"{copies} copies")
        panel.set(xscale="log", xlabel="segments copied / least possible")
        panel.set_xticks([1, 2, 5, 10, 20], labels=["1", "2", "5", "10", "20"])
        panel.minorticks_off()
        draw.tidy(panel)
    panels[0].set_ylabel("busiest server / mean")
    ours = [case.rules["shoal"] for case in results.cases if "shoal" in case.rules]
    if ours:
        most, copied = max(one.primaries for one in ours), max(one.over_least for one in ours)
        title = f"shoal's busiest server has at most {most:.2f} times the mean; it copies at most {copied:.2f} times the least"
        draw.headline(figure, title, size=11)
    draw.legend(figure, loc="outside lower center", ncols=4)
    return figure


def choose(settings: Settings, skew: bool = False) -> Settings | skewed.Settings:
    return settings if not skew else skewed.QUICK if settings is QUICK else skewed.FULL


def _is_skewed(results: Results | skewed.Results) -> bool:
    return isinstance(results.settings, skewed.Settings)


BENCH = Bench(
    help="Servers come, leave and die: how even segments lie, and what had to be copied, against other rules.",
    quick_help="Smaller clusters.",
    measure=lambda settings, say: (skewed.measure if isinstance(settings, skewed.Settings) else measure)(settings, say),
    table=lambda results: (skewed.table if _is_skewed(results) else table)(results),
    options=(
        Option("skew", "Real servers, a few keys of which are asked for most: by count, and by load.", is_flag=True),
    ),
    picture=lambda results: (skewed.picture if _is_skewed(results) else picture)(results),
    choose=choose,
)
