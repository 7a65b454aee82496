"""Intervals of what the studies measure."""

import numpy as np
import torch
from shared import repeated_difference


def test_the_interval_of_runs_with_common_images_covers_the_truth():
    """Runs of one collection of images: what they have in common must not make the interval narrower."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(2000):
        gains = rng.choice([-1, 0, 1], 150, p=[0.1, 0.7, 0.2])
        images = np.concatenate([rng.permutation(150)[:100] for _ in range(3)])
        runs = np.repeat(np.arange(3), 100)
        found = repeated_difference(*map(torch.from_numpy, (gains[images], images, runs)))
        held += abs(found.points - 10) <= found.margin
    assert 0.93 <= held / 2000 <= 0.97
