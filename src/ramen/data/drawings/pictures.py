"""Pictures of objects in styles, each decided by a seed and its number alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramen.data.drawings import shapes, styles


@dataclass(frozen=True)
class Pictures:
    """Pixels ``(N, 32, 32, 3)`` and how much of the picture's side the object takes."""

    pixels: NDArray[np.uint8]
    extents: NDArray[np.float32]


def draw_pictures(objects: Sequence[str], drawn_in: Sequence[str], seed: Sequence[int]) -> Pictures:
    """One picture for each pair of an object and a style; picture ``n`` depends on ``(*seed, n)``."""
    rows = list(_draw(objects, drawn_in, seed))
    return Pictures(
        np.stack([pixels for pixels, _ in rows]), np.array([e for _, e in rows], dtype=np.float32)
    )


def _draw(
    objects: Sequence[str], drawn_in: Sequence[str], seed: Sequence[int]
) -> Iterator[tuple[styles.Picture, float]]:
    for number, (name, style) in enumerate(zip(objects, drawn_in, strict=True)):
        rng = np.random.default_rng((*seed, number))
        parts = shapes.individual(name, rng)
        corners = np.concatenate([part.points for part in parts])
        yield styles.draw(parts, style, rng), float(np.ptp(corners, axis=0).max() / 2)
