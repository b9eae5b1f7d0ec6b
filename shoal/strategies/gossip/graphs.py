"""The links of named graphs, of random graphs, and of those in a file.

Links that go both ways stand once, the lower node first; one-way links as from -> to. A file has a
link in each line:

    # a comment
    0 1         these two hear each other
    1 -> 2      2 hears 1, and not the other way round

As soon as one link goes one way only, the graph is directed, and a link that goes both ways is two.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from shoal.errors import Invalid
from shoal.limits import EDGE_LINE, EDGE_LINES, MEMBERS

Links = list[tuple[int, int]]

LINK = re.compile(rb"\s*([0-9]{1,9})(\s*->\s*|\s+)([0-9]{1,9})\s*")
SWAPS = 10  # swaps of ends for every link of a random graph
TRIES = 32  # of random graphs; with three links each hardly one in a thousand falls apart
SHOWN = 80  # characters of a bad line


def ring(nodes: int) -> Links:
    return _hops(nodes, [1])


def one_way(nodes: int) -> Links:
    """A ring of one-way links."""
    return [(i, (i + 1) % nodes) for i in range(nodes)] if nodes > 1 else []


def torus(nodes: int) -> Links:
    """A grid, as square as possible, whose rows and columns are rings."""
    _, columns = sides(nodes)
    right = [(i, i - i % columns + (i + 1) % columns) for i in range(nodes)]
    down = [(i, (i + columns) % nodes) for i in range(nodes)]
    return both_ways(right + down)


def star(nodes: int) -> Links:
    return [(0, i) for i in range(1, nodes)]


def complete(nodes: int) -> Links:
    return [(i, j) for i in range(nodes) for j in range(i + 1, nodes)]


def exponential(nodes: int) -> Links:
    """Every node is linked to those 1, 2, 4, ... further: few links, short paths."""
    return _hops(nodes, [1 << k for k in range(max(nodes - 1, 0).bit_length())])


NAMED: dict[str, Callable[[int], Links]] = {
    "ring": ring,
    "one-way": one_way,
    "torus": torus,
    "star": star,
    "complete": complete,
    "exponential": exponential,
}


def sides(nodes: int) -> tuple[int, int]:
    """Rows and columns of a torus."""
    rows = next(rows for rows in range(math.isqrt(nodes), 0, -1) if nodes % rows == 0)
    if rows == 1 and nodes > 1:
        fit = [n for n in (nodes - 1, nodes + 1) if n >= 4]
        raise Invalid(
            f"{nodes} workers make no torus, since {nodes} is no product of two smaller numbers: take {' or '.join(map(str, fit)) or 4} "
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
        return both_ways([(places[i], places[j]) for i, j in ring(nodes)])
    if 2 * degree >= nodes:  # it holds together: draw the fewer missing links
        apart = dict.fromkeys(_stirred(_circle(nodes, nodes - 1 - degree), chance))
        return [link for link in complete(nodes) if link not in apart]
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
                raise Invalid(f"{here}: {start} is linked to itself: everybody hears itself anyway; remove the line")
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
    """Each pair once."""
    return sorted({(min(pair), max(pair)) for pair in links if pair[0] != pair[1]})


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with links, and their numbers. Refuses a pipe: reading it might block."""
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Invalid(f"{path} is no regular file: write the links to one")
        number = 0
        while line := file.readline(EDGE_LINE + 1):
            number += 1
            if len(line) > EDGE_LINE:
                raise Invalid(f"{path}, line {number} has more than {EDGE_LINE:,} characters: it is no list of links")
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
