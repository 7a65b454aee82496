"""What CLIPArTT and WATT have in common: contrastive steps on one batch, then all is forgotten."""

from abc import abstractmethod
from collections.abc import Callable

from torch import Tensor

from ramen.encoder.batchnorm_statistics import choose, of_batch
from ramen.methods._adam import AdamState, adam_step
from ramen.methods._base import Answer, Method
from ramen.methods._losses import contrastive_loss
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

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """Adapt to the batch, predict it, forget."""
        clf = self.classifier
        first = steps = self._walked(images, usable)
        if not steps.affine.isfinite().all():
            steps = self._walked(*refuse_overflowing(clf, images, usable))
        statistics = of_batch(self.statistics, steps.usable)
        embeddings = clf.encode(steps.images, steps.affine, statistics=statistics)
        logits = clf.logit_scale * embeddings @ self.texts.T
        if self.statistics == "source":
            return Answer(logits, clf.logits(first.pretrained), steps.usable)
        return Answer(logits, lambda: clf.logits(clf.encode(images)), steps.usable)

    def _walked(self, images: Tensor, usable: Tensor) -> "Steps":
        steps = Steps(self, images, usable)
        self.walk(steps)
        return steps


class Steps:
    """Adam's steps on one batch, from the pretrained weights.

    Attributes:
        affine: The weights reached so far; a method may set them, Adam's moments go on.
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
