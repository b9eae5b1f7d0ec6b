"""Fixtures that several test files of this folder share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Write images of noise in which one bright quadrant is the class.

    They are for modules, so this skips where PyTorch is missing.
    """
    pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 100, (640, 16, 16), np.uint8), draw.integers(0, 4, 640)
    for image, label in zip(x, y, strict=True):
        image[8 * (label // 2) :, 8 * (label % 2) :][:8, :8] += 100
    path = tmp_path_factory.mktemp("images") / "quadrants.npz"
    np.savez(path, x=x, y=y)
    return path
