"""Losses, gradients and steps that several methods share."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.batchnorm_statistics import Statistics, of_batch
from ramen.kernels.cuda_graphs import holds
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.numerics import finite_or_zero
from ramen.utils.peers import Peers

Measure = Callable[[Tensor], Tensor]  # of logits (B, C): how uncertain each image is, (B,)


def entropy(logits: Tensor) -> Tensor:
    """Entropy ``(B,)`` of the softmax of ``(B, C)`` logits, natural logarithm, in fp32 (fp64 stays).

    >>> entropy(torch.zeros(1, 4)).exp().round()
    tensor([4.])
    """
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    # A class of probability 0 contributes 0; its log is -inf, and 0 * -inf would not be.
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)


def mean_entropy(logits: Tensor, usable: Tensor, measure: Measure = entropy) -> Tensor:
    """The mean entropy of the usable images, or of another measure of logits; 0 where there is none."""
    # Rows are replaced before the entropy: a non-finite one would spoil the gradient even with weight 0.
    safe = torch.where(usable[:, None], logits, 0)
    return torch.where(usable, measure(safe), 0).sum() / usable.sum().clamp_min(1)


def sign_step(affine: Tensor, gradient: Tensor, lr: float) -> Tensor:
    """One SignSGD step; a coordinate whose gradient is not finite stays where it is."""
    direction = torch.sign(finite_or_zero(gradient)).to(affine.dtype)
    return torch.add(affine, direction, alpha=-lr)


def sample_gradients(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor | None = None,
    *,
    measure: Measure = entropy,
    meanwhile: Callable[[Tensor], AbstractContextManager[None]] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One forward and one backward pass of a batch in which every image has its own norm parameters.

    Args:
        classifier: What encodes.
        images: The batch.
        affine: The norm parameters ``(G,)`` that all images start from; the pretrained ones if not given.
        measure: What to differentiate in place of the entropy.
        meanwhile: Given the embeddings, a block around the backward pass: what it starts runs beside it.

    Returns:
        Embeddings ``(B, d)``, logits ``(B, C)``, entropies ``(B,)``, and the gradients ``(B, G)``: row ``i``
        is that of image ``i``'s entropy alone.
    """
    start = classifier.encoder.base if affine is None else affine.detach()
    with torch.enable_grad():
        rows = start.expand(len(images), -1).requires_grad_()
        embeddings = classifier.encode(images, rows)
        with nullcontext() if meanwhile is None else meanwhile(embeddings.detach()):
            logits = classifier.logits(embeddings)
            entropies = measure(logits)
            gradients = classifier.gradient(entropies.sum(), rows)
    return embeddings.detach(), logits.detach(), entropies.detach(), gradients


def adapted_logits(classifier: ZeroShotClassifier, images: Tensor, affine: Tensor) -> tuple[Tensor]:
    """Logits of a batch with these norm parameters, in a tuple, as recorded functions return."""
    return (classifier.logits(classifier.encode(images, affine)),)


def unit_rows(gradients: Tensor) -> Tensor:
    """Each row at length 1; a row that is zero, or next to it, stays so."""
    return F.normalize(gradients, dim=1)


def mixed_logits(zero_shot: Tensor, adapted: Tensor, share: float) -> Tensor:
    """Logits of the mean of two predictions, of which the zero-shot one has this ``share``.

    Their level, which no probability shows, is the mean of both: equal predictions keep their logits.
    """
    exact = torch.promote_types(adapted.dtype, torch.float32)
    parts = [(zero_shot.to(exact), share), (adapted.to(exact), 1 - share)]
    first, second = (torch.log_softmax(logits, dim=1) + math.log(part) for logits, part in parts)
    level = sum(part * logits.logsumexp(1, keepdim=True) for logits, part in parts)
    return torch.logaddexp(first, second) + level


def entropy_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    *,
    among: Tensor | None = None,
    below: float = math.inf,
    measure: Measure = entropy,
    statistics: str = "source",
    peers: Peers | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One forward and one backward pass of a batch that shares its norm parameters.

    Args:
        classifier: What encodes.
        images: The batch.
        affine: Its norm parameters ``(G,)``.
        usable: Which images may leave a trace.
        among: Which of these enter the mean; all if not given.
        below: They must also have an entropy below this.
        measure: What to minimise, and to compare with ``below``, in place of the entropy.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images.
        peers: The processes of a group, whose images all enter the mean; only this process's if not given.

    Returns:
        The logits; the gradient ``(G,)`` of the mean entropy, zero if no image enters it; and which images
        were usable in the end. An image whose activations overflow spoils a sum over the batch, and with
        it the batch's statistics: if that has happened, the gradient is computed again without the bad
        images.
    """
    logits, gradient, usable, chosen = _own_entropy_gradient(
        classifier, images, affine, usable, _Chosen(among, below, measure), statistics
    )
    if peers is not None:
        images_each = chosen.sum()
        count = peers.total(images_each, "counting images").clamp_min(1)
        gradient = peers.total(gradient * images_each, "averaging gradients") / count
    return logits, gradient, usable


@dataclass(frozen=True)
class _Chosen:
    """Which images a mean is of, and of what it is the mean."""

    among: Tensor | None
    below: float
    measure: Measure

    def of(self, logits: Tensor, usable: Tensor) -> Tensor:
        """These images, ``(B,)`` of bool."""
        chosen = usable if self.among is None else usable & self.among
        return chosen & (self.measure(logits) < self.below) if self.below < math.inf else chosen


def _own_entropy_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    choice: _Chosen,
    statistics: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logits, the gradient, which images were usable, and which ones the mean is of."""
    logits, gradient, chosen = _mean_entropy_gradient(
        classifier, images, affine, usable, choice, of_batch(statistics, usable)
    )
    if holds(gradient.isfinite().all()):
        return logits, gradient, usable, chosen
    if statistics == "batch":
        images, usable = refuse_overflowing(classifier, images, usable)
        logits, gradient, chosen = _mean_entropy_gradient(
            classifier, images, affine, usable, choice, of_batch(statistics, usable)
        )
        return logits, gradient, usable & logits.isfinite().all(1), chosen
    gradients = sample_gradients(classifier, images, affine, measure=choice.measure)[3]
    usable = usable & gradients.isfinite().all(1) & logits.isfinite().all(1)
    chosen = chosen & usable
    mean = torch.where(chosen[:, None], gradients, 0).sum(0) / chosen.sum().clamp_min(1)
    return logits, mean, usable, chosen


def _mean_entropy_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    choice: _Chosen,
    statistics: Statistics | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, the gradient, and the images that the mean is of."""
    with torch.enable_grad():
        affine = affine.detach().requires_grad_()
        logits = classifier.logits(classifier.encode(images, affine, statistics=statistics))
        chosen = choice.of(logits, usable)
        gradient = classifier.gradient(mean_entropy(logits, chosen, choice.measure), affine)
    return logits.detach(), gradient, chosen


def shared_logits(
    classifier: ZeroShotClassifier, images: Tensor, affine: Tensor, usable: Tensor, statistics: str
) -> tuple[Tensor, Tensor]:
    """One forward pass with shared norm parameters: the logits, and which images could be used.

    See ``entropy_gradient`` for ``statistics`` and for what becomes of an image that overflows.
    """

    def logits() -> Tensor:
        return classifier.logits(classifier.encode(images, affine, statistics=of_batch(statistics, usable)))

    found = logits()
    if statistics == "batch" and not holds((found.isfinite().all(1) | ~usable).all()):
        images, usable = refuse_overflowing(classifier, images, usable)
        found = logits()
    return found, usable & found.isfinite().all(1)


def joint_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    loss: Callable[..., Tensor],
    statistics: Statistics | None = None,
    *,
    normalize: bool = True,
    others: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One forward and one backward pass for a ``loss`` of embeddings in which the images of a batch meet.

    Embeddings have unit length, unless ``normalize`` is False. With ``others``, parameters ``(H,)`` of
    something else, the loss is one of the embeddings and of these.

    Returns:
        The embeddings and the gradient ``(G,)``, or ``(G + H,)`` if there are ``others``. One image that
        overflows spoils the gradient, also if the loss leaves it out: see ``refuse_overflowing``.
    """
    given = [affine] if others is None else [affine, others.to(affine)]
    with torch.enable_grad():
        parameters = torch.cat(given).detach().requires_grad_()
        affine, *rest = parameters.split([len(part) for part in given])
        embeddings = classifier.encode(images, affine, statistics=statistics, normalize=normalize)
        gradient = classifier.gradient(loss(embeddings, *rest), parameters)
    return embeddings.detach(), gradient


def loss_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    loss: Callable[..., Tensor],
    *,
    statistics: str = "source",
    normalize: bool = True,
    others: Tensor | None = None,
    peers: Peers | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One forward and one backward pass of a batch that shares its norm parameters, for any loss.

    Args:
        classifier: What encodes.
        images: The batch.
        affine: Its norm parameters ``(G,)``.
        usable: Which images may leave a trace.
        loss: Of the unit embeddings ``(B, d)``, with gradients, of which images are usable, and of
            ``others`` if they are given. It is called again if an image overflows, so it must not keep
            anything. In a group it returns this process's part of a sum over all processes.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images.
        normalize: If False, embeddings have the length that the encoder gives them.
        others: Parameters ``(H,)`` of something else that the loss depends on.
        peers: The processes of a group; only this one if not given.

    Returns:
        The embeddings, the gradient ``(G,)``, or ``(G + H,)`` if there are ``others``, and which images were
        usable in the end.
    """

    def passes() -> tuple[Tensor, Tensor]:
        embeddings, gradient = joint_gradient(
            classifier,
            images,
            affine,
            lambda found, *rest: loss(found, usable, *rest),
            of_batch(statistics, usable),
            normalize=normalize,
            others=others,
        )
        return embeddings, gradient if peers is None else peers.total(gradient, "adding up gradients")

    embeddings, gradient = passes()
    if not holds(gradient.isfinite().all()):
        images, usable = refuse_overflowing(classifier, images, usable)
        embeddings, gradient = passes()
    return embeddings, gradient, usable & embeddings.isfinite().all(1)


def refuse_overflowing(
    classifier: ZeroShotClassifier, images: Tensor, usable: Tensor
) -> tuple[Tensor, Tensor]:
    """What to continue with after a joint gradient was not finite: the images, and which are usable.

    An image is refused if its own gradient, with the pretrained weights and running statistics, is not
    finite. Images that are not usable are blank from here on, and so can spoil nothing. If that does not
    help, because the steps themselves overflow, the answers are not finite and the whole batch is answered
    zero-shot.
    """
    usable = usable & sample_gradients(classifier, images)[3].isfinite().all(1)
    return torch.where(usable[:, None, None, None], images, 0), usable
