"""Gossip graphs: links, mixing weights, and the speed of agreement.

    graph = Graph.of(strategy, workers, seed)       by its name, or from a file
    graph.check(strategy.allow_disconnected)        refused unless it is connected
    graph.mixing()                                  the matrix W: row i has the weights of node i
    graph.gap(), graph.rounds()                     1 - |second eigenvalue|, and rounds to agree

Links that go both ways have Metropolis weights, 1 / (1 + the larger of both degrees), so that W is
symmetric and each row and column has the sum 1: the mean of all models stays what it is. Where
links go one way only, a node with d listeners cuts what it has into 1 + d equal shares (push-sum):
the columns have the sum 1, and nothing gets lost.

Whether a graph holds together is read off its links, never off an eigenvalue that is nearly 1. A
node that is gone keeps its place, and has no links. Nothing here computes with a model, sends or
reads the time; chance comes from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.events import Linked, counted
from shoal.files import replace_file
from shoal.job import Job
from shoal.limits import MEMBERS
from shoal.strategies.gossip import Gossip, graphs

Matrix = npt.NDArray[np.float64]

NOTHING = 1e-9  # an eigenvalue below this is 0, but for rounding
LINKS = "topology.txt"  # in the folder of a run
PIECES = 8  # that are named in an error,
NAMED = 12  # and workers of each


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes 0, 1, ... and the links between them."""

    name: str
    nodes: int
    links: list[tuple[int, int]]  # sorted; the lower node first, or from -> to
    directed: bool = False
    gone: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def of(cls, strategy: Gossip, nodes: int | None, seed: int) -> Graph:
        """As the settings say; of a file, None is for as many nodes as it names."""
        if nodes is not None and not 1 <= nodes <= MEMBERS:
            raise Invalid(f"a graph of {nodes:,} workers: give 1 to {MEMBERS:,}")
        name, directed = strategy.topology, strategy.topology == "one-way"
        if name == "file":
            links, directed, nodes = graphs.read(Path(strategy.edges), nodes)
        elif nodes is None:
            raise Invalid(f"a {name} graph has as many workers as one likes: say how many")
        elif name == "random":
            chance = Random(f"links {seed}")
            links = graphs.random_regular(
                nodes, strategy.degree, chance, lambda links: len(cls(name, nodes, links).parts()) == 1
            )
        else:
            links = graphs.NAMED[name](nodes)
        if directed and strategy.mode == "async":
            what = strategy.edges if name == "file" else f"topology={name}"
            raise Invalid(
                f"{what} has links that go one way, and two who take their mean must hear each other: strategy.mode=sync, or links "
                f"that go both ways"
            )
        return cls(name, nodes, sorted(links), directed)

    @property
    def living(self) -> list[int]:
        return [i for i in range(self.nodes) if i not in self.gone]

    def hears(self, node: int) -> list[int]:
        """The in-neighbours of a node."""
        return self._hears[node]

    def tells(self, node: int) -> list[int]:
        """The out-neighbours of a node."""
        return self._tells[node]

    def without(self, node: int) -> Graph:
        """The same places; this one is gone, and its links with it."""
        left = [link for link in self.links if node not in link]
        return replace(self, links=left, gone=self.gone | {node})

    # ------------------------------------------------------------ does it hold together

    def parts(self) -> list[list[int]]:
        """The strongly connected components of the living nodes, largest first."""
        return [list(part) for part in self._parts]

    def words(self) -> str:
        """The groups, for people: 0 1 2 | 3 4."""
        named = [" ".join(map(str, part[:NAMED])) + (" ..." if len(part) > NAMED else "") for part in self._parts]
        if len(named) > PIECES + 1:  # to say that there is one more takes longer than to name it
            named[PIECES:] = [f"and {len(named) - PIECES:,} more"]
        return " | ".join(named)

    def check(self, allow_disconnected: bool) -> None:
        """Refuse a graph in which all can never agree."""
        if len(self._parts) < 2 or allow_disconnected:
            return
        how = "strongly connected" if self.directed else "connected"
        move = f"add links {'that lead back' if self.directed else 'between them'}"
        if lonely := [i for i in self.living if not self._hears[i] and not self._tells[i]]:
            said = " ".join(map(str, lonely[:NAMED])) + (" ..." if len(lonely) > NAMED else "")
            move = f"add links to {said}, which {'has' if len(lonely) == 1 else 'have'} none at all, take fewer workers"
        raise Invalid(
            f"the {self.name} graph of {counted(self.nodes, 'worker')} is not {how}, so they can never agree: it falls into "
            f"{len(self._parts):,} pieces, {self.words()}: {move}, or see it "
            f"fail with --allow-disconnected"
        )

    # ------------------------------------------------------------ how soon all agree

    def mixing(self) -> Matrix:
        """W: row i has the weights of node i. Lost nodes keep their own value."""
        weights = np.zeros((self.nodes, self.nodes))
        for i in range(self.nodes):
            for j in self._hears[i]:
                d = len(self._tells[j]) if self.directed else max(len(self._hears[i]), len(self._hears[j]))
                weights[i, j] = 1 / (1 + d)
        own = weights.sum(axis=0)
        np.fill_diagonal(weights, 1 - own)
        return weights

    def second(self) -> float:
        """|second eigenvalue| of W: the share of the distance that a round leaves."""
        return self._second

    def gap(self) -> float:
        return 1 - self._second

    def rounds(self, left: float = 0.01) -> float | None:
        """Rounds until only ``left`` of the distance from the mean is left; None: never."""
        if len(self.living) < 2:
            return 0.0
        if self._second >= 1:
            return None
        return max(1.0, math.log(left) / math.log(self._second)) if self._second > 0 else 1.0

    def event(self, seconds: float, names: Sequence[str], why: str = "", pairs: bool = False, rows: str = "") -> Linked:
        """The graph as an event."""
        return Linked(
            seconds=seconds,
            topology=self.name,
            nodes=list(names),
            links=list(self.links),
            directed=self.directed,
            gap=self.gap(),
            rounds=self.rounds(),
            parts=self.parts(),
            why=why,
            pairs=pairs,
            rows=rows,
        )

    # ------------------------------------------------------------ inside

    @cached_property
    def _hears(self) -> list[list[int]]:
        return self._neighbours(reverse=True)

    @cached_property
    def _tells(self) -> list[list[int]]:
        return self._neighbours(reverse=False)

    def _neighbours(self, reverse: bool) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.nodes)]
        for start, stop in self.links:
            if not self.directed or not reverse:
                found[start].append(stop)
            if not self.directed or reverse:
                found[stop].append(start)
        return [sorted(one) for one in found]

    @cached_property
    def _parts(self) -> list[list[int]]:
        """Strongly connected components (Kosaraju): search forward, then backward from the last."""
        order: list[int] = []
        seen = set(self.gone)
        for start in self.living:
            order += _search(start, self._tells, seen)
        found, seen = [], set(self.gone)
        for start in reversed(order):
            if part := _search(start, self._hears, seen):
                found.append(sorted(part))
        return sorted(found, key=lambda part: (-len(part), part))

    @cached_property
    def _second(self) -> float:
        living = self.living
        if len(living) < 2:
            return 0.0
        if len(self._parts) > 1:
            return 1.0
        weights = self.mixing()[np.ix_(living, living)]
        values = np.linalg.eigvals(weights) if self.directed else np.linalg.eigvalsh(weights)
        second = float(np.sort(np.abs(values))[-2])
        return second if second > NOTHING else 0.0


def _search(start: int, neighbours: list[list[int]], seen: set[int]) -> list[int]:
    """Nodes that can be reached and were not seen, in the order in which the search leaves them."""
    if start in seen:
        return []
    seen.add(start)
    order, path = [], [(start, iter(neighbours[start]))]
    while path:
        node, ahead = path[-1]
        for other in ahead:
            if other not in seen:
                seen.add(other)
                path.append((other, iter(neighbours[other])))
                break
        else:
            order.append(node)
            path.pop()
    return order


def graph_of(job: Job, folder: Path | None) -> tuple[Graph, list[str]]:
    """The graph that a run began with, or the one of the settings; and notes for the user.

    The links of a file are copied into the run's folder: the file may change, or be moved, before
    the run is resumed, exported or compared in a study.
    """
    assert isinstance(job.strategy, Gossip)
    if job.strategy.topology != "file" or folder is None or not (folder / LINKS).is_file():
        return Graph.of(job.strategy, job.workers, job.seed), []
    own = Graph.of(msgspec.structs.replace(job.strategy, edges=str(folder / LINKS)), job.workers, job.seed)
    try:
        now = Graph.of(job.strategy, job.workers, job.seed)
    except Invalid:  # the file may be gone
        return own, []
    if (now.links, now.directed) == (own.links, own.directed):
        return own, []
    return own, [f"{job.strategy.edges} has other links by now: the run goes on with its own ({LINKS} in its folder)"]


def keep_links(graph: Graph, folder: Path | None) -> None:
    """Copy the links of a file into the run's folder."""
    if graph.name == "file" and folder is not None and not (folder / LINKS).exists():
        between = " -> " if graph.directed else " "
        text = "".join(f"{start}{between}{stop}\n" for start, stop in graph.links)
        replace_file(folder / LINKS, (text or "# no links\n").encode())
