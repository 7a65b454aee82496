"""The answers of methods and of zero-shot to the same images, and what one gained over the other."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ramen.experiments.analysis.scoring import changes, repeated_difference
from ramen.experiments.studies.harm_streams import HarmStream
from ramen.methods._base import Method
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.numerics import plain_numerics


@dataclass(frozen=True)
class ShownImages:
    """The preprocessed images of a stream, and how zero-shot answers the real ones."""

    stream: HarmStream
    images: Tensor  # with those of nothing, on the classifier's device
    labels: Tensor  # of the real images
    zero_shot: Tensor  # whether it is right, for each real image

    @classmethod
    def of(cls, classifier: ZeroShotClassifier, stream: HarmStream, batch: int) -> "ShownImages":
        """Read and preprocess a stream's images."""
        real = stream.real
        labels = torch.from_numpy(real.labels())
        parts, right = [], []
        for start in range(0, len(real), batch):
            part = slice(start, start + batch)
            images = classifier.preprocess(real.read(part)).to(classifier.device)
            with plain_numerics(), torch.no_grad():
                answers = classifier.logits(classifier.encode(images)).argmax(1)
            parts.append(images)
            right.append(answers.cpu() == labels[part])
        images = torch.cat(parts)
        if stream.nothing is not None:
            nothing = classifier.preprocess(stream.nothing_like(images)).to(images)
            images = torch.stack([nothing, images], dim=1).flatten(0, 1)
        return cls(stream, images, labels, torch.cat(right))

    def right_answers(self, method: Method, batch: int) -> Tensor:
        """Whether a fresh method is right, for each real image."""
        parts = []
        for part in self.stream.batches(batch):
            if part.start in self.stream.real.resets:
                method.reset()
            parts.append(method.predict(self.images[part]).labels.cpu())
        answers = torch.cat(parts)
        return (answers if self.stream.nothing is None else answers[1::2]) == self.labels


@dataclass
class GainRow:
    """The gains of each method over zero-shot on one kind of stream, a run per seed."""

    right: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    zero_shot: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    images: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def add(self, method: str, right: Tensor, shown: ShownImages) -> None:
        """A run: whether the method was right for the first images of a stream."""
        real = shown.stream.real
        numbers = torch.from_numpy(real.domain * (int(real.index.max()) + 1) + real.index)
        self.right[method].append(right)
        self.zero_shot[method].append(shown.zero_shot[: len(right)])
        self.images[method].append(numbers[: len(right)])

    def extend(self, other: "GainRow") -> None:
        """Add the runs of another part of the study, after those that are here."""
        for name in ("right", "zero_shot", "images"):
            own = getattr(self, name)
            for method, runs in getattr(other, name).items():
                own[method] += runs

    def summary(self) -> dict[str, Any]:
        """Accuracies of zero-shot and gains, per seed and in all, in plain values."""
        before = next(iter(self.zero_shot.values()))
        return {
            "images": sum(map(len, before)),
            "zero_shot": [_percent(right) for right in before],
            "methods": {method: self._gain(method) for method in self.right},
        }

    def _gain(self, method: str) -> dict[str, Any]:
        right, before = self.right[method], self.zero_shot[method]
        runs = torch.repeat_interleave(torch.tensor([len(run) for run in right]))
        after_all, before_all = torch.cat(right), torch.cat(before)
        gains = after_all.double() - before_all.double()
        difference = repeated_difference(gains, torch.cat(self.images[method]), runs)
        changed = changes(after_all, before_all)
        seeds = [_percent(now) - _percent(then) for now, then in zip(right, before, strict=True)]
        return {
            "points": difference.points,
            "margin": difference.margin,
            "seeds": seeds,
            "repaired": changed.repaired,
            "broken": changed.broken,
        }


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())
