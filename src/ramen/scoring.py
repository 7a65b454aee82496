"""Accuracies over domains, and what their differences are worth."""

from dataclasses import dataclass

import torch
from torch import Tensor

_NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Difference:
    """A difference of two averages in points, and half the width of its 95 % confidence interval."""

    points: float
    margin: float

    def __str__(self) -> str:
        return f"{self.points:+.2f} ± {self.margin:.2f}"


def domain_accuracies(correct: Tensor, domains: Tensor, count: int) -> Tensor:
    """Accuracy of each domain in percent; NaN for a domain without images.

    >>> domain_accuracies(torch.tensor([True, False, True]), torch.tensor([0, 0, 1]), 2).tolist()
    [50.0, 100.0]
    """
    hits = torch.zeros(count, dtype=torch.float64).index_add_(0, domains, correct.double())
    return 100 * hits / torch.bincount(domains, minlength=count)


def paired_difference(correct: Tensor, other: Tensor, domains: Tensor, count: int) -> Difference:
    """How much better ``correct`` is than ``other``, averaged over domains, on the same images.

    What an image contributes is 1, 0 or -1; the interval follows from its variance within each domain.
    """
    gains = correct.double() - other.double()
    sizes = torch.bincount(domains, minlength=count)
    means = torch.zeros(count, dtype=torch.float64).index_add_(0, domains, gains) / sizes
    squares = torch.zeros(count, dtype=torch.float64).index_add_(0, domains, (gains - means[domains]) ** 2)
    variance = (squares / (sizes - 1).clamp_min(1) / sizes).sum() / count**2
    return Difference(100 * float(means.mean()), 100 * _NORMAL_95 * float(variance.sqrt()))


def composition(queries: Tensor, tags: Tensor, valid: Tensor, count: int) -> Tensor:
    """How many entries of each domain (column) supported the queries of each domain (row).

    Args:
        queries: Domains of the queries ``(B,)``.
        tags: Domains of their support entries ``(B, S)``.
        valid: Where there is an entry.
        count: Number of domains.
    """
    pairs = queries[:, None] * count + tags
    return torch.bincount(pairs[valid], minlength=count**2).view(count, count)
