"""Ramen with parts of other methods, and without single parts of its own that no parameter switches off.

They are made for the study of combinations and are not registered: one that gains on several streams becomes
an option of Ramen.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ramen.memory.group_memory import memory_for
from ramen.memory.retrieval import Selection
from ramen.memory.storage import Staged
from ramen.methods._answers import Answer
from ramen.methods._pass_sharing import EmbeddingMethod, FirstPass, OwnStep
from ramen.methods._steps import sign_step
from ramen.methods.oga import OGA
from ramen.methods.ramen import Ramen
from ramen.methods.tda import TDA
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero, finite_rows

CACHES: dict[str, type[EmbeddingMethod]] = {"tda": TDA, "oga": OGA}
SOURCES = ("pretrained", "adapted")
PRIORS = ("logits", "log")


class CachedRamen(Ramen):
    """Ramen's logits plus what the cache of a training-free method adds to those of its own embeddings.

    Args:
        classifier: What it adapts.
        cache: "tda" or "oga", with its own default parameters.
        source: The embeddings that enter the cache and are looked up in it, and that decide labels and
            entropies there: those of the "pretrained" weights, or the image's "adapted" ones.
        parameters: Ramen's.
    """

    recordable = False

    def __init__(
        self, classifier: ZeroShotClassifier, cache: str, source: str = "pretrained", **parameters: Any
    ) -> None:
        super().__init__(classifier, **parameters)
        self.source = checks.choice("source", source, SOURCES)
        self._cache = CACHES[checks.choice("cache", cache, CACHES)](classifier)
        for prefix, memory in self._cache.memories.items():
            self.add_memory(memory, f"cache.{prefix}")
        self._second_pass = self._encode_again

    def _encode_again(self, images: Tensor, affine: Tensor) -> tuple[Tensor]:
        self._adapted = self.classifier.encode(images, affine)
        return (self.classifier.logits(self._adapted),)

    def answer(self, first: FirstPass, own: OwnStep, logits: Tensor) -> Answer:
        """Ramen's answer, in which the cache takes part."""
        made = super().answer(first, own, logits)
        embeddings = first.embeddings if self.source == "pretrained" else self._adapted
        cached = self._cache.from_embeddings(embeddings, made.usable)
        assert cached.zero_shot_logits is not None
        return replace(made, logits=made.logits + (cached.logits - cached.zero_shot_logits))


class PriorRamen(Ramen):
    """Ramen's predictions with ROID's prior correction: classes that the batch has many of gain.

    Args:
        classifier: What it adapts.
        prior: "logits" multiplies logits with the smoothed mean prediction of the batch, as ROID's code does;
            "log" adds its logarithm.
        parameters: Ramen's.
    """

    recordable = False

    def __init__(self, classifier: ZeroShotClassifier, prior: str = "logits", **parameters: Any) -> None:
        super().__init__(classifier, **parameters)
        self.prior = checks.choice("prior", prior, PRIORS)

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Ramen's answer, corrected."""
        made = super().adapt(images, usable)
        prior = batch_prior(made.logits, made.usable)
        corrected = made.logits * prior if self.prior == "logits" else made.logits + prior.log()
        return replace(made, logits=corrected)


def batch_prior(logits: Tensor, usable: Tensor) -> Tensor:
    """ROID's prior ``(C,)`` of a batch: the mean prediction of usable images, smoothed; it adds up to 1.

    >>> batch_prior(torch.zeros(2, 4), torch.tensor([True, True]))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    classes = logits.shape[1]
    safe = torch.where(usable[:, None], logits, 0)
    count = usable.sum().clamp_min(1)
    mean = torch.where(usable[:, None], safe.softmax(1), 0).sum(0) / count
    smoothing = torch.clamp(1 / count, min=1 / classes) / mean.max().clamp_min(torch.finfo(mean.dtype).tiny)
    return (mean + smoothing) / (1 + smoothing * classes)


class AgreeingRamen(Ramen):
    """Ramen that moves a parameter only if the retrieved gradients agree about its direction.

    Their agreement is the absolute value of the weighted mean of their signs: 0 if they are divided, 1 if
    they all have one sign.

    Args:
        classifier: What it adapts.
        agreement: The least agreement at which a parameter moves.
        parameters: Ramen's.
    """

    recordable = False

    def __init__(self, classifier: ZeroShotClassifier, agreement: float = 0.2, **parameters: Any) -> None:
        super().__init__(classifier, **parameters)
        if self.visibility != "batch":
            raise ValueError(f"visibility must be 'batch' to look for agreement, got {self.visibility!r}")
        self.agreement = checks.number("agreement", agreement, 0)
        # Signs of the same gradients in the same rows; fp16 holds -1, 0 and 1 exactly.
        self._signs = self.add_memory(memory_for(self._plan(self.capacity, "fp16"), self.peers), "signs.")

    def step(self, first: FirstPass, usable: Tensor) -> OwnStep:
        """Ramen's step; the signs enter their own memory first."""
        queues = first.logits.argmax(1) if self.balance else torch.zeros_like(usable, dtype=torch.int64)
        usable = usable & finite_rows(first.gradients)
        signs = first.gradients.sign()
        keep = usable if first.storable is None else usable & first.storable
        staged = self._signs.stage(queues, first.embeddings, signs, first.entropies, keep=keep)
        self._signs.put(staged)
        return super().step(first, usable)

    def _moved(self, support: Selection, weights: Tensor, staged: Staged | None) -> Tensor:
        total = torch.where(support.valid, weights, 0).sum((1, 2))[:, None]
        agreeing = self._signs.aggregate(support, weights).abs() >= self.agreement * total
        base = self.classifier.encoder.base
        return torch.where(agreeing.to(base.device), super()._moved(support, weights, staged), base)


class PlainStepRamen(Ramen):
    """Ramen that steps along the gradient itself, as far as the signed step would go."""

    def _moved(self, support: Selection, weights: Tensor, staged: Staged | None) -> Tensor:
        base = self.classifier.encoder.base
        summed = self.memory.aggregate(support, weights, staged=staged).to(base.device)
        return self._along(summed)

    def _along(self, gradient: Tensor) -> Tensor:
        base, gradient = self.classifier.encoder.base, finite_or_zero(gradient).to(torch.float32)
        length = gradient.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        far = float(self.lr) * gradient.count_nonzero(dim=1)[:, None].to(torch.float32).sqrt()
        return torch.sub(base, (far * gradient / length).to(base.dtype))


class RawGradientRamen(Ramen):
    """Ramen that stores gradients at the lengths that they have, also if ``beta`` is "auto"."""

    def __init__(self, classifier: ZeroShotClassifier, **parameters: Any) -> None:
        super().__init__(classifier, **parameters)
        self.unit_gradients = False


class OwnGradientRamen(Ramen):
    """Ramen without a support set: each image steps along its own gradient alone."""

    def step(self, first: FirstPass, usable: Tensor) -> OwnStep:
        """A signed step along the image's own gradient."""
        affine = sign_step(self.classifier.encoder.base, first.gradients, float(self.lr))
        return replace(super().step(first, usable), affine=affine)
