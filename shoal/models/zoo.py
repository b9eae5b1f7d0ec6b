"""Named modules for images of one channel and about ten classes.

    linear   one dense layer
    cnn      two convolutions and two dense layers
    sheet    the network of the Hildesheim exercise sheet, twelve steps in its order

Each is made for the shape of an example and the number of classes.
"""

from __future__ import annotations

import math

from torch import nn

from shoal.errors import Invalid


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    first, channels, height, width = _image("cnn", shape, 16)
    return nn.Sequential(
        *first,
        nn.Conv2d(channels, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * _after(height) * _after(width), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def sheet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of the exercise sheet.

    conv1, max-pool1, ReLU, conv2, max-pool2, ReLU, dropout, max-pool3, FC1, ReLU, FC2, softmax.

    The softmax is in the loss: cross entropy uses its logarithm, which would be log(0) for an
    underflow in a separate step.
    """
    first, channels, height, width = _image("sheet", shape, 8)
    return nn.Sequential(
        *first,
        nn.Conv2d(channels, 16, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 8) * (width // 8), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _after(side: int) -> int:
    """The side length after two convolutions of 5 and two poolings of 2."""
    return ((side - 4) // 2 - 4) // 2


def _image(name: str, shape: tuple[int, ...], least: int) -> tuple[list[nn.Module], int, int, int]:
    """A layer that adds a missing channel axis; channels, height, width."""
    first: list[nn.Module] = []
    if len(shape) == 2:
        first, shape = [nn.Unflatten(1, (1, shape[0]))], (1, *shape)
    if len(shape) != 3 or min(shape[1:]) < least:
        raise Invalid(f"model {name!r} is for images of {least} x {least} or more, examples here have shape {shape}")
    return first, shape[0], shape[1], shape[2]
