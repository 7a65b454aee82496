"""Numbers over several seeds. Does not import torch: tables of results need no more than this."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation of one run; None if there was only one run."""

    mean: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.2f}"


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean and sample deviation (over n - 1) of one number from each seed.

    >>> print(over_seeds([70.0, 71.0, 72.0]))
    71.00 ± 1.00
    """
    if not len(values):
        raise ValueError("values must hold one number per seed, got none")
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


def worst_tenth(values: Sequence[float]) -> float:
    """The mean of the lowest tenth of the values, at least one; of runs, their expected tail accuracy.

    >>> worst_tenth([70.0, 60.0, 80.0])
    60.0
    """
    worst = sorted(values)[: tenth(len(values))]
    return sum(worst) / len(worst)


def tenth(count: int) -> int:
    """A tenth of a number of things, rounded up."""
    return -(-count // 10)
