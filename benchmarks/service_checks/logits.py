"""Compares answers by their labels and by how far their logits are apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramen.client.operations import StreamAnswer

LARGEST_DIFFERENCE = 1e-4  # of logits, in fp32
_SMALLEST = 1e-30  # a probability below it says nothing about its logit


@dataclass(frozen=True)
class Difference:
    """Between two lists of answers."""

    compared: int  # how many answers there are
    labels: int  # how many have another label
    bits: int  # how many have other probabilities, to the last bit
    logits: float  # the largest difference of a logit; logits are known up to a constant per image


def difference(first: Sequence[StreamAnswer], second: Sequence[StreamAnswer]) -> Difference:
    """Compare answer by answer."""
    pairs = list(zip(first, second, strict=True))
    rows = [(_probabilities(one), _probabilities(other)) for one, other in pairs]
    return Difference(
        len(pairs),
        sum(one.result.label != other.result.label for one, other in pairs),
        sum(not np.array_equal(one, other) for one, other in rows),
        max((_apart(one, other) for one, other in rows), default=0.0),
    )


def _probabilities(answer: StreamAnswer) -> NDArray[np.float32]:
    assert answer.probabilities is not None, answer.result.error
    return answer.probabilities


def _apart(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    known = (one > _SMALLEST) & (other > _SMALLEST)
    logits = [np.log(values[known].astype(np.float64)) for values in (one, other)]
    first, second = (values - values.mean() for values in logits)
    return float(np.abs(first - second).max(initial=0.0))
