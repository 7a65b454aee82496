"""Assignments of images to classes, by their own evidence and by what other images are assigned to.

Methods repeat this dozens of times for a batch, and on a GPU a round of a hundred images costs what its
kernels cost to start: as matrix product and softmax it is three, the program is one.
"""

import torch
from torch import Tensor

from ramen import kernels

_TILE = 8192  # assignments of other images that a program adds up at a time
_MOST_CLASSES = 4096
_MOST_PRODUCTS = 1 << 23  # beyond that a matrix product, which reads less memory, is faster


def assign(prior: Tensor, weights: Tensor, assigned: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of ``prior + weights @ assigned``, and that sum itself.

    Args:
        prior: Each image's own evidence, ``(B, C)`` in fp32 or fp64.
        weights: How much the image of the column counts for that of the row, ``(B, B)``.
        assigned: Probabilities, ``(B, C)``.
    """
    if _uses_triton(prior):
        return _assign_triton(prior, weights, assigned)
    return _assign_torch(prior, weights, assigned)


def _uses_triton(prior: Tensor) -> bool:
    images, classes = prior.shape
    fits = classes <= _MOST_CLASSES and images * images * classes <= _MOST_PRODUCTS
    exact = prior.dtype in (torch.float32, torch.float64)
    return fits and exact and images > 0 and kernels.usable_on(prior.device)


# -- plain torch ------------------------------------------------------------------------------------


def _assign_torch(prior: Tensor, weights: Tensor, assigned: Tensor) -> tuple[Tensor, Tensor]:
    evidence = torch.addmm(prior, weights, assigned)
    return evidence.softmax(1), evidence


# -- Triton -----------------------------------------------------------------------------------------


def _assign_triton(prior: Tensor, weights: Tensor, assigned: Tensor) -> tuple[Tensor, Tensor]:
    prior, weights, assigned = prior.contiguous(), weights.contiguous(), assigned.contiguous()
    evidence, found = torch.empty_like(prior), torch.empty_like(prior)
    images, classes = prior.shape
    tile = kernels.power_of_two(classes)
    others = min(kernels.power_of_two(images), max(1, _TILE // tile))
    with kernels.current_device(prior.device):
        kernels.load("assignments").assign[(images,)](
            prior,
            weights,
            assigned,
            evidence,
            found,
            images,
            classes,
            OTHERS=others,
            CLASSES=tile,
            num_warps=8,
        )
    return found, evidence
