"""Mint: separate the embeddings of different pseudo-classes, with means gathered over the stream.

Bao et al., "Mint: A Simple Test-Time Adaptation of Vision-Language Models against Common Corruptions",
NeurIPS 2025.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose, of_batch
from ramen.kernels.cuda_graphs import holds
from ramen.memory.class_means import ClassMeans, membership
from ramen.methods._adam import AdamState, adam_step
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._registry import register
from ramen.methods._steps import joint_gradient, refuse_overflowing
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero
from ramen.utils.peers import Group


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
    """Take one Adam step per batch, from the pretrained weights, that raises the inter-class variance.

    Args:
        classifier: What it adapts.
        lr: Step size. The paper's: mixed streams 5e-3 (CIFAR-C, DomainNet), 1e-2 (ImageNet-C); single
            domains 7e-3 (CIFAR-C), 1.5e-2 (ImageNet-C), 5e-3 (DomainNet).
        prior: How many images the text embeddings count for, against the mean image embeddings; infinite:
            only the text counts. The paper's: infinite for mixed streams; single domains 10,000, DomainNet
            100,000.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images of the current batch.
        seed: Has no effect.
        group: As for every method.
    """

    state_parameters = ("statistics",)
    recordable = True
    joins_groups = True

    before_sums: Tensor  # embeddings by class, at the pretrained weights
    before_counts: Tensor
    after_sums: Tensor  # likewise, at each batch's own weights
    after_counts: Tensor
    gradient: Tensor  # the mean over batches
    batches: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 5e-3,
        prior: float = math.inf,
        *,
        statistics: str = "source",
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.lr = checks.number("lr", lr, 0)
        self.prior = math.inf if prior == math.inf else checks.number("prior", prior, 0, exclusive=True)
        self.statistics = choose(statistics, classifier.encoder.base_statistics, alone=group is None)
        base, empty = classifier.encoder.base, ClassMeans.empty(classifier.class_embeddings)
        for moment in ("before", "after"):
            self.add_state(f"{moment}_sums", empty.sums)
            self.add_state(f"{moment}_counts", empty.counts, minimum=0)
        self.add_state("gradient", torch.zeros_like(base))
        self.add_state("batches", torch.zeros((), dtype=torch.int64, device=base.device), minimum=0)

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Gather means and gradient, step from the pretrained weights, predict, forget the step."""
        clf, base = self.classifier, self.classifier.encoder.base

        # 1. Embeddings, pseudo-labels and gradient of the inter-class variance, at the pretrained weights.
        encoded = images
        embeddings, gradient = self._embeddings_and_gradient(encoded, usable)
        first = clf.logits(embeddings)
        labels = first.argmax(1)
        if not holds(gradient.isfinite().all()):
            encoded, usable = refuse_overflowing(clf, images, usable)
            embeddings, gradient = self._embeddings_and_gradient(encoded, usable)
            labels = clf.logits(embeddings).argmax(1)
            usable = usable & embeddings.isfinite().all(1)
        any_usable = self.whole(usable).any()
        before = self._including(ClassMeans(self.before_sums, self.before_counts), embeddings, labels, usable)

        # 2. The mean of all batches' gradients, and one step of a fresh Adam along it.
        batches = self.batches + any_usable
        change = (finite_or_zero(gradient) - self.gradient) / batches.clamp_min(1)
        mean_gradient = self.gradient + torch.where(any_usable, change, 0)
        adapted, _ = adam_step(base, mean_gradient, AdamState.zero(base), self.lr)

        # 3. Embeddings with the adapted weights; their class means move the text embeddings.
        embeddings = clf.encode(encoded, adapted, statistics=of_batch(self.statistics, usable))
        valid = usable & embeddings.isfinite().all(1)
        after = ClassMeans(self.after_sums, self.after_counts)
        after = self._including(after, embeddings, clf.logits(embeddings).argmax(1), valid)
        logits = clf.logits(embeddings, self._class_embeddings(after))

        self.before_sums, self.before_counts = before.sums, before.counts
        self.after_sums, self.after_counts = after.sums, after.counts
        self.gradient, self.batches = mean_gradient, batches
        return Answer(logits, first if self.statistics == "source" else None, valid)

    def _embeddings_and_gradient(self, images: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """At the pretrained weights."""
        clf, loss = self.classifier, partial(self._loss, usable=usable)
        statistics = of_batch(self.statistics, usable)
        embeddings, gradient = joint_gradient(clf, images, clf.encoder.base, loss, statistics)
        return embeddings, self.summed(gradient)

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
        of_all = membership(self.whole(labels), self.whole(usable), self.classifier.num_classes)
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
