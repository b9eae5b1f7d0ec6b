"""What failed may have failed because a part of the model is lost: then the run goes back to a checkpoint, and nobody gives up.

Whoever takes part is fenced when it does, and comes back as a new incarnation. Until then tasks fail in several ways: nobody
holds the keys, a server is of another generation already, a task follows one that failed. The view tells these from a real error.
"""

from __future__ import annotations

from shoal.nodes.strategy import TABLE
from shoal.nodes.worker import Worker
from shoal.wire.messages.groups import namespace, whole


async def goes_back(worker: Worker, generation: int) -> bool:
    """Whether the newest view says so: it has another generation, or nobody for a part of a table of the run's."""
    await worker.client.refresh()
    view, group = worker.client.session.view, worker.client.session.group
    ours = [one for one in view.tables if namespace(one.name) == group]
    there = any(one.name == whole(TABLE, group) for one in ours)
    # Also a table beside the weights, such as the tally: a run goes back when a part of any is lost.
    return view.generation != generation or not there or any(not place.servers for t in ours for place in t.places)
