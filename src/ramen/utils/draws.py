"""Seeded random draws that stay the same.

NumPy guarantees that a bit generator with a given seed always yields the same words; what its ``Generator``
computes from them (shuffles, gammas) may change between versions. Every published figure depends on an order
of images, so everything here is computed from the raw words of PCG64.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Draws:
    """Random numbers determined by a seed and by their purpose.

    Draws for one purpose do not depend on draws for another: a subsample does not change with the protocol
    that orders it.

    >>> Draws(0, "order").permutation(5).tolist() == Draws(0, "order").permutation(5).tolist()
    True
    """

    def __init__(self, seed: int, purpose: str) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()),))
        self._words = np.random.PCG64(sequence)

    def permutation(self, count: int) -> IntArray:
        """The numbers below ``count`` in random order: the argsort of random 64-bit keys."""
        return np.argsort(self._raw(count), kind="stable").astype(np.int64)

    def uniform(self, count: int) -> FloatArray:
        """Numbers in (0, 1), the midpoints of 2**52 equal intervals."""
        steps: FloatArray = (self._raw(count) >> np.uint64(12)).astype(np.float64)
        return (steps + 0.5) * 2.0**-52

    def normal(self, count: int) -> FloatArray:
        """Standard normal numbers, by the Box-Muller transform."""
        radius, turn = self.uniform(count), self.uniform(count)
        return np.asarray(np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * turn))

    def geometric(self, mean: float, count: int) -> IntArray:
        """Whole numbers, at least 1; the probability to go on to the next is always ``1 - 1 / mean``."""
        if mean == 1:
            return np.ones(count, dtype=np.int64)
        steps = np.log(self.uniform(count)) / np.log1p(-1 / mean)
        return np.asarray(1 + np.floor(np.minimum(steps, 2.0**62)), dtype=np.int64)

    def dirichlet(self, concentration: float, parts: int) -> FloatArray:
        """Proportions ``(parts,)`` from the symmetric Dirichlet distribution.

        Gamma numbers of a small shape ``a`` underflow, so their logarithms are drawn: a gamma number of shape
        ``a + 1`` times ``U ** (1 / a)`` has shape ``a``.
        """
        logs = np.log(self._gamma(concentration + 1, parts)) + np.log(self.uniform(parts)) / concentration
        proportions = np.exp(logs - logs.max())
        return np.asarray(proportions / proportions.sum())

    def _gamma(self, shape: float, count: int) -> FloatArray:
        """Gamma numbers of a shape of at least 1, by the rejection method of Marsaglia and Tsang (2000)."""
        d = shape - 1 / 3
        accepted = np.empty(0)
        while len(accepted) < count:
            normal, uniform = self.normal(count), self.uniform(count)
            cube = (1 + normal / np.sqrt(9 * d)) ** 3
            cube, normal, uniform = (x[cube > 0] for x in (cube, normal, uniform))
            kept = np.log(uniform) < normal**2 / 2 + d * (1 - cube + np.log(cube))
            accepted = np.concatenate([accepted, d * cube[kept]])
        return accepted[:count]

    def _raw(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._words.random_raw(count), dtype=np.uint64)
