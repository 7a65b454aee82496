"""Images of objects in styles, each determined by a seed and its position."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramen.data.drawings import shapes, styles


@dataclass(frozen=True)
class DrawnImages:
    """Pixels ``(N, 32, 32, 3)``, and the share of the image's side that each object takes."""

    pixels: NDArray[np.uint8]
    extents: NDArray[np.float32]


def draw_images(objects: Sequence[str], drawn_in: Sequence[str], seed: Sequence[int]) -> DrawnImages:
    """Draw one image per pair of object and style; image ``n`` depends on ``(*seed, n)``."""
    rows = list(_draw(objects, drawn_in, seed))
    return DrawnImages(
        np.stack([pixels for pixels, _ in rows]), np.array([e for _, e in rows], dtype=np.float32)
    )


def _draw(
    objects: Sequence[str], drawn_in: Sequence[str], seed: Sequence[int]
) -> Iterator[tuple[styles.Pixels, float]]:
    for number, (name, style) in enumerate(zip(objects, drawn_in, strict=True)):
        rng = np.random.default_rng((*seed, number))
        parts = shapes.random_object(name, rng)
        corners = np.concatenate([part.points for part in parts])
        yield styles.draw(parts, style, rng), float(np.ptp(corners, axis=0).max() / 2)
