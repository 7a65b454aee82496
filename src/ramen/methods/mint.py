"""Mint: separate the embeddings of different pseudo-classes, with means gathered over the stream.

Bao et al., "Mint: A Simple Test-Time Adaptation of Vision-Language Models against Common Corruptions",
NeurIPS 2025.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.methods._method import Method
from ramen.methods._optim import AdamState, adam_step
from ramen.methods._passes import Answer, Pass, Steps
from ramen.methods._registry import STATISTICS, MethodInfo, field, register
from ramen.utils.numerics import finite_or_zero


@dataclass(frozen=True)
class ClassMeans:
    """Sums ``(C, d)`` and counts ``(C,)`` of embeddings by class; a batch more makes a new one."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> "ClassMeans":
        """Before the first image; ``like`` has the sums' shape, type and device."""
        return cls(torch.zeros_like(like), torch.zeros(len(like), dtype=torch.int64, device=like.device))

    def including(self, embeddings: Tensor, labels: Tensor, usable: Tensor) -> "ClassMeans":
        """With the usable ones of a batch of embeddings ``(B, d)``."""
        members = _membership(labels, usable, len(self.counts))
        embeddings = torch.where(usable[:, None], embeddings, 0)
        return ClassMeans(
            self.sums + members.to(embeddings.dtype).T @ embeddings, self.counts + members.sum(0)
        )

    def by_class(self) -> Tensor:
        """A mean for each class ``(C, d)``; 0 for a class that has no image."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    def overall(self) -> Tensor:
        """The mean ``(d,)`` of all embeddings; bit for bit that of the class if there is but one."""
        return self.sums.sum(0) / self.counts.sum().clamp_min(1)

    def images(self) -> Tensor:
        """How many embeddings are in it."""
        return self.counts.sum()


def _membership(labels: Tensor, usable: Tensor, classes: int) -> Tensor:
    """Which usable image ``(B,)`` belongs to which class, ``(B, C)``."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)) & usable[:, None]


@register(
    MethodInfo(
        name="mint",
        title="Mint: inter-class variance, maximised with means over the stream",
        venue="NeurIPS 2025",
        paper="https://arxiv.org/abs/2510.22127",
        updates="weight and bias of all norm layers, for one batch, along the stream's mean gradient; then "
        "reset to the pretrained ones. With a finite prior the class embeddings too",
        predicts_with="a second forward pass after the update",
        batch_dependent=True,
        forwards=2,
        backwards=1,
        notes=(
            "from the Ramen paper: Adam, learning rates, an infinite prior on mixed streams and 10,000 or "
            "100,000 on single domains",
            "from Mint's code: means and gradient over all batches including the current one, every class of "
            "a batch with the same weight, one step of a fresh Adam per batch",
            "decided here: pseudo-labels after the step also come from the text embeddings, even if a finite "
            "prior has moved the embeddings used to predict",
            "BatchNorm keeps its running statistics, as in Mint's code, which has a switch for the batch's "
            "but never reads it; statistics='batch' uses the batch's",
            "decided here: sums, means and the step in fp32; Mint's code computes under autocast",
            "a batch without a usable image is ignored: the mean gradient does not change",
        ),
    )
)
class Mint(Method):
    """Take one Adam step per batch, from the pretrained weights, that raises the inter-class variance."""

    lr: float = field(
        5e-3,
        ge=0,
        doc="Step size. The paper's: mixed streams 5e-3 (CIFAR-C, DomainNet), 1e-2 (ImageNet-C); single "
        "domains 7e-3 (CIFAR-C), 1.5e-2 (ImageNet-C), 5e-3 (DomainNet).",
    )
    prior: float = field(
        math.inf,
        gt=0,
        doc="How many images the text embeddings count for, against the mean image embeddings; infinite: "
        "only the text counts. The paper's: infinite for mixed streams; single domains 10,000, "
        "DomainNet 100,000.",
    )
    statistics: str = STATISTICS

    recordable = True
    joins_groups = True

    before_sums: Tensor  # embeddings by class, at the pretrained weights
    before_counts: Tensor
    after_sums: Tensor  # likewise, at each batch's own weights
    after_counts: Tensor
    gradient: Tensor  # the mean over batches
    batches: Tensor

    def setup(self) -> None:
        classifier = self.classifier
        base, empty = classifier.encoder.base, ClassMeans.empty(classifier.class_embeddings)
        for moment in ("before", "after"):
            self.add_state(f"{moment}_sums", empty.sums)
            self.add_state(f"{moment}_counts", empty.counts, minimum=0)
        self.add_state("gradient", torch.zeros_like(base))
        self.add_state("batches", torch.zeros((), dtype=torch.int64, device=base.device), minimum=0)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Gather means and gradient, step from the pretrained weights, predict, forget the step."""
        clf, base = self.classifier, self.classifier.encoder.base

        # 1. Embeddings, pseudo-labels and gradient of the inter-class variance, at the pretrained weights.
        options: dict[str, Any] = {"of": "embeddings", "statistics": self.statistics}
        seen = yield Pass(images, base, self._loss, usable, **options)
        embeddings, usable, first = seen.embeddings, seen.usable, clf.logits(seen.embeddings)
        labels = first.argmax(1)
        any_usable = self.whole(usable).any()
        before = self._including(ClassMeans(self.before_sums, self.before_counts), embeddings, labels, usable)

        # 2. The mean of all batches' gradients, and one step of a fresh Adam along it.
        batches = self.batches + any_usable
        change = (finite_or_zero(seen.gradient) - self.gradient) / batches.clamp_min(1)
        mean_gradient = self.gradient + torch.where(any_usable, change, 0)
        adapted, _ = adam_step(base, mean_gradient, AdamState.zero(base), self.lr)

        # 3. Embeddings with the adapted weights; their class means move the text embeddings.
        second = yield Pass(seen.images, adapted, None, usable, **options)
        embeddings, valid = second.embeddings, second.usable
        after = ClassMeans(self.after_sums, self.after_counts)
        after = self._including(after, embeddings, clf.logits(embeddings).argmax(1), valid)
        logits = clf.logits(embeddings, self._class_embeddings(after))

        self.before_sums, self.before_counts = before.sums, before.counts
        self.after_sums, self.after_counts = after.sums, after.counts
        self.gradient, self.batches = mean_gradient, batches
        return Answer(logits, first if self.statistics == "source" else None, valid)

    def _including(self, means: ClassMeans, embeddings: Tensor, labels: Tensor, usable: Tensor) -> ClassMeans:
        """With the images of the batch, in all processes."""
        return means.including(self.whole(embeddings), self.whole(labels), self.whole(usable))

    def _loss(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """Minus the inter-class variance: the variance within the batch's classes minus the total variance.

        Each class of the batch has the same weight, and each image within a class. Distances are to means
        over the stream including this batch, which are constants.
        """
        embeddings = torch.where(usable[:, None], embeddings, 0)
        labels = self.classifier.logits(embeddings.detach()).argmax(1)
        so_far = ClassMeans(self.before_sums, self.before_counts)
        means = self._including(so_far, embeddings.detach(), labels, usable)
        of_all = _membership(self.whole(labels), self.whole(usable), self.classifier.num_classes)
        images = of_all.sum(0)  # of each class
        classes = (images > 0).sum()
        weights = usable / (classes * images[labels]).clamp_min(1).to(embeddings.dtype)
        to_all = (embeddings - means.overall()).square().sum(1)
        to_own = (embeddings - means.by_class()[labels]).square().sum(1)
        return (weights * (to_own - to_all)).sum()

    def _class_embeddings(self, after: ClassMeans) -> Tensor:
        """Text embeddings, moved towards the mean image embeddings; the more images, the further."""
        texts = self.classifier.class_embeddings
        images = after.images().to(texts.dtype)
        share = images / (self.prior + images).clamp_min(1)
        return F.normalize((1 - share) * texts + share * after.by_class(), dim=-1)
