"""Distributed optimizers and embeddings for PyTorch.

    import shoal.torch

    optimizer = shoal.torch.distribute(model, optimizer)    # the update runs on the servers
    loader = DataLoader(data, batch_size=64, sampler=optimizer.sampler(data))

Start it with ``shoal launch --workers 4 --servers 2 train.py``. ``Embedding`` and ``EmbeddingBag``
keep their rows on the servers. Names are imported on first use; without PyTorch the error says how
to install it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shoal.models import needs_torch
from shoal.torch.rank import say_errors_in_a_line

if TYPE_CHECKING:
    from shoal.torch.embedding import Embedding as Embedding
    from shoal.torch.embedding import EmbeddingBag as EmbeddingBag
    from shoal.torch.loop import Distributed as Distributed
    from shoal.torch.loop import distribute as distribute
    from shoal.torch.rank import Place as Place

_WHERE = {
    "Distributed": "loop",
    "Embedding": "embedding",
    "EmbeddingBag": "embedding",
    "Place": "rank",
    "distribute": "loop",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'shoal.torch' has no attribute {name!r}")
    say_errors_in_a_line()
    needs_torch("shoal.torch")
    value = getattr(importlib.import_module(f"shoal.torch.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
