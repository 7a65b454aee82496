"""What CLIPArTT and WATT have in common: contrastive steps on one batch, then all is forgotten."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose, of_batch
from ramen.methods._adam import AdamState, adam_step
from ramen.methods._answers import Answer
from ramen.methods._base import Method
from ramen.methods._steps import joint_gradient, refuse_overflowing
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks


class Contrastive(Method):
    """A method that pulls each image of a batch towards a text of its own, and keeps nothing of the stream.

    Args:
        classifier: What it adapts.
        texts: The class embeddings ``(C, d)`` that it predicts with.
        lr: Adam's step size.
        temperature: Of the targets of the loss.
        detach_targets: No gradient through the targets of the loss.
        statistics: What BatchNorm layers normalise with, "source" or "batch".
        seed: Has no effect.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        texts: Tensor,
        *,
        lr: float,
        temperature: float,
        detach_targets: bool,
        statistics: str,
        seed: int,
    ) -> None:
        super().__init__(classifier, seed=seed)
        self.lr = checks.number("lr", lr, 0)
        self.temperature = checks.number("temperature", temperature, 0, exclusive=True)
        self.detach_targets = checks.flag("detach_targets", detach_targets)
        self.statistics = choose(statistics, classifier.encoder.base_statistics)
        self.texts = texts

    @abstractmethod
    def walk(self, steps: "Steps") -> None:
        """Take the steps for a batch."""

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """Adapt to the batch, predict it, forget."""
        clf = self.classifier
        if len(images) == 1:
            return self._answer_alone(images, usable)
        first = steps = self._take_steps(images, usable)
        if not steps.affine.isfinite().all():
            steps = self._take_steps(*refuse_overflowing(clf, images, usable))
        statistics = of_batch(self.statistics, steps.usable)
        embeddings = clf.encode(steps.images, steps.affine, statistics=statistics)
        logits = clf.logits(embeddings, self.texts)
        zero_shot = clf.logits(first.pretrained) if self.statistics == "source" else None
        return Answer(logits, zero_shot, steps.usable)

    def _answer_alone(self, images: Tensor, usable: Tensor) -> Answer:
        """Answer one image: there is no other text to tell its own from, and the gradient is zero."""
        clf = self.classifier
        embeddings = clf.encode(images, statistics=of_batch(self.statistics, usable))
        usable = usable & embeddings.isfinite().all(1)
        zero_shot = clf.logits(embeddings) if self.statistics == "source" else None
        return Answer(clf.logits(embeddings, self.texts), zero_shot, usable)

    def _take_steps(self, images: Tensor, usable: Tensor) -> "Steps":
        steps = Steps(self, images, usable)
        self.walk(steps)
        return steps


class Steps:
    """Adam's steps on one batch, from the pretrained weights.

    Attributes:
        affine: The weights reached so far; a method may set them, and Adam keeps its moments.
        pretrained: The embeddings of the first pass, at the pretrained weights.
    """

    pretrained: Tensor

    def __init__(self, method: Contrastive, images: Tensor, usable: Tensor) -> None:
        self.images, self.usable = images, usable
        self.affine = method.classifier.encoder.base
        self._method = method
        self._moments = AdamState.zero(self.affine)

    def take(self, text_of_each: Callable[[Tensor], Tensor]) -> None:
        """One step; ``text_of_each`` gives, for the embeddings ``(B, d)``, a text for each ``(B, d)``.

        One forward pass serves both that choice and the loss.
        """
        method = self._method

        def loss(embeddings: Tensor) -> Tensor:
            return contrastive_loss(
                embeddings,
                text_of_each(embeddings.detach()),
                self.usable,
                method.classifier.logit_scale,
                temperature=method.temperature,
                detach_targets=method.detach_targets,
            )

        statistics = of_batch(method.statistics, self.usable)
        embeddings, gradient = joint_gradient(method.classifier, self.images, self.affine, loss, statistics)
        if self._moments.steps == 0:
            self.pretrained = embeddings
        self.affine, self._moments = adam_step(self.affine, gradient, self._moments, method.lr)


def contrastive_loss(
    images: Tensor,
    texts: Tensor,
    usable: Tensor,
    scale: float,
    *,
    temperature: float = 0.01,
    detach_targets: bool = False,
) -> Tensor:
    """How far the images of a batch are from telling their own texts from those of the others.

    With unit embeddings ``Z`` of the images and ``U`` of one text for each, ``(B, d)`` both, it is the mean
    over images ``i`` of ``-sum_j Q[j, i] log softmax_j(scale Z[i] U[j])``, where row ``j`` of ``Q`` is the
    softmax of ``(Z Z^T + U U^T)[j] / 2 / temperature``: images and texts that look alike may be mixed up.

    ``Q`` is transposed after the softmax, and the gradient flows through it too, as in the code of CLIPArTT
    and WATT: the targets of one image then need not sum to 1. Images that are not usable take no part, as if
    they were not in the batch.

    Args:
        images: ``Z``.
        texts: ``U``.
        usable: Which images take part, ``(B,)``.
        scale: Of the logits.
        temperature: Of the targets.
        detach_targets: Take ``Q`` as constant.
    """
    # Rows are replaced before anything else: a non-finite one would spoil the gradient even with weight 0.
    images, texts = (torch.where(usable[:, None], rows, 0) for rows in (images, texts))
    nothing = torch.finfo(images.dtype).min  # not -inf: with no usable image a softmax would be 0 / 0
    alike = (images @ images.T + texts @ texts.T) / 2 / temperature
    targets = torch.softmax(torch.where(usable, alike, nothing), dim=1).T
    if detach_targets:
        targets = targets.detach()
    log_p = torch.log_softmax(torch.where(usable, scale * images @ texts.T, nothing), dim=1)
    both = usable[:, None] & usable
    return -torch.where(both, targets * log_p, 0).sum() / usable.sum().clamp_min(1)
