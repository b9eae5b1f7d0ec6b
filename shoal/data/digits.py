"""scikit-learn's digits: 1,797 images of 8 x 8, a stand-in for MNIST. They are not MNIST.

Each pixel becomes a square of 3 x 3, with a border of 2 around the image, so that networks for
28 x 28 accept them. Values stay 0..16.
"""

from __future__ import annotations

import importlib.util

import numpy as np

from shoal.data.dense_file import DenseExamples, DensePair
from shoal.errors import Invalid

CLASSES, ROWS = 10, 1_797
LARGER, BORDER = 3, 2  # 8 * 3 + 2 * 2 = 28


def installed() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def read() -> DensePair:
    """All images in scikit-learn's order; the caller must hold some out as test rows."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise Invalid("digits comes with scikit-learn, which is not installed: pip install 'shoal[sklearn]'") from None
    images, labels = load_digits(return_X_y=True)
    small = images.astype(np.uint8).reshape(-1, 8, 8)
    large = small.repeat(LARGER, axis=1).repeat(LARGER, axis=2)
    framed = np.pad(large, ((0, 0), (BORDER, BORDER), (BORDER, BORDER)))
    return DensePair(DenseExamples(framed, labels.astype(np.float32)), classes=CLASSES)
