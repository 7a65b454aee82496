"""Seeded random draws that stay the same.

NumPy promises that a bit generator of a given seed yields the same words for ever; what its ``Generator``
makes of them (shuffles, gammas) may change from one version to the next. An order of pictures stands behind
every published figure, so everything here is made of PCG64's raw words alone.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


class Draws:
    """Random numbers decided by a seed and by what they are for.

    Draws for one purpose are the same whatever else was drawn: a subsample does not change with the protocol
    that orders it.

    >>> Draws(0, "order").permutation(5).tolist() == Draws(0, "order").permutation(5).tolist()
    True
    """

    def __init__(self, seed: int, purpose: str) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()),))
        self._words = np.random.PCG64(sequence)

    def permutation(self, count: int) -> Whole:
        """The numbers below ``count`` in random order: those of random 64-bit keys, sorted."""
        return np.argsort(self._raw(count), kind="stable").astype(np.int64)

    def uniform(self, count: int) -> Real:
        """Numbers in (0, 1), the middles of 2**52 equal steps."""
        steps: Real = (self._raw(count) >> np.uint64(12)).astype(np.float64)
        return (steps + 0.5) * 2.0**-52

    def normal(self, count: int) -> Real:
        """Standard normal numbers, by Box and Muller's transform."""
        radius, turn = self.uniform(count), self.uniform(count)
        return np.asarray(np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * turn))

    def geometric(self, mean: float, count: int) -> Whole:
        """Whole numbers from 1 on, each step beyond the last with the same probability, ``1 - 1 / mean``."""
        if mean == 1:
            return np.ones(count, dtype=np.int64)
        steps = np.log(self.uniform(count)) / np.log1p(-1 / mean)
        return np.asarray(1 + np.floor(np.minimum(steps, 2.0**62)), dtype=np.int64)

    def dirichlet(self, concentration: float, parts: int) -> Real:
        """Proportions ``(parts,)`` from the symmetric Dirichlet distribution.

        Gammas of shape ``a`` below 1 are too small for a float where ``a`` is small, so their logarithms are
        drawn: a gamma of shape ``a + 1`` times ``U ** (1 / a)`` has shape ``a``.
        """
        logs = np.log(self._gamma(concentration + 1, parts)) + np.log(self.uniform(parts)) / concentration
        proportions = np.exp(logs - logs.max())
        return np.asarray(proportions / proportions.sum())

    def _gamma(self, shape: float, count: int) -> Real:
        """Gamma numbers for a shape from 1 on, by Marsaglia and Tsang's rejection (2000)."""
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
