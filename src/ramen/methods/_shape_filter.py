"""DeYO's filter, for methods that store images: whether a prediction depends on the shape of what is shown.

Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
ICLR 2024.
"""

import torch
from torch import Tensor

from ramen.images.views import shuffle_patches
from ramen.utils import checks
from ramen.utils.numerics import pair_scores

_PATCHES = 4  # along each side of an image, as in DeYO's code


def check_filter(threshold: float | None, alone: bool) -> float | None:
    """The threshold, if it can be one; ``alone`` is False in a group of processes."""
    if threshold is None:
        return None
    if not alone:
        raise ValueError(f"shape_filter must be None in a group of processes, got {threshold}")
    if checks.number("shape_filter", threshold, -1) > 1:
        raise ValueError(f"shape_filter must be at most 1, a difference of probabilities, got {threshold}")
    return float(threshold)


def shuffled_patches(images: Tensor, seed: int, first: int) -> Tensor:
    """The images with their patches shuffled.

    Args:
        images: The batch.
        seed: Decides how patches are shuffled, together with the place in the stream.
        first: The place of the first image.
    """
    numbers = first + torch.arange(len(images), device=images.device)
    places = torch.arange(_PATCHES**2, device=images.device)
    return shuffle_patches(images, pair_scores(seed, numbers, places).argsort(1), _PATCHES)


def probability_drop(logits: Tensor, destroyed: Tensor) -> Tensor:
    """How much less probable each image's predicted class is without its object: DeYO's PLPD, ``(B,)``.

    Args:
        logits: Of the images.
        destroyed: Of the same images with their objects destroyed.
    """
    before, after = logits.softmax(1), destroyed.softmax(1)
    labels = before.argmax(1, keepdim=True)
    return (before.gather(1, labels) - after.gather(1, labels)).squeeze(1)
