"""Gossip graphs: links, mixing weights, and the speed of agreement.

    graph = Gossip(topology=...).graph(workers, seed)      by its name, or from a file
    graph.check(strategy.allow_disconnected)               refused unless it is connected
    graph.mixing()                                         the matrix W: row i has the weights of i
    graph.gap, graph.rounds()                              1 - |second eigenvalue|; rounds to agree

Links that go both ways have Metropolis weights, 1 / (1 + the larger of both degrees), so that each
row and column of W has the sum 1: the mean of all models stays what it is. Where links go one way
only, a node with d listeners cuts what it has into 1 + d equal shares (push-sum).

Links that go both ways stand once, the lower node first; one-way links as from -> to. A file has a
link in each line, "0 1" or, one way only, "0 -> 1": then the graph is directed, and a link that
goes both ways is two. Whether a graph holds together is read off its links, never off an eigenvalue
that is nearly 1. A node that is gone keeps its place, and has no links.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.events import Linked, counted
from shoal.files import replace_file
from shoal.limits import EDGE_LINE, EDGE_LINES, MEMBERS

Matrix = npt.NDArray[np.float64]
Links = list[tuple[int, int]]

NOTHING = 1e-9  # an eigenvalue below this is 0, but for rounding
LINKS = "topology.txt"  # in the folder of a run
PIECES = 8  # that are named in an error,
NAMED = 12  # and workers of each
LINK = re.compile(rb"\s*([0-9]{1,9})(\s*->\s*|\s+)([0-9]{1,9})\s*")
SWAPS = 10  # swaps of ends for every link of a random graph
TRIES = 32  # of random graphs; with three links each hardly one in a thousand falls apart
SHOWN = 80  # characters of a bad line


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes 0, 1, ... and the links between them."""

    name: str
    nodes: int
    links: list[tuple[int, int]]  # sorted; the lower node first, or from -> to
    directed: bool = False
    gone: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, name: str, nodes: int | None, seed: int, degree: int = 0, edges: str = "") -> Graph:
        """A graph by its name; of a file (``edges``), None is for as many nodes as it names."""
        if nodes is not None and not 1 <= nodes <= MEMBERS:
            raise Invalid(f"a graph of {nodes:,} workers: give 1 to {MEMBERS:,}")
        directed = name == "one-way"
        if name == "file":
            links, directed, nodes = read(Path(edges), nodes)
        elif nodes is None:
            raise Invalid(f"a {name} graph can have any number of workers: say how many")
        elif name == "random":
            chance = Random(f"links {seed}")
            links = random_regular(nodes, degree, chance, lambda links: len(cls(name, nodes, links).parts) == 1)
        else:
            links = SHAPES[name](nodes)
        return cls(name, nodes, sorted(links), directed)

    @property
    def living(self) -> list[int]:
        return [i for i in range(self.nodes) if i not in self.gone]

    @cached_property
    def senders(self) -> list[list[int]]:
        """By node: its in-neighbours."""
        found: list[list[int]] = [[] for _ in range(self.nodes)]
        for start, stop in self.links:
            found[stop].append(start)
            if not self.directed:
                found[start].append(stop)
        return [sorted(one) for one in found]

    @cached_property
    def receivers(self) -> list[list[int]]:
        """By node: its out-neighbours."""
        return replace(self, links=[(stop, start) for start, stop in self.links]).senders

    def without(self, node: int) -> Graph:
        left = [link for link in self.links if node not in link]
        return replace(self, links=left, gone=self.gone | {node})

    # ------------------------------------------------------------ does it hold together

    @cached_property
    def parts(self) -> list[list[int]]:
        """The strongly connected components of the living nodes, largest first."""
        found, left = [], dict.fromkeys(self.living)
        while left:
            start = next(iter(left))
            # A way there and back leads only by nodes from which there is a way back.
            part = sorted(_reach(start, self.receivers, _reach(start, self.senders, left)))
            found.append(part)
            for node in part:
                del left[node]
        return sorted(found, key=lambda part: (-len(part), part))

    def words(self) -> str:
        """The groups, for people: 0 1 2 | 3 4."""
        named = [" ".join(map(str, part[:NAMED])) + (" ..." if len(part) > NAMED else "") for part in self.parts]
        if len(named) > PIECES + 1:  # to say that there is one more takes longer than to name it
            named[PIECES:] = [f"and {len(named) - PIECES:,} more"]
        return " | ".join(named)

    def check(self, allow_disconnected: bool) -> None:
        """Refuse a graph in which all can never agree."""
        if len(self.parts) < 2 or allow_disconnected:
            return
        how = "strongly connected" if self.directed else "connected"
        move = f"add links {'that lead back' if self.directed else 'between them'}"
        if lonely := [i for i in self.living if not self.senders[i] and not self.receivers[i]]:
            said = " ".join(map(str, lonely[:NAMED])) + (" ..." if len(lonely) > NAMED else "")
            move = f"add links to {said}, which {'has' if len(lonely) == 1 else 'have'} none at all, take fewer workers"
        raise Invalid(
            f"the {self.name} graph of {counted(self.nodes, 'worker')} is not {how}, so they can never agree: it falls into "
            f"{len(self.parts):,} pieces, {self.words()}: {move}, or see it "
            f"fail with --allow-disconnected"
        )

    # ------------------------------------------------------------ how soon all agree

    def mixing(self) -> Matrix:
        """W: row i has the weights of node i. Lost nodes keep their own value."""
        weights = np.zeros((self.nodes, self.nodes))
        for i in range(self.nodes):
            for j in self.senders[i]:
                d = len(self.receivers[j]) if self.directed else max(len(self.senders[i]), len(self.senders[j]))
                weights[i, j] = 1 / (1 + d)
        own = weights.sum(axis=0)
        np.fill_diagonal(weights, 1 - own)
        return weights

    @cached_property
    def second(self) -> float:
        """|second eigenvalue| of W: the share of the distance that a round leaves."""
        living = self.living
        if len(living) < 2:
            return 0.0
        if len(self.parts) > 1:
            return 1.0
        weights = self.mixing()[np.ix_(living, living)]
        values = np.linalg.eigvals(weights) if self.directed else np.linalg.eigvalsh(weights)
        second = float(np.sort(np.abs(values))[-2])
        return second if second > NOTHING else 0.0

    @property
    def gap(self) -> float:
        return 1 - self.second

    def rounds(self, left: float = 0.01) -> float | None:
        """Rounds until only ``left`` of the distance from the mean is left; None: never."""
        if len(self.living) < 2:
            return 0.0
        if self.second >= 1:
            return None
        return max(1.0, math.log(left) / math.log(self.second)) if self.second > 0 else 1.0

    def event(self, seconds: float, names: Sequence[str], why: str = "", pairs: bool = False, rows: str = "") -> Linked:
        return Linked(
            seconds=seconds,
            topology=self.name,
            nodes=list(names),
            links=list(self.links),
            directed=self.directed,
            gap=self.gap,
            rounds=self.rounds(),
            parts=self.parts,
            why=why,
            pairs=pairs,
            rows=rows,
        )


def _reach(start: int, neighbours: list[list[int]], among: Container[int]) -> set[int]:
    seen, ahead = {start}, [start]
    while ahead:
        new = [node for node in neighbours[ahead.pop()] if node not in seen and node in among]
        seen.update(new)
        ahead += new
    return seen


def keep_links(graph: Graph, folder: Path | None) -> None:
    if graph.name == "file" and folder is not None and not (folder / LINKS).exists():
        between = " -> " if graph.directed else " "
        text = "".join(f"{start}{between}{stop}\n" for start, stop in graph.links)
        replace_file(folder / LINKS, (text or "# no links\n").encode())


# ---------------------------------------------------------------- links


def torus(nodes: int) -> Links:
    """A grid, as square as possible, whose rows and columns are rings."""
    _, columns = sides(nodes)
    right = [(i, i - i % columns + (i + 1) % columns) for i in range(nodes)]
    down = [(i, (i + columns) % nodes) for i in range(nodes)]
    return both_ways(right + down)


SHAPES: dict[str, Callable[[int], Links]] = {
    "ring": lambda nodes: _hops(nodes, [1]),
    "one-way": lambda nodes: [(i, (i + 1) % nodes) for i in range(nodes)] if nodes > 1 else [],
    "torus": torus,
    "star": lambda nodes: [(0, i) for i in range(1, nodes)],
    "complete": lambda nodes: list(combinations(range(nodes), 2)),
    # Every node is linked to those 1, 2, 4, ... further: few links, short paths.
    "exponential": lambda nodes: _hops(nodes, [1 << k for k in range(max(nodes - 1, 0).bit_length())]),
}


def sides(nodes: int) -> tuple[int, int]:
    rows = next(rows for rows in range(math.isqrt(nodes), 0, -1) if nodes % rows == 0)
    if rows == 1 and nodes > 1:
        fit = [n for n in (nodes - 1, nodes + 1) if n >= 4]
        raise Invalid(
            f"{nodes} workers do not make a torus, since {nodes} is not a product of two smaller numbers: take {' or '.join(map(str, fit)) or 4} "
            f"workers, or a ring"
        )
    return rows, nodes // rows


def random_regular(nodes: int, degree: int, chance: Random, holds: Callable[[Links], bool]) -> Links:
    """Every node has ``degree`` random links; drawn again until the graph ``holds`` together."""
    if nodes == 1:
        return []
    if degree >= nodes:
        raise Invalid(f"{degree} links for each of {nodes} workers: at most {nodes - 1} (degree)")
    if degree * nodes % 2:
        raise Invalid(
            f"{degree} links for each of {nodes} workers: every link has two ends, so one of the two numbers must be even "
            f"(degree={degree + 1 if degree + 1 < nodes else degree - 1}, or one worker more)"
        )
    if degree == 2 and nodes > 2:  # a connected one is a ring, in any order
        places = list(range(nodes))
        chance.shuffle(places)
        return both_ways([(places[i], places[j]) for i, j in _hops(nodes, [1])])
    if 2 * degree >= nodes:  # it holds together: draw the fewer missing links
        apart = dict.fromkeys(_stirred(_circle(nodes, nodes - 1 - degree), chance))
        return [link for link in combinations(range(nodes), 2) if link not in apart]
    links = _circle(nodes, degree)
    for _ in range(TRIES):
        links = _stirred(links, chance)
        if degree == 1 or holds(links):
            return links
    raise Invalid(
        f"no graph with {degree} links for each of {nodes} workers held together in {TRIES} tries: give more links "
        f"(degree), or another seed"
    )


def read(path: Path, nodes: int | None) -> tuple[Links, bool, int]:
    """The links of a file, whether they are directed, and the nodes (None: as many as it names)."""
    one_way: dict[tuple[int, int], None] = {}
    most, where = -1, 0  # the highest place, and its line
    try:
        for number, line in _lines(path):
            here = f"{path}, line {number}"
            if (found := LINK.fullmatch(line)) is None:
                said = line[:SHOWN].decode("latin-1").encode("unicode_escape").decode("ascii")
                raise Invalid(f"{here}: {said}: a link is two numbers, as in 0 1, or 0 -> 1 if it goes one way")
            start, stop = int(found[1]), int(found[3])
            if start == stop:
                raise Invalid(f"{here}: {start} is linked to itself, which has no effect: remove the line")
            most, where = max((most, where), (max(start, stop), number), key=lambda one: one[0])
            one_way[start, stop] = None
            if b"->" not in found[2]:
                one_way[stop, start] = None
    except OSError as error:
        raise Invalid(f"cannot read the links in {path} ({error.strerror}): name a file that is there") from None
    if most >= (room := MEMBERS if nodes is None else nodes):
        more = f", or take {most + 1:,} workers" if most < MEMBERS else f"; there can be {MEMBERS:,} at most"
        raise Invalid(f"{path}, line {where}: there is no worker {most}, they are 0 to {room - 1}: correct it{more}")
    if nodes is None and most < 0:
        raise Invalid(f"{path} has no links: write one a line, as in 0 1, or 0 -> 1 if it goes one way")
    nodes = most + 1 if nodes is None else nodes
    if all((stop, start) in one_way for start, stop in one_way):
        return both_ways(list(one_way)), False, nodes
    return sorted(one_way), True, nodes


def both_ways(links: Links) -> Links:
    return sorted({(min(pair), max(pair)) for pair in links if pair[0] != pair[1]})


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with links, and their numbers. Refuses a pipe: reading it might block."""
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Invalid(f"{path} is not a regular file: write the links to one")
        number = 0
        while line := file.readline(EDGE_LINE + 1):
            number += 1
            if len(line) > EDGE_LINE:
                raise Invalid(f"{path}, line {number} has more than {EDGE_LINE:,} characters: not a list of links")
            if number > EDGE_LINES:
                raise Invalid(f"{path} has more than {EDGE_LINES:,} lines: give fewer links")
            if line := line.partition(b"#")[0].strip():
                yield number, line


def _hops(nodes: int, hops: list[int]) -> Links:
    return both_ways([(i, (i + hop) % nodes) for i in range(nodes) for hop in hops])


def _circle(nodes: int, degree: int) -> Links:
    """Every node is linked to the nearest; with an odd degree, also to the opposite one."""
    return _hops(nodes, list(range(1, degree // 2 + 1)) + ([nodes // 2] if degree % 2 else []))


def _stirred(links: Links, chance: Random) -> Links:
    """Swap the ends of random pairs of links; every node keeps its degree."""
    links, there = list(links), dict.fromkeys(links)
    for _ in range(SWAPS * len(links)):
        one, other = chance.randrange(len(links)), chance.randrange(len(links))
        (a, b), (c, d) = links[one], links[other] if chance.random() < 0.5 else links[other][::-1]
        made = [(min(a, c), max(a, c)), (min(b, d), max(b, d))]
        if a == c or b == d or one == other or made[0] in there or made[1] in there:
            continue
        for at, link in zip((one, other), made, strict=True):
            del there[links[at]]
            links[at], there[link] = link, None
    return sorted(links)
