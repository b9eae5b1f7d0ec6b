"""The graph of a gossip run, whose links may come from a file: then the run's folder has a copy of them.

That file may be changed, or lie elsewhere, when the run is taken up again, exported or held against a study. What a run began with
stays its own, and is what it goes on with; if the file says something else by then, that is told.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from shoal.errors import Invalid
from shoal.files import replace_file
from shoal.job import Job
from shoal.strategies.gossip.settings import Gossip
from shoal.strategies.gossip.topology import Graph

LINKS = "topology.txt"  # in the folder of a run


def graph_of(job: Job, folder: Path | None) -> tuple[Graph, list[str]]:
    """As the run began with it, or as the settings say; and what a user should hear of it."""
    assert isinstance(job.strategy, Gossip)
    if job.strategy.topology != "file" or folder is None or not (folder / LINKS).is_file():
        return Graph.of(job.strategy, job.workers, job.seed), []
    own = Graph.of(replace(job.strategy, edges=str(folder / LINKS)), job.workers, job.seed)
    try:
        now = Graph.of(job.strategy, job.workers, job.seed)
    except Invalid:  # it need not be there any more
        return own, []
    if (now.links, now.directed) == (own.links, own.directed):
        return own, []
    return own, [f"{job.strategy.edges} has other links by now: the run goes on with its own ({LINKS} in its folder)"]


def keep(graph: Graph, folder: Path | None) -> None:
    """Write the copy, unless the links have a name."""
    if graph.name == "file" and folder is not None and not (folder / LINKS).exists():
        between = " -> " if graph.directed else " "
        text = "".join(f"{start}{between}{stop}\n" for start, stop in graph.links)
        replace_file(folder / LINKS, (text or "# no links\n").encode())
