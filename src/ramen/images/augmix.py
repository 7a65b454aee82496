"""AugMix: an image mixed with three chains of simple changes of it.

Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", ICLR 2020.
Each change equals Pillow's on images of whole numbers from 0 to 255. All images of a batch are changed at
once, each in its own way: changes of tone are one lookup, changes of place one interpolation. What is drawn
depends on a seed and a key of each image. Nothing is copied to or from the images' device.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.utils.numerics import pair_scores

CHANGES = (
    "autocontrast",
    "equalize",
    "posterize",
    "solarize",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
STRONGEST = 10  # the severity with the largest changes: 30 degrees, a shear of 0.3, a third of the image
CHAINS, LONGEST = 3, 3
DRAWS = 2 * CHAINS + 1 + 3 * CHAINS * LONGEST
WEAKEST = 0.1  # no severity is below it, and no change is weaker
_TONES = 4  # the first of the changes, which are changes of tone
# What rounding may take away from an interpolated whole number, by the size of its type.
_NEARLY = {4: 1e-3, 8: 1e-9}


@dataclass(frozen=True)
class Mixture:
    """What is drawn for images: which changes, how strong, and how they are mixed."""

    changes: Tensor  # numbers in ``CHANGES``, ``(N, chains, longest)``
    levels: Tensor  # how strong, from 0.1 to the severity, in the same shape
    signs: Tensor  # -1 or 1, for changes with a direction, in the same shape
    lengths: Tensor  # how many changes of a chain are made, ``(N, chains)``
    weights: Tensor  # of the chains, ``(N, chains)``; their sum is 1
    share: Tensor  # of the image itself in the mixture, ``(N,)``


def mixed_views(views: Tensor, keys: Tensor, severity: float, seed: int = 0) -> Tensor:
    """Views ``(B, number, 3, H, W)`` with values in [0, 1], each mixed with changes of its own.

    Other values are cut off, and all are rounded to 255ths. What is drawn depends on the seed and on the key
    of each image ``(B,)``. The severity is from 0.1 to 10; 1 in the public codes of methods with views.
    """
    places = -1 - torch.arange(views.shape[1] * DRAWS, device=views.device)  # others draw from 0 on
    uniform = pair_scores(seed, keys, places).view(-1, DRAWS)
    levels = (views.flatten(0, 1) * 255).round().clamp(0, 255)
    return (mix(levels, draw(uniform, severity)) / 255).view(views.shape)


def draw(uniform: Tensor, severity: float) -> Mixture:
    """What uniform numbers ``(N, DRAWS)`` in [0, 1), fp64, stand for."""
    size = CHAINS * LONGEST
    weights, lengths, share, *steps = uniform.split([CHAINS, CHAINS, 1, size, size, size], 1)
    changes, levels, signs = (part.view(-1, CHAINS, LONGEST) for part in steps)
    # Shares of exponentially distributed numbers have the Dirichlet distribution with ones.
    exponential = -torch.log1p(-weights).clamp_max(-torch.finfo(weights.dtype).tiny)
    return Mixture(
        changes=(changes * len(CHANGES)).long(),
        levels=WEAKEST + (severity - WEAKEST) * levels,
        signs=torch.where(signs < 0.5, 1.0, -1.0).to(levels.dtype),
        lengths=1 + (lengths * LONGEST).long(),
        weights=exponential / exponential.sum(1, keepdim=True),
        share=share.squeeze(1),  # the beta distribution with ones is uniform
    )


def mix(images: Tensor, drawn: Mixture) -> Tensor:
    """Images ``(N, 3, H, W)`` of whole numbers from 0 to 255 in fp32 or fp64, mixed with their chains."""
    mixture = torch.zeros_like(images)
    for chain in range(CHAINS):
        image = images
        for step in range(LONGEST):
            what = (part[:, chain, step] for part in (drawn.changes, drawn.levels, drawn.signs))
            still = step < drawn.lengths[:, chain]
            image = torch.where(still[:, None, None, None], changed(image, *what), image)
        mixture += drawn.weights[:, chain, None, None, None].to(images.dtype) * image
    share = drawn.share[:, None, None, None].to(images.dtype)
    return share * images + (1 - share) * mixture


def changed(images: Tensor, changes: Tensor, levels: Tensor, signs: Tensor) -> Tensor:
    """Images ``(N, 3, H, W)`` of whole numbers, each after its own change ``(N,)``; whole numbers again."""
    table = _tone_table(images, changes, levels)
    toned = table.gather(2, images.long().flatten(2)).view(images.shape).to(images.dtype)
    moved = _moved(images, _matrices(images, changes, levels * signs))
    return torch.where((changes < _TONES)[:, None, None, None], toned, moved)


# -- changes of tone --------------------------------------------------------------------------------


def _tone_table(images: Tensor, changes: Tensor, levels: Tensor) -> Tensor:
    """What each of 256 values becomes, for each image and channel ``(N, 3, 256)``."""
    values = torch.arange(256, device=images.device).expand(len(images), 3, 256)
    counts = torch.zeros(len(images), 3, 256, dtype=torch.int64, device=images.device)
    pixels = images.long().flatten(2)
    counts.scatter_add_(2, pixels, torch.ones_like(pixels))
    bits = 8 - (4 - _whole(levels, 4))[:, None, None]
    threshold = 256 - _whole(levels, 256)[:, None, None]
    tables = torch.stack(
        [
            _autocontrast(values, counts),
            _equalize(values, counts),
            values >> bits << bits,
            torch.where(values < threshold, values, 255 - values),
        ]
    )
    chosen = changes.clamp_max(_TONES - 1)
    return tables[chosen, torch.arange(len(images), device=images.device)].clamp(0, 255)


def _autocontrast(values: Tensor, counts: Tensor) -> Tensor:
    """The darkest value of a channel becomes 0 and the brightest 255."""
    present = counts > 0
    lowest = torch.where(present, values, 255).amin(2, keepdim=True)
    highest = torch.where(present, values, 0).amax(2, keepdim=True)
    width = (highest - lowest).clamp_min(1).double()
    scale = torch.full_like(width, 255) / width  # a number by a tensor would be a product with 1 / tensor
    stretched = (values * scale - lowest * scale).trunc().long()
    return torch.where(highest > lowest, stretched, values)


def _equalize(values: Tensor, counts: Tensor) -> Tensor:
    """All values of a channel become equally frequent, as far as whole numbers allow."""
    last = torch.where(counts > 0, values, -1).amax(2, keepdim=True)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, last)) // 255
    below = counts.cumsum(2) - counts
    return torch.where(step > 0, (step // 2 + below) // step.clamp_min(1), values)


# -- changes of place -------------------------------------------------------------------------------


def _matrices(images: Tensor, changes: Tensor, levels: Tensor) -> Tensor:
    """Where a pixel comes from: for each image, ``(N, 2, 3)`` times its column, its row and 1."""
    height, width = images.shape[2:]
    kind = {name: changes == number for number, name in enumerate(CHANGES)}
    zero, shear = torch.zeros_like(levels), levels * 0.3 / 10
    angle = torch.deg2rad(torch.where(kind["rotate"], -_whole(levels, 30).to(levels.dtype), zero))
    cos, sin = angle.cos(), angle.sin()
    across = sin + torch.where(kind["shear_x"], shear, zero)
    down = -sin + torch.where(kind["shear_y"], shear, zero)
    # A rotation leaves the middle where it is.
    right = width / 2 - cos * (width / 2) - sin * (height / 2)
    below = height / 2 + sin * (width / 2) - cos * (height / 2)
    right = torch.where(kind["translate_x"], _whole(levels, width / 3).to(levels.dtype), right)
    below = torch.where(kind["translate_y"], _whole(levels, height / 3).to(levels.dtype), below)
    return torch.stack([torch.stack([cos, across, right], 1), torch.stack([down, cos, below], 1)], 1)


def _moved(images: Tensor, matrices: Tensor) -> Tensor:
    """Images whose pixels come from other places, by bilinear interpolation; black from outside."""
    height, width = images.shape[2:]
    columns = torch.arange(width, dtype=matrices.dtype, device=images.device) + 0.5
    rows = torch.arange(height, dtype=matrices.dtype, device=images.device) + 0.5
    (a, b, c), (d, e, f) = (matrices[:, row, :, None, None].unbind(1) for row in (0, 1))
    x = a * columns + b * rows[:, None] + c
    y = d * columns + e * rows[:, None] + f
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    grid = torch.stack([2 * x / width - 1, 2 * y / height - 1], -1).to(images.dtype)
    found = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return torch.where(inside[:, None], (found + _NEARLY[found.element_size()]).floor().clamp(0, 255), 0)


def _whole(levels: Tensor, most: float) -> Tensor:
    """Of a change that is ``most`` at the strongest level, the part for these levels, as whole numbers."""
    return (levels * most / STRONGEST).trunc().long()
