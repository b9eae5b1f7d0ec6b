"""What failed may have failed because a part of the model is lost: then the run goes back to a checkpoint, and nobody gives up.

Whoever takes part is fenced when it does, and comes back as a new incarnation. Until then tasks fail in several ways: nobody
holds the keys, a server is of another generation already, a task follows one that failed. The view tells these from a real error.
"""

from __future__ import annotations

from shoal.nodes.worker import Worker
from shoal.strategies import TABLE
from shoal.wire.groups import whole


async def goes_back(worker: Worker, generation: int) -> bool:
    """Whether the newest view says so: it has another generation, or nobody for a part of the table."""
    await worker.client.refresh()
    view = worker.client.view
    name = whole(TABLE, worker.client.group)
    table = next((one for one in view.tables if one.name == name), None)
    return view.generation != generation or table is None or any(not place.servers for place in table.places)
