"""Whether one method is better than another over the same seeds, and by how many ranks."""

import math
import statistics
from collections.abc import Mapping, Sequence

LEVEL = 0.05


def paired_p(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's paired test, given one difference per seed; None for fewer than two.

    Differences that are all the same leave no doubt: 0, or 1 if they are zero.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    if len(differences) < 2:
        return None
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0:
        return 0.0 if mean else 1.0
    return student_p(mean / (deviation / math.sqrt(len(differences))), len(differences) - 1)


def student_p(t: float, freedom: int) -> float:
    """The probability that Student's t is at least as far from zero, for whole degrees of freedom.

    By the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    # 1 + 1/2 c^2 + (1 3)/(2 4) c^4 + ..., or c + 2/3 c^3 + (2 4)/(3 5) c^5 + ..., up to c^(freedom - 2)
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cosine**2
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - within))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """P-values that allow for there being several of them, by the method of Holm; None stays None.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    adjusted: list[float | None] = [None] * len(values)
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    lowest = 0.0
    for done, (value, place) in enumerate(known):
        lowest = max(lowest, min(1.0, (len(known) - done) * value))
        adjusted[place] = lowest
    return adjusted


def mean_ranks(columns: Sequence[Mapping[object, float]]) -> list[float | None]:
    """The mean rank of each method over the cases that all have in common; 1 is best, equals share a rank.

    Args:
        columns: The accuracy of each method in each case.

    >>> mean_ranks([{"fog": 3.0, "snow": 1.0}, {"fog": 2.0, "snow": 1.0}])
    [1.25, 1.75]
    """
    import pandas as pd  # not for runs, which load this file as well

    cases = pd.DataFrame([dict(column) for column in columns]).dropna(axis="columns")
    if cases.empty:
        return [None] * len(columns)
    return list(cases.rank(ascending=False).mean(axis="columns"))


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
