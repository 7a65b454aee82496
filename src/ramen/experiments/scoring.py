"""Scores of a run: accuracies, differences with confidence intervals, changed answers, calibration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ramen.experiments.significance import tenth, worst_tenth
from ramen.utils import checks

WINDOW = 100  # images
_FEWEST = 10  # windows of a short stream
_NORMAL_95 = 1.959964
_SMALLEST = 2.0**-149  # the smallest probability that fp32 stores: its logarithm is finite


@dataclass(frozen=True)
class Difference:
    """A difference of two averages in points, and half the width of its 95 % confidence interval."""

    points: float
    margin: float

    def __str__(self) -> str:
        return f"{self.points:+.2f} ± {self.margin:.2f}"


def domain_accuracies(correct: Tensor, domains: Tensor, count: int) -> Tensor:
    """Accuracy of each domain, or class, in percent; NaN for one without images.

    >>> domain_accuracies(torch.tensor([True, False, True]), torch.tensor([0, 0, 1]), 2).tolist()
    [50.0, 100.0]
    """
    hits = torch.zeros(count, dtype=torch.float64).index_add_(0, domains, correct.double())
    return 100 * hits / torch.bincount(domains, minlength=count)


def paired_difference(correct: Tensor, other: Tensor, domains: Tensor, count: int) -> Difference:
    """How much better ``correct`` is than ``other``, averaged over domains, on the same images.

    Each image contributes 1, 0 or -1; the interval follows from the variance within each domain.
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
        valid: Which entries exist.
        count: Number of domains.
    """
    pairs = queries[:, None] * count + tags
    return torch.bincount(pairs[valid], minlength=count**2).view(count, count)


@dataclass(frozen=True)
class Changes:
    """How many answers changed between right and wrong, compared with zero-shot."""

    both_right: int
    repaired: int  # zero-shot is wrong, the method is right
    broken: int  # zero-shot is right, the method is wrong
    both_wrong: int


def changes(correct: Tensor, zero_shot: Tensor) -> Changes:
    """Which answers a method repaired and broke.

    >>> changes(torch.tensor([True, True, False]), torch.tensor([True, False, True]))
    Changes(both_right=1, repaired=1, broken=1, both_wrong=0)
    """
    return domain_changes(correct, zero_shot, torch.zeros(len(correct), dtype=torch.int64), 1)[0]


def domain_changes(correct: Tensor, zero_shot: Tensor, domains: Tensor, count: int) -> list[Changes]:
    """As ``changes``, for each domain."""
    now, before = _mask("correct", correct), _mask("zero_shot", zero_shot)
    _same_length(correct=now, zero_shot=before, domains=domains)
    kinds = 2 * (~now).long() + (now ^ before).long()  # both right, repaired, both wrong, broken
    counts = torch.bincount(4 * domains + kinds, minlength=4 * count).view(count, 4)
    return [Changes(both_right=c[0], repaired=c[1], both_wrong=c[2], broken=c[3]) for c in counts.tolist()]


def balanced_accuracy(correct: Tensor, labels: Tensor) -> float:
    """The mean accuracy over the classes that occur, in percent.

    >>> balanced_accuracy(torch.tensor([True, True, True, False]), torch.tensor([0, 0, 0, 4]))
    50.0
    """
    _same_length(correct=correct, labels=labels)
    return float(domain_accuracies(correct, labels, int(labels.max()) + 1).nanmean())


def confidences(logits: Tensor) -> Tensor:
    """The probability ``(N,)`` of each predicted class, in fp64; logits ``(N, C)`` have the model's scale."""
    return logits.double().softmax(1).amax(1)


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 15) -> float:
    """Expected calibration error in percent.

    The interval from 0 to 1 is cut into bins of equal width, each with its upper edge. The error is the
    distance between mean confidence and accuracy in each bin, weighted by the bin's share of the images.

    >>> calibration_error(torch.tensor([0.75, 0.75]), torch.tensor([True, False]))
    25.0
    """
    checks.integer("bins", bins, 1)
    sure, right = _sure(confidence, correct)
    inner_edges = torch.arange(1, bins, dtype=torch.float64) / bins
    places = torch.bucketize(sure, inner_edges)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, places, sure - right)
    return 100 * float(gaps.abs().sum()) / len(sure)


def probabilities(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What ``certainty`` needs of each answer, in fp64.

    Args:
        logits: The answers ``(N, C)``, with the model's own scale.
        labels: The right classes ``(N,)``.

    Returns:
        The probabilities of the predicted classes, those of the right ones, and the squared distances between
        probabilities and right answers (Brier).
    """
    shares = logits.double().softmax(1)
    right = shares.gather(1, labels[:, None]).squeeze(1)
    return shares.amax(1), right, shares.square().sum(1) - 2 * right + 1


def certainty(
    correct: Tensor, confidence: Tensor, label_probability: Tensor, brier: Tensor
) -> dict[str, Any]:
    """How sure a run was, and how rightly so: the keys that results have beside ``calibration_error``.

    Args:
        correct: Which answers are right ``(N,)``; the others as ``probabilities`` returns them.
        confidence: Of the predicted classes.
        label_probability: Of the right classes.
        brier: The squared distance of each image.

    Returns:
        ``ece_mass``, the calibration error in percent over 15 bins of equally many images; ``nll``, the mean
        negative logarithm of the right classes' probabilities; ``brier``, the mean squared distance;
        ``aurc``, the area under the curve of risk and coverage in percent; ``reliability``, the bins.
    """
    bins = reliability(confidence, correct)
    gaps = sum(one["images"] * abs(one["confidence"] - one["accuracy"]) for one in bins)
    return {
        "ece_mass": gaps / len(correct),
        "nll": -float(label_probability.double().clamp_min(_SMALLEST).log().mean()),
        "brier": float(brier.double().mean()),
        "aurc": risk_coverage(confidence, correct),
        "reliability": bins,
    }


def reliability(confidence: Tensor, correct: Tensor, bins: int = 15) -> list[dict[str, float]]:
    """Bins of equally many images, by confidence: their number, mean confidence and accuracy.

    >>> reliability(torch.tensor([0.5, 1.0]), torch.tensor([False, True]), bins=1)
    [{'images': 2, 'confidence': 75.0, 'accuracy': 50.0}]
    """
    checks.integer("bins", bins, 1)
    sure, right = _sure(confidence, correct)
    order = sure.argsort(stable=True)
    parts = [part for part in order.tensor_split(bins) if len(part)]
    return [
        {
            "images": len(part),
            "confidence": 100 * float(sure[part].mean()),
            "accuracy": 100 * float(right[part].mean()),
        }
        for part in parts
    ]


def risk_coverage(confidence: Tensor, correct: Tensor) -> float:
    """The area under the curve of risk and coverage in percent: the error of the surest images.

    Images of one confidence count as if each of their orders were equally likely.

    >>> risk_coverage(torch.tensor([0.9, 0.8]), torch.tensor([True, False]))
    25.0
    """
    sure, right = _sure(confidence, correct)
    _, places, counts = (-sure).unique(return_inverse=True, return_counts=True)
    wrong = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, places, 1 - right) / counts
    errors = wrong.repeat_interleave(counts).cumsum(0)
    return 100 * float((errors / torch.arange(1, len(errors) + 1)).mean())


def _sure(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    right, sure = _mask("correct", correct).cpu().double(), confidence.cpu().double()
    _same_length(confidence=sure, correct=right)
    if not bool(((sure >= 0) & (sure <= 1)).all()):
        raise ValueError("confidence must be between 0 and 1 for every image")
    return sure, right


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
    """How a method does at its worst and in the end, given which answers are right, in the stream's order.

    >>> tail_scores(torch.tensor([True] * 95 + [False] * 5))
    TailScores(last=50.0, worst=50.0, windows=10)
    """
    images = len(correct)
    windows = min(max(_FEWEST, images // WINDOW), images)
    starts = [images * number // windows for number in range(windows)]
    (last,) = accuracies(correct, [images - tenth(images)])
    return TailScores(last, worst_tenth(accuracies(correct, starts)), windows)


def accuracies(correct: Tensor, starts: Sequence[int]) -> list[float]:
    """Accuracy in percent of each part of a stream, given where each of them begins; no part is empty.

    >>> accuracies(torch.tensor([True, True, False, True]), [0, 2])
    [100.0, 50.0]
    """
    ends = [*starts[1:], len(correct)]
    return [
        100 * float(correct[start:end].to(torch.float64).mean())
        for start, end in zip(starts, ends, strict=True)
    ]


def _mask(argument: str, value: Tensor) -> Tensor:
    if value.dtype != torch.bool:
        raise TypeError(f"{argument} must be a bool tensor, got {value.dtype}")
    return value


def _same_length(**tensors: Tensor) -> None:
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1 or not min(lengths.values()):
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"expected one value per image, for at least one image, got {listed}")
