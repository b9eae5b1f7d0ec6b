"""Rows and weights become a loss and a gradient.

    linear     Linear: logistic, hinge and squared loss on sparse rows

A model is a description and plain functions of their inputs: it holds no weights, knows no servers, draws nothing. The
weights it is given are those of a Local's keys, and the gradient it returns stands at the same keys.
"""

from __future__ import annotations

from shoal.models.linear import Linear

__all__ = ["Linear"]
