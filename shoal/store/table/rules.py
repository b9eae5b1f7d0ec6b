"""shoal's own update rules: scalar functions that ``codegen`` inlines into kernels.

Rules that PyTorch has, too (torch.optim), do the same up to rounding: ``decay`` is its
weight_decay, a multiple of the weight that is added to the gradient, and for AdamW subtracted from
the weight itself. State starts at 0 and belongs to one weight: a key that is never pushed has no
momentum that carries it on, and is not decayed.
"""

from __future__ import annotations

import math
from typing import Any

State = tuple[float, ...]
Moved = tuple[float, State]


def add(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    return weight + gradient, state


def assign(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    return gradient, state


def sgd(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    return weight - settings.step * gradient, state


def sgd_decay(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    return weight - settings.step * (gradient + settings.decay * weight), state


def sgd_momentum(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    velocity = settings.momentum * state[0] + gradient + settings.decay * weight
    return weight - settings.step * velocity, (velocity,)


def sgd_dampened(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    """The first gradient is not dampened, as in PyTorch; ``state[1]`` is 1 after the first."""
    counts = 1.0 - settings.dampening * state[1]
    velocity = settings.momentum * state[0] + counts * (gradient + settings.decay * weight)
    return weight - settings.step * velocity, (velocity, 1.0)


def sgd_nesterov(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    gradient += settings.decay * weight
    velocity = settings.momentum * state[0] + gradient
    return weight - settings.step * (gradient + settings.momentum * velocity), (velocity,)


def adagrad(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    squares = state[0] + gradient * gradient
    return weight - settings.step * gradient / (math.sqrt(squares) + settings.epsilon), (squares,)


def rmsprop(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    gradient += settings.decay * weight
    squares = settings.alpha * state[0] + (1.0 - settings.alpha) * gradient * gradient
    return weight - settings.step * gradient / (math.sqrt(squares) + settings.epsilon), (squares,)


def rmsprop_momentum(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    gradient += settings.decay * weight
    squares = settings.alpha * state[0] + (1.0 - settings.alpha) * gradient * gradient
    velocity = settings.momentum * state[1] + gradient / (math.sqrt(squares) + settings.epsilon)
    return weight - settings.step * velocity, (squares, velocity)


def adam(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    return _adam(weight, state, gradient + settings.decay * weight, settings)


def adamw(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    return _adam(weight - settings.step * settings.decay * weight, state, gradient, settings)


def _adam(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    """Adam; the corrections 1 - beta^t are running averages of ones, so each weight has its t."""
    beta1, beta2 = settings.beta1, settings.beta2
    mean = beta1 * state[0] + (1.0 - beta1) * gradient
    square = beta2 * state[1] + (1.0 - beta2) * gradient * gradient
    ones1 = beta1 * state[2] + (1.0 - beta1)
    ones2 = beta2 * state[3] + (1.0 - beta2)
    moved = weight - settings.step * mean / (ones1 * (math.sqrt(square / ones2) + settings.epsilon))
    return moved, (mean, square, ones1, ones2)


def _shrink(value: float, by: float) -> float:
    """Towards 0 by so much, and no further."""
    if value > by:
        return value - by
    if value < -by:
        return value + by
    return 0.0


def proximal_sgd(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    step = settings.step
    return _shrink(weight - step * gradient, step * settings.l1) / (1.0 + step * settings.l2), state


def proximal_adagrad(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    squares = state[0] + gradient * gradient
    step = settings.step / (math.sqrt(squares) + settings.epsilon)
    return _shrink(weight - step * gradient, step * settings.l1) / (1.0 + step * settings.l2), (squares,)


SMALLEST = 1.1754943508222875e-38  # normal float32: a smaller one may round to -0
CURVATURE = 1e-12  # at least: a weight without data stays


def block_proximal(weight: float, state: State, gradient: tuple[float, float], settings: Any) -> Moved:
    """Delayed block proximal gradient (Li et al., NIPS 2014), in the norm of the curvature.

    ``gradient`` is the sum over all rows and a bound on their curvature. A weight of 0 whose
    gradient says that it stays 0 is written as -0: readers may leave the key out.
    """
    slope = gradient[0] + settings.l2 * weight
    if settings.kkt > 0.0 and weight == 0.0 and abs(slope) <= settings.kkt:
        return -0.0, state
    by = settings.step / max(gradient[1] + settings.l2, CURVATURE)
    moved = _shrink(weight - by * slope, by * settings.l1)
    return (moved if abs(moved) >= SMALLEST else 0.0), state


def ftrl(weight: float, state: State, gradient: float, settings: Any) -> Moved:
    z, squares = state[0], state[1] + gradient * gradient
    root = math.sqrt(squares)
    z += gradient - (root - math.sqrt(state[1])) / settings.alpha * weight
    # Of -z, since 0 / x must be 0 and not -0.
    return _shrink(-z, settings.l1) / ((settings.beta + root) / settings.alpha + settings.l2), (z, squares)
