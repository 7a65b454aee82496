"""The answers to the images of a stream, and the scores that follow from them."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments import scoring
from ramen.experiments.scoring import accuracies, tail_scores
from ramen.methods._passes import Prediction


class Outcome:
    """The answers of a method, and of the classifier without adaptation, to a stream so far.

    Args:
        stream: The images.
        retrieves: Whether the method reports which memory entries supported its answers.
    """

    def __init__(self, stream: Stream, retrieves: bool) -> None:
        self.labels = torch.from_numpy(stream.labels())
        self.domains = torch.from_numpy(np.array(stream.domain, dtype=np.int64))
        self.names = [domain.name for domain in stream.dataset.domains]
        self.classes = len(stream.dataset.classes)
        self.rounds = stream.rounds
        self.predicted = torch.full_like(self.labels, -1)
        self.zero_shot = torch.full_like(self.labels, -1)
        self.confidence = torch.zeros(len(self.labels), dtype=torch.float64)
        self.zero_shot_confidence = torch.zeros_like(self.confidence)
        self.label_probability = torch.zeros_like(self.confidence)
        self.brier = torch.zeros_like(self.confidence)
        count = len(self.names)
        self.composition = torch.zeros(count, count, dtype=torch.int64) if retrieves else None

    def add(self, batch: slice, prediction: Prediction) -> None:
        """Record the answers to a batch."""
        self.predicted[batch] = prediction.labels.cpu()
        logits, labels = prediction.logits.cpu(), self.labels[batch]
        self.confidence[batch], self.label_probability[batch], self.brier[batch] = scoring.probabilities(
            logits, labels
        )
        zero_shot = prediction.zero_shot_logits
        self.zero_shot[batch] = zero_shot.argmax(1).cpu()
        self.zero_shot_confidence[batch] = scoring.confidences(zero_shot).cpu()
        if self.composition is not None and prediction.support is not None:
            tags, valid = prediction.support.tags.cpu(), prediction.support.valid.cpu()
            self.composition += scoring.composition(self.domains[batch], tags, valid, len(self.names))

    def accuracies(self, done: int) -> tuple[float, float]:
        """Of the first ``done`` answers, the method's and the classifier's, in percent."""
        right = self.labels[:done]
        own, before = (
            100 * float((x[:done] == right).double().mean()) for x in (self.predicted, self.zero_shot)
        )
        return own, before

    def answers(self) -> dict[str, NDArray[Any]]:
        """What is stored of each image, in the order of the stream: classes by number, and probabilities."""
        classes = np.int16 if self.classes < 2**15 else np.int32
        numbers = {"label": self.labels, "predicted": self.predicted, "zero_shot": self.zero_shot}
        shares = ("confidence", "zero_shot_confidence", "label_probability")
        return {
            **{name: value.numpy().astype(classes) for name, value in numbers.items()},
            **{name: getattr(self, name).numpy().astype(np.float32) for name in shares},
        }

    # -- checkpoints ----------------------------------------------------------------------------------

    def state(self, done: int) -> dict[str, Tensor]:
        """The answers to the first ``done`` images."""
        parts = {name: getattr(self, name)[:done].clone() for name in _ANSWERS}
        return parts if self.composition is None else {**parts, "composition": self.composition.clone()}

    def restore(self, state: Mapping[str, Tensor], done: int) -> None:
        """Resume from what ``state`` returned; ValueError if it does not fit."""
        expected = {*_ANSWERS, *(() if self.composition is None else ("composition",))}
        if set(state) != expected or any(state[name].shape != (done,) for name in _ANSWERS):
            raise ValueError(f"it must hold {', '.join(sorted(expected))} of {done} images")
        if self.composition is not None:
            if state["composition"].shape != self.composition.shape:
                raise ValueError("composition has another number of domains")
            self.composition = state["composition"].clone()
        for name in _ANSWERS:
            getattr(self, name)[:done] = state[name]

    # -- scores ---------------------------------------------------------------------------------------

    def scores(self, refused: int) -> dict[str, Any]:
        """The block "scores" of a result, without domains that have no images."""
        present, domains = torch.unique(self.domains, return_inverse=True)
        names, count = [self.names[number] for number in present.tolist()], len(present)
        correct, plain = self.predicted == self.labels, self.zero_shot == self.labels
        own = scoring.domain_accuracies(correct, domains, count)
        before = scoring.domain_accuracies(plain, domains, count)
        per_class = scoring.domain_accuracies(correct, self.labels, self.classes).tolist()
        changes = scoring.domain_changes(correct, plain, domains, count)
        return {
            "average": float(own.mean()),
            "domains": dict(zip(names, own.tolist(), strict=True)),
            "images": dict(zip(names, torch.bincount(domains).tolist(), strict=True)),
            "balanced": scoring.balanced_accuracy(correct, self.labels),
            "classes": [None if math.isnan(value) else value for value in per_class],
            "calibration_error": scoring.calibration_error(self.confidence, correct),
            **scoring.certainty(correct, self.confidence, self.label_probability, self.brier),
            "zero_shot": {
                "average": float(before.mean()),
                "domains": dict(zip(names, before.tolist(), strict=True)),
                "calibration_error": scoring.calibration_error(self.zero_shot_confidence, plain),
                "tail": asdict(tail_scores(plain)),
                **self._rounds_block(plain),
            },
            "difference": asdict(scoring.paired_difference(correct, plain, domains, count)),
            "changes": asdict(scoring.changes(correct, plain)),
            "domain_changes": {name: asdict(change) for name, change in zip(names, changes, strict=True)},
            "tail": asdict(tail_scores(correct)),
            **self._rounds_block(correct),
            "refused": refused,
        }

    def _rounds_block(self, correct: Tensor) -> dict[str, list[float]]:
        """Accuracy on each round, if the domains come again."""
        return {"rounds": accuracies(correct, self.rounds)} if self.rounds else {}

    def composition_block(self) -> dict[str, Any] | None:
        """The block "composition": the domains of the entries that supported each domain's images, if any."""
        if self.composition is None:
            return None
        images = torch.bincount(self.domains, minlength=len(self.names)).double()
        present = images.nonzero()[:, 0]
        counts = self.composition[present][:, present]
        shares = images[present] / images.sum()
        supported = counts.sum(1) > 0  # a domain whose images were all refused has no support
        own = 100 * (counts.diagonal() / counts.sum(1).clamp_min(1))[supported].double()
        weights = shares[supported]
        return {
            "domains": [self.names[number] for number in present.tolist()],
            "counts": counts.tolist(),
            "same_domain": float(own.mean()) if len(own) else None,
            "same_domain_weighted": float((own * weights).sum() / weights.sum()) if len(own) else None,
            "chance_weighted": 100 * float(shares.square().sum()),
        }


_ANSWERS = ("predicted", "zero_shot", "confidence", "zero_shot_confidence", "label_probability", "brier")
