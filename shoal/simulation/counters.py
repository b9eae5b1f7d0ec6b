"""What all nodes of a run have counted, added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.simulation.run import StoreRun


def counts_of(run: StoreRun) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part in _parts(run):
        counts.update(part)
    counts.update({w if ":" in w else f"network: {w}": n for w, n in run.world.counts.items()})
    return counts


def _parts(run: StoreRun) -> Iterator[dict[str, int]]:
    yield run.stragglers.counts
    for coordinator in run.cluster.coordinators:
        yield {f"coordinator: {what}": n for what, n in coordinator.counts.items()}
    for server in [*run.cluster.former, *run.cluster.servers.values()]:
        yield {f"server: {what}": n for what, n in server.counts.items()}
        yield server.handles.facts("server: lists")
        for holding in server.tables.values():
            yield {f"server: {what}": n for what, n in holding.counts.items()}
            if holding.own is not None:
                yield {f"server: {what}": n for what, n in holding.own.counts.items()}
    for worker in run.everyone:
        yield {f"client: {what}": n for what, n in worker.client.counts.items()}
        yield {"client: resent": worker.client.flight.resent}
        yield {f"client: lists, {what}": n for what, n in worker.client.names.counts.items()}
