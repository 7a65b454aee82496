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
from ramen.memory.class_means import ClassMeans, membership
from ramen.memory.row_table import expect
from ramen.methods._adam import AdamState, adam_step
from ramen.methods._base import Answer, Method, MethodInfo
from ramen.methods._registry import register
from ramen.methods._steps import joint_gradient, refuse_overflowing
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero


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
            "decided here: BatchNorm keeps its running statistics, the default of Mint's code; "
            "statistics='batch' uses the batch's, an option of that code too",
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
    """

    state_parameters = ("statistics",)

    _before: ClassMeans  # at the pretrained weights
    _after: ClassMeans  # at each batch's own
    _gradient: Tensor  # the mean over batches
    _batches: Tensor

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        lr: float = 5e-3,
        prior: float = math.inf,
        *,
        statistics: str = "source",
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, seed=seed)
        self.lr = checks.number("lr", lr, 0)
        self.prior = math.inf if prior == math.inf else checks.number("prior", prior, 0, exclusive=True)
        self.statistics = choose(statistics, classifier.encoder.base_statistics)
        self.clear()

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """Gather means and gradient, step from the pretrained weights, predict, forget the step."""
        clf, base = self.classifier, self.classifier.encoder.base

        # 1. Embeddings, pseudo-labels and gradient of the inter-class variance, at the pretrained weights.
        encoded = images
        embeddings, gradient = self._embeddings_and_gradient(encoded, usable)
        first = clf.logits(embeddings)
        labels = first.argmax(1)
        if not gradient.isfinite().all():
            encoded, usable = refuse_overflowing(clf, images, usable)
            embeddings, gradient = self._embeddings_and_gradient(encoded, usable)
            labels = clf.logits(embeddings).argmax(1)
            usable = usable & embeddings.isfinite().all(1)
        before = self._before.including(embeddings, labels, usable)

        # 2. The mean of all batches' gradients, and one step of a fresh Adam along it.
        batches = self._batches + usable.any()
        change = (finite_or_zero(gradient) - self._gradient) / batches.clamp_min(1)
        mean_gradient = self._gradient + torch.where(usable.any(), change, 0)
        adapted, _ = adam_step(base, mean_gradient, AdamState.zero(base), self.lr)

        # 3. Embeddings with the adapted weights; their class means move the text embeddings.
        embeddings = clf.encode(encoded, adapted, statistics=of_batch(self.statistics, usable))
        valid = usable & embeddings.isfinite().all(1)
        after = self._after.including(embeddings, clf.logits(embeddings).argmax(1), valid)
        logits = clf.logit_scale * embeddings @ self._class_embeddings(after).T

        self._before, self._after = before, after
        self._gradient, self._batches = mean_gradient, batches
        if self.statistics == "source":
            return Answer(logits, first, valid)
        return Answer(logits, lambda: clf.logits(clf.encode(images)), valid)

    def _embeddings_and_gradient(self, images: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """At the pretrained weights."""
        clf, loss = self.classifier, partial(self._loss, usable=usable)
        return joint_gradient(clf, images, clf.encoder.base, loss, of_batch(self.statistics, usable))

    def _loss(self, embeddings: Tensor, usable: Tensor) -> Tensor:
        """Minus the inter-class variance: the variance within the batch's classes minus the total variance.

        Each class of the batch has the same weight, and each image within a class. Distances are to means
        over the stream including this batch, which are constants.
        """
        embeddings = torch.where(usable[:, None], embeddings, 0)
        labels = self.classifier.logits(embeddings.detach()).argmax(1)
        means = self._before.including(embeddings.detach(), labels, usable)
        images = membership(labels, usable, self.classifier.num_classes).sum(0)  # of each class
        classes = (images > 0).sum()
        weights = usable / (classes * images[labels]).clamp_min(1).to(embeddings.dtype)
        to_all = (embeddings - means.overall()).square().sum(1)
        to_own = (embeddings - means.by_class()[labels]).square().sum(1)
        return torch.dot(weights, to_own - to_all)

    def _class_embeddings(self, after: ClassMeans) -> Tensor:
        """Text embeddings, moved towards the mean image embeddings; the more images, the further."""
        texts = self.classifier.class_embeddings
        images = after.images().to(texts.dtype)
        share = images / (self.prior + images).clamp_min(1)
        return F.normalize((1 - share) * texts + share * after.by_class(), dim=-1)

    def clear(self) -> None:
        """Forget means and gradients."""
        base, classes = self.classifier.encoder.base, self.classifier.class_embeddings
        self._before = self._after = ClassMeans.empty(classes)
        self._gradient = torch.zeros_like(base)
        self._batches = torch.zeros((), dtype=torch.int64, device=base.device)

    def content(self) -> dict[str, Tensor]:
        """Class means before and after the steps, the mean gradient and the number of batches in it."""
        means = {**self._before.state("before"), **self._after.state("after")}
        return {**means, "gradient": self._gradient.clone(), "batches": self._batches.clone()}

    def restore(self, content: dict[str, Tensor]) -> None:
        """Take over means and gradients."""
        expected = self.content()
        if content.keys() != expected.keys():
            raise ValueError(f"mint's state must hold {', '.join(expected)}, got {sorted(content)}")
        before, after = (
            part.restored(content, n) for part, n in ((self._before, "before"), (self._after, "after"))
        )
        for name in ("gradient", "batches"):
            expect(name, content[name], expected[name].dtype, tuple(expected[name].shape))
        if not content["gradient"].isfinite().all() or content["batches"] < 0:
            raise ValueError("gradient in the state must be finite and batches not negative")
        device = self._gradient.device
        self._before, self._after = before, after
        self._gradient, self._batches = (content[n].to(device, copy=True) for n in ("gradient", "batches"))

    def memory_bytes(self) -> int:
        """Two class means, a gradient and a count; they do not grow."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.content().values())
