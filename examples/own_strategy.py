"""A strategy of your own: one slot at a time, nothing asked for ahead.

python examples/own_strategy.py
"""

from __future__ import annotations

from typing import Literal

import shoal
from shoal.nodes.server_strategy import ServerStrategy
from shoal.nodes.trainer import SlotStream
from shoal.strategy import register
from shoal.tables import TABLE, Apply, Each


@register
class OneByOne(ServerStrategy, frozen=True, tag="one-by-one", kw_only=True):
    """Pull, gradient, push; the next slot begins when the push is counted."""

    combine: Literal["mean", "sum"] = "mean"

    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        return Each(), None  # a push counts on arrival, and nobody waits for anybody

    async def run(self, stream: SlotStream) -> None:
        while not stream.over:
            slot = stream.next()
            if slot is None:
                await stream.client.park()  # others do not wait for an idle worker
                await stream.more()
                continue
            rows = stream.local(slot)
            weights = await stream.client.pull(TABLE, rows.listed)
            loss, gradient = await stream.gradient(rows, weights, self.combine == "mean")
            push = stream.client.push(TABLE, rows.listed, gradient, slot=slot)
            stream.push(slot, rows, loss, push)
            await push
        await stream.client.park()


if __name__ == "__main__":
    settings = {"launch.modules": ["own_strategy"], "data.rows": 50_000}
    run = shoal.train("clicks", strategy="one-by-one", workers=2, servers=2, epochs=1, settings=settings)
    print(f"test loss {run.summary['test_loss']:.4f}")
