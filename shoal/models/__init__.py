"""Rows and weights become a loss and a gradient.

    linear          Linear: logistic, hinge and squared loss on sparse rows
    torch_module    Module: any torch.nn.Module, its parameters one flat range
    zoo             modules with a name: linear, cnn, sheet
    learning        Learner: what a node needs of a model, made from the description and the rows

A model is a description, plain data that travels. A learner computes with weights that it is
given: it knows no servers, and draws nothing but what the slot says. The gradient that it returns
stands at the keys whose weights it was given.
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
    "objective",
    "torch_factory",
    "torch_learner",
    "torch_module",
    "trained",
    "trained_module",
)  # for other packages; the other modules are private

__all__ = ["Linear", "Module", "needs_torch"]


def needs_torch(who: str) -> Any:
    """PyTorch, which is an extra; ``who`` needs it."""
    try:
        import torch
    except ImportError:
        raise Invalid(f"{who} needs PyTorch, which is not installed: pip install 'shoal[torch]'") from None
    return torch
