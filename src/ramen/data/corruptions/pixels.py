"""Conversion between the bytes of an image and numbers in [0, 1]."""

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions.filters import Images

Random = np.random.Generator


def as_floats(pixels: NDArray[np.uint8]) -> Images:
    """Bytes as numbers in [0, 1]."""
    return pixels.astype(np.float32) / np.float32(255)


def as_bytes(x: Images) -> NDArray[np.uint8]:
    """Numbers in [0, 1] as bytes, truncated as in the released files.

    The small addend makes up for the rounding error of the division by 255.
    """
    return np.asarray(np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)
