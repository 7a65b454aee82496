"""How a method does at its worst and in the end: what an average over the stream hides."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.experiments.analysis.spread import tenth, worst_tenth

WINDOW = 100  # images
_FEWEST = 10  # windows of a short stream


@dataclass(frozen=True)
class TailScores:
    """Accuracies in percent over parts of a stream.

    Attributes:
        last: Over the last tenth of the images.
        worst: The mean over the tenth of windows in which it is lowest.
        windows: The number of windows: consecutive, of 100 images or one image more, or at least ten of them.
    """

    last: float
    worst: float
    windows: int


def tail_scores(correct: Tensor) -> TailScores:
    """The scores of a stream, given which answers are right, in the order of the stream.

    >>> tail_scores(torch.tensor([True] * 95 + [False] * 5))
    TailScores(last=50.0, worst=50.0, windows=10)
    """
    images = len(correct)
    windows = min(max(_FEWEST, images // WINDOW), images)
    starts = [images * number // windows for number in range(windows)]
    last = correct[images - tenth(images) :]
    return TailScores(_percent(last), worst_tenth(accuracies(correct, starts)), windows)


def accuracies(correct: Tensor, starts: Sequence[int]) -> list[float]:
    """Accuracy in percent of each part of a stream, given where each of them begins; no part is empty.

    >>> accuracies(torch.tensor([True, True, False, True]), [0, 2])
    [100.0, 50.0]
    """
    ends = [*starts[1:], len(correct)]
    return [_percent(correct[start:end]) for start, end in zip(starts, ends, strict=True)]


def _percent(correct: Tensor) -> float:
    return 100 * float(correct.to(torch.float64).mean())
