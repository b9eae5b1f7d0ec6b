"""``shoal topology NAME``: shows a gossip graph before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.common import as_json, at_least_one, command, option, out_file

if TYPE_CHECKING:
    from shoal.strategies.gossip.topology import Graph

SHOWN = 12  # nodes whose weights fit a screen
NODES = 8  # by default
LEFT = (0.1, 0.01, 1e-6)  # of the distance
# As in strategies.gossip.Topology, whose import is expensive.
NAMES = ("ring", "one-way", "torus", "star", "complete", "exponential", "random", "file")


@command
@click.argument("name", type=click.Choice(NAMES))
@at_least_one("--nodes", "How many workers.  [default: 8; of a file, as many as it names]")
@option(
    "--edges",
    metavar="FILE",
    help='The file of a file graph: a line for each link, "0 1", or "0 -> 1" if it goes one way.',
)
@at_least_one("--degree", "How many links each node of a random graph has.  [default: 3]")
@option("--seed", type=int, default=0, help="Draw a random graph from this seed.")
@out_file("Draw it here (.png, .svg, .pdf).")
@as_json("Print it as JSON, with all weights.")
def topology(
    name: str, nodes: int | None, edges: str | None, degree: int | None, seed: int, out: Path | None, as_json: bool
) -> None:
    """Look at a graph of workers that gossip: its links, its pieces, its weights, and how
    soon all agree on it.

    \b
    shoal topology ring --nodes 16
    shoal topology random --nodes 16 --degree 4 --seed 7 --out random.png
    shoal topology file --edges links.txt

    Rounds are those until so much of the distance of all models from their mean is left, if nobody
    learns meanwhile. Exit code 1 if not everybody hears of everybody: on such a graph they never
    agree.
    """
    graph = _graph(name, nodes, edges, degree, seed)
    if out is not None:
        from shoal.files import or_refuse
        from shoal.views.graph import draw

        with or_refuse(f"write {out}", "choose another place (--out)"):
            draw(graph.event(0.0, [str(node) for node in range(graph.nodes)]), out)
    if as_json:
        click.echo(_as_json(facts(graph)))
    else:
        click.echo("\n".join(page(graph)))
        if out is not None:
            click.echo(f"the picture: {click.format_filename(out)}")
    if len(graph.parts) > 1:
        click.get_current_context().exit(1)


def _graph(name: str, nodes: int | None, edges: str | None, degree: int | None, seed: int) -> Graph:
    from shoal.errors import Invalid
    from shoal.strategies.gossip import Gossip

    if degree is not None and name != "random":
        raise Invalid(f"--degree is for random graphs, and a {name} graph has its own: leave it away")
    if (name == "file") != (edges is not None):
        raise Invalid("a file graph needs --edges FILE, and no other has it: shoal topology file --edges links.txt")
    if nodes is None and edges is None:
        nodes = NODES
    given = {} if degree is None else {"degree": degree}
    strategy = Gossip(topology=name, edges=edges or "", **given)  # type: ignore[arg-type]
    return strategy.graph(nodes, seed)


def facts(graph: Graph) -> dict[str, object]:
    return {
        "topology": graph.name,
        "nodes": graph.nodes,
        "directed": graph.directed,
        "links": graph.links,
        "parts": graph.parts,
        "connected": len(graph.parts) == 1,
        "gap": graph.gap,
        "second_eigenvalue": graph.second,
        # until this share of the distance is left
        "rounds": {f"{left:g}": graph.rounds(left) for left in LEFT},
        "weights": graph.mixing().tolist(),
    }


def _as_json(told: dict[str, object]) -> str:
    """JSON with a line per fact, and matrices on one line each."""
    import msgspec

    return (
        "{\n" + ",\n".join(f'  "{name}": {msgspec.json.encode(fact).decode()}' for name, fact in told.items()) + "\n}"
    )


def page(graph: Graph) -> list[str]:
    from shoal.views import format

    degrees = sorted(len(graph.receivers[node]) for node in range(graph.nodes))
    parts = graph.parts
    each = f"{degrees[0]:,}" if degrees[0] == degrees[-1] else f"{degrees[0]:,} to {degrees[-1]:,}"
    ways = "one-way link" if graph.directed else "link"
    held = "1: everybody hears of everybody" if len(parts) == 1 else f"{len(parts):,}: {graph.words()}"
    lines = [
        f"{graph.name}: {format.many(graph.nodes, 'worker')}, {format.many(len(graph.links), ways)}, {each} from each",
        f"pieces             {held}",
        f"spectral gap       {graph.gap:.4g}   (second eigenvalue {graph.second:.4g})",
        f"predicted rounds   {_rounds(graph)}",
    ]
    if len(parts) > 1:
        lines.append("they never agree: `shoal train` refuses it, unless it is to be seen (--allow-disconnected)")
    return [*lines, "", *_weights(graph)]


def _rounds(graph: Graph) -> str:
    from shoal.views import format

    found = [(left, rounds) for left in LEFT if (rounds := graph.rounds(left)) is not None]
    return ", ".join(f"{format.rounds(rounds)} to {left:g}" for left, rounds in found) or "never"


def _weights(graph: Graph) -> list[str]:
    what = "shares of push-sum, row: who is sent, column: by whom" if graph.directed else "Metropolis weights"
    if graph.nodes > SHOWN:
        return [f"{what}: --json shows those of more than {SHOWN} nodes"]
    rows = [" ".join(f"{value:5.3f}" if value else "    ." for value in row) for row in graph.mixing().tolist()]
    return [what, *(f"  {node:>2}  {row}" for node, row in enumerate(rows))]
