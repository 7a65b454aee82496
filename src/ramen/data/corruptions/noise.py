"""Noise of sensors and of light."""

import numpy as np

from ramen.data.corruptions.filters import Images
from ramen.data.corruptions.pixels import Random


def gaussian_noise(x: Images, sigma: float, rng: Random) -> Images:
    """Add a normal number to every value."""
    return x + np.float32(sigma) * rng.standard_normal(x.shape, dtype=np.float32)


def shot_noise(x: Images, photons: float, rng: Random) -> Images:
    """Every value becomes a count of a few photons."""
    return (rng.poisson(x * photons) / photons).astype(np.float32)


def impulse_noise(x: Images, amount: float, rng: Random) -> Images:
    """Some values become black or white."""
    hit, salt = rng.random(x.shape) <= amount, rng.random(x.shape) < 0.5
    return np.where(hit, salt, x).astype(np.float32)


def speckle_noise(x: Images, sigma: float, rng: Random) -> Images:
    """Add to every value a normal number in proportion to it."""
    return x + x * (np.float32(sigma) * rng.standard_normal(x.shape, dtype=np.float32))
