"""Blur: out of focus, through glass, by motion, by zoom, Gaussian."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import filters
from ramen.data.corruptions.filters import Images
from ramen.data.corruptions.pixels import Random, as_bytes, as_floats


@lru_cache
def disk(radius: float, alias_sigma: float) -> NDArray[np.float64]:
    """A disk, softened by a small Gaussian.

    Up to radius 8 the grid is 17 x 17 and the Gaussian has 3 x 3 taps; for larger disks the grid is just
    large enough and the Gaussian has 5 x 5 taps. The grid is mirrored at its edge, so a disk that touches the
    edge sums to a little more than 1.
    """
    reach, half = (8, 1) if radius <= 8 else (int(radius), 2)
    steps, taps = np.arange(-reach, reach + 1), np.arange(-half, half + 1)
    hard = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(float)
    weights = np.exp(-0.5 * taps**2 / alias_sigma**2)
    weights /= weights.sum()
    soft = np.zeros((len(steps), len(steps)))
    for tap, weight in zip(taps, weights, strict=True):
        np.add.at(soft, (np.arange(len(steps)), filters.mirrored(steps + reach + tap, len(steps))), weight)
    return np.asarray(soft @ hard @ soft.T / hard.sum())


def defocus_blur(x: Images, radius_and_alias: tuple[float, float], rng: Random) -> Images:
    """Every pixel spreads into a disk."""
    return filters.convolve(x, disk(*radius_and_alias))


def glass_blur(x: Images, parameters: tuple[float, int, int], rng: Random) -> Images:
    """Pixels take the values of random neighbours, between two blurs."""
    sigma, reach, rounds = parameters
    panes = as_bytes(filters.gaussian(x, sigma, 4, filters.nearest))
    count, height, width = panes.shape[:3]
    number = np.arange(count)
    for _ in range(rounds):
        # The order matters: a pixel may be read after it has been overwritten.
        down, right = rng.integers(-reach, reach, (2, count, height, width))
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                source = (number, row + down[:, row, column], column + right[:, row, column])
                panes[:, row, column] = panes[source]
    return filters.gaussian(as_floats(panes), sigma, 4, filters.nearest)


def motion_blur(x: Images, parameters: tuple[int, float], rng: Random) -> Images:
    """Every pixel spreads along a line of random direction."""
    radius, sigma = parameters
    return filters.motion(x, radius, sigma, angles=rng.uniform(-45, 45, (len(x),)))


def zoom_blur(x: Images, limit_and_step: tuple[float, float], rng: Random) -> Images:
    """The mean of increasing enlargements of the center."""
    factors = np.arange(1, *limit_and_step)
    height, width = x.shape[1:3]
    zoomed = x.copy()
    for factor in factors:
        zoomed += filters.apply(filters.zoom_matrix(height, factor), filters.zoom_matrix(width, factor), x)
    return zoomed / np.float32(len(factors) + 1)


def gaussian_blur(x: Images, sigma: float, rng: Random) -> Images:
    """Every pixel spreads into a Gaussian."""
    return filters.gaussian(x, sigma, 4, filters.nearest)
