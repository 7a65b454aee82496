"""Steps that several methods share."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ramen.classifier import ZeroShotClassifier
from ramen.objectives import entropy, mean_entropy


def sign_step(affine: Tensor, gradient: Tensor, lr: float) -> Tensor:
    """One SignSGD step; a coordinate whose gradient is not finite stays where it is."""
    direction = torch.sign(torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0))
    return affine - lr * direction.to(affine.dtype)


def entropy_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    *,
    below: float = math.inf,
) -> tuple[Tensor, Tensor, Tensor]:
    """One forward and one backward pass of a batch that shares its norm parameters.

    Returns:
        The logits; the gradient ``(G,)`` of the mean entropy of the usable images whose entropy is ``below``
        a bound, zero where there is none; and which images were usable in the end. An image whose
        activations overflow spoils a sum over the batch: where that has happened, the gradient is taken
        again, for each image on its own, and the bad ones are left out.
    """
    with torch.enable_grad():
        affine = affine.detach().requires_grad_()
        logits = classifier.logits(classifier.encode(images, affine))
        chosen = usable & (entropy(logits) < below) if below < math.inf else usable
        gradient = classifier.gradient(mean_entropy(logits, chosen), affine)
    if gradient.isfinite().all():
        return logits.detach(), gradient, usable
    gradients = _gradient_of_each(classifier, images, affine)
    usable = usable & gradients.isfinite().all(1) & logits.isfinite().all(1)
    chosen = chosen & usable
    mean = torch.where(chosen[:, None], gradients, 0).sum(0) / chosen.sum().clamp_min(1)
    return logits.detach(), mean, usable


def joint_gradient(
    classifier: ZeroShotClassifier, images: Tensor, affine: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """One forward and one backward pass for a ``loss`` of embeddings in which the images of a batch meet.

    Returns:
        The embeddings and the gradient ``(G,)``. One image that overflows spoils the gradient, also if the
        loss leaves it out: see ``refuse_overflowing``.
    """
    with torch.enable_grad():
        affine = affine.detach().requires_grad_()
        embeddings = classifier.encode(images, affine)
        gradient = classifier.gradient(loss(embeddings), affine)
    return embeddings.detach(), gradient


def refuse_overflowing(
    classifier: ZeroShotClassifier, images: Tensor, usable: Tensor
) -> tuple[Tensor, Tensor]:
    """What to go on with after a joint gradient was not finite: the images again, and which are usable.

    An image is refused that has, with the pretrained weights, no finite gradient of its own.
    Those that are not usable are blank from here on, and so can spoil nothing. Where that is no cure, because
    the steps themselves overflow, the answers are not finite and the whole batch is answered zero-shot.
    """
    usable = usable & _gradient_of_each(classifier, images, classifier.encoder.base).isfinite().all(1)
    return torch.where(usable[:, None, None, None], images, 0), usable


def _gradient_of_each(classifier: ZeroShotClassifier, images: Tensor, affine: Tensor) -> Tensor:
    """The gradient ``(B, G)`` of every image's own entropy."""
    with torch.enable_grad():
        rows = affine.detach().expand(len(images), -1).requires_grad_()
        entropies = entropy(classifier.logits(classifier.encode(images, rows)))
        return classifier.gradient(entropies.sum(), rows)
