"""Gaussians of classes with a text each, estimated of assigned images, in the form that log densities need.

With variances of each coordinate, a log density is a product of ``with_squares(images)`` and of factors of
the class, and a constant. A round of estimates of some classes costs on a GPU what its kernels cost to start:
in plain torch these are more than thirty, the program and what comes before it three.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

_SMALLEST_VARIANCE = 1e-8  # of a coordinate of unit vectors
_SMALLEST_WEIGHT = 1e-30  # of a class that has no image: it then counts for nothing
_SMALLEST_LENGTH = 1e-12  # as in torch's own normalisation
_MOST_COORDINATES = 4096
_IMAGES = 128  # that a program looks at together


def with_squares(embeddings: Tensor) -> Tensor:
    """The squares of embeddings ``(B, d)``, and minus twice the embeddings beside them, ``(B, 2d)``."""
    return torch.cat([embeddings.square(), -2 * embeddings], 1)


def squared_distances(sums: Tensor, weights: Tensor, centres: Tensor) -> Tensor:
    """Squared distances of images from a class's centre ``(C, d)`` in each coordinate, summed by assignment.

    Args:
        sums: ``with_squares`` of the images, summed by assignment, ``(C, 2d)``.
        weights: Of the classes, ``(C, 1)``: the sums of the assignments.
        centres: ``(C, d)``.
    """
    squares, minus_twice = sums.chunk(2, 1)
    return torch.addcmul(squares, centres, torch.addcmul(minus_twice, weights, centres)).clamp_min(0)


def density_factors(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Factors ``(C, 2d)`` and constants ``(C,)``, given means and variances ``(C, d)``.

    A log density is ``-0.5 * (with_squares(image) @ factors + constant)``, without what all have in common.
    """
    variances = variances.clamp_min(_SMALLEST_VARIANCE)
    precisions = variances.reciprocal()
    weighted = means * precisions
    return torch.cat([precisions, weighted], 1), torch.addcmul(variances.log(), means, weighted).sum(1)


def anchored(
    images: Tensor, usable: Tensor, assigned: Tensor, texts: Tensor, first: Tensor, anchor: float
) -> tuple[Tensor, Tensor]:
    """``density_factors`` of the classes, of their images, and of the text the more the fewer they have.

    Args:
        images: ``with_squares`` of the embeddings, ``(B, 2d)``; 0 for images that are not usable.
        usable: Which images count, ``(B,)``.
        assigned: Their probabilities, ``(B, C)``.
        texts: ``(C, d)``.
        first: The variances ``(d,)`` around its text of a class that has no images.
        anchor: For how many images the text counts.
    """
    sums, labels = assigned.T @ images, assigned.argmax(1)
    if _uses_triton(texts):
        return _anchored_triton(sums, labels, usable, assigned, texts, first, anchor)
    return _anchored_torch(sums, labels, usable, assigned, texts, first, anchor)


def _uses_triton(texts: Tensor) -> bool:
    fits = texts.shape[1] <= _MOST_COORDINATES and texts.dtype == torch.float32
    return fits and kernels.usable_on(texts.device)


# -- plain torch ------------------------------------------------------------------------------------


def _anchored_torch(
    sums: Tensor,
    labels: Tensor,
    usable: Tensor,
    assigned: Tensor,
    texts: Tensor,
    first: Tensor,
    anchor: float,
) -> tuple[Tensor, Tensor]:
    own_images = (labels[:, None] == torch.arange(len(texts), device=labels.device)) & usable[:, None]
    counts = own_images.sum(0, dtype=texts.dtype)[:, None]
    weights = torch.where(usable[:, None], assigned, 0).sum(0)[:, None]
    share = counts / (counts + anchor)
    own = F.normalize(-0.5 * sums.chunk(2, 1)[1], dim=1)
    means = F.normalize(torch.lerp(texts, own, share), dim=1)
    away = texts - means
    around = squared_distances(sums, weights, means) / weights.clamp_min(_SMALLEST_WEIGHT)
    return density_factors(means, torch.lerp(torch.addcmul(first, away, away), around, share))


# -- Triton -----------------------------------------------------------------------------------------


def _anchored_triton(
    sums: Tensor,
    labels: Tensor,
    usable: Tensor,
    assigned: Tensor,
    texts: Tensor,
    first: Tensor,
    anchor: float,
) -> tuple[Tensor, Tensor]:
    inputs = sums, labels, usable.view(torch.uint8), assigned, texts, first
    factors, constants = torch.empty_like(sums), torch.empty_like(texts[:, 0])
    classes, width = texts.shape
    with kernels.current_device(texts.device):
        kernels.load("gaussians").anchored[(classes,)](
            *(tensor.contiguous() for tensor in inputs),
            factors,
            constants,
            len(labels),
            classes,
            width,
            anchor,
            _SMALLEST_WEIGHT,
            _SMALLEST_VARIANCE,
            _SMALLEST_LENGTH,
            IMAGES=_IMAGES,
            WIDTH=kernels.power_of_two(width),
            num_warps=4,
        )
    return factors, constants
