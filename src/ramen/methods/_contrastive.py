"""What CLIPArTT and WATT have in common: contrastive steps on one batch, then all is forgotten."""

from abc import abstractmethod
from collections.abc import Callable, Generator

import torch
from torch import Tensor

from ramen.methods._method import Method
from ramen.methods._optim import AdamState, adam_step
from ramen.methods._passes import Answer, Pass, Seen, Steps, refuse_overflowing
from ramen.methods._registry import STATISTICS_OF_A_BATCH, field


class Contrastive(Method):
    """A method that pulls each image of a batch towards a text of its own, and keeps nothing of the stream.

    Attributes:
        texts: The class embeddings ``(C, d)`` that it predicts with.
    """

    lr: float = field(1e-3, ge=0, doc="Adam's step size; the paper's for all data sets.")
    temperature: float = field(
        0.01, gt=0, doc="Of the loss's targets; 0.01 is meant for CLIP's logit scale of 100."
    )
    detach_targets: bool = field(False, doc="Take no gradient through the loss's targets.")
    statistics: str = STATISTICS_OF_A_BATCH

    texts: Tensor

    @abstractmethod
    def walk(self, steps: "Walk") -> Generator[Pass, Seen, None]:
        """Take the steps for a batch."""

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Adapt to the batch, predict it, forget."""
        clf, statistics = self.classifier, self.statistics
        if len(images) == 1:  # there is no other text to tell its own from, and the gradient is zero
            seen = yield Pass(images, None, None, usable, statistics=statistics)
            zero_shot = seen.logits if statistics == "source" else None
            return Answer(clf.logits(seen.embeddings, self.texts), zero_shot, seen.usable)
        first = walk = Walk(self, images, usable)
        yield from self.walk(walk)
        if not walk.affine.isfinite().all():
            walk = Walk(self, *refuse_overflowing(clf, images, usable))
            yield from self.walk(walk)
        wanted = Pass(walk.images, walk.affine, None, walk.usable, statistics=statistics, repeat=False)
        seen = yield wanted
        zero_shot = clf.logits(first.pretrained) if statistics == "source" else None
        return Answer(clf.logits(seen.embeddings, self.texts), zero_shot, walk.usable)


class Walk:
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

    def step(self, text_of_each: Callable[[Tensor], Tensor]) -> Generator[Pass, Seen, None]:
        """One step; ``text_of_each`` gives, for the embeddings ``(B, d)``, a text for each ``(B, d)``.

        One forward pass serves both that choice and the loss.
        """
        method = self._method

        def loss(embeddings: Tensor, usable: Tensor) -> Tensor:
            return contrastive_loss(
                embeddings,
                text_of_each(embeddings.detach()),
                usable,
                method.classifier.logit_scale,
                temperature=method.temperature,
                detach_targets=method.detach_targets,
            )

        options = {"of": "embeddings", "statistics": method.statistics, "repeat": False}
        seen = yield Pass(self.images, self.affine, loss, self.usable, **options)  # type: ignore[arg-type]
        if self._moments.steps == 0:
            self.pretrained = seen.embeddings
        self.affine, self._moments = adam_step(self.affine, seen.gradient, self._moments, method.lr)


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
