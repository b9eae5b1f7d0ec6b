"""Models: compute a loss and a gradient from rows and weights.

    linear          Linear: logistic, hinge and squared loss on sparse rows
    torch_module    Module: any torch.nn.Module, its parameters one flat range
    zoo             named modules: linear, cnn, sheet
    learner         Learner: what a node needs of a model, made from the description and the rows

A model is a description: plain data that can be sent. A learner computes with the weights it gets:
it knows no servers, and its randomness depends on the slot alone. It returns the gradient at the
keys of those weights.
"""

from __future__ import annotations

from typing import Any

from shoal.errors import Invalid
from shoal.models.linear import Linear
from shoal.models.torch_module import Module

PUBLIC = (
    "block_margins",
    "columns",
    "inputs",
    "kernels",
    "learner",
    "linear",
    "torch_factory",
    "torch_learner",
    "torch_module",
    "trained",
)  # for other packages; the other modules are private

__all__ = ["Linear", "Module", "needs_torch"]


def needs_torch(who: str) -> Any:
    """Import PyTorch, an optional extra; ``who`` needs it."""
    try:
        import torch
    except ImportError:
        raise Invalid(f"{who} needs PyTorch, which is not installed: pip install 'shoal[torch]'") from None
    return torch
