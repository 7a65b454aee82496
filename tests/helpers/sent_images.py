"""Images as clients send them to an engine, decided by a number."""

import numpy as np

from ramen.client.operations import SentImage


def pixels(seed: int, side: int = 32) -> np.ndarray:
    """An image of the size that small classifiers take: noise at a coarse scale."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return coarse.repeat(side // 8, 0).repeat(side // 8, 1)


def sent(*seeds: int) -> list[SentImage]:
    """Images with their numbers as keys."""
    return [SentImage(str(seed), pixels(seed)) for seed in seeds]
