"""AugMix one image and one change at a time, in Pillow's operations."""

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ramen.images.augmix import CHAINS, CHANGES, DRAWS, LONGEST
from ramen.utils.numerics import pair_scores


def changed_with_pillow(image: Image.Image, change: str, level: float, sign: float) -> Image.Image:
    """The published strengths: whole degrees up to 30, whole pixels up to a third, and so on, at level 10."""
    size = image.size
    if change == "autocontrast":
        return ImageOps.autocontrast(image)
    if change == "equalize":
        return ImageOps.equalize(image)
    if change == "posterize":
        return ImageOps.posterize(image, 4 - int(level * 4 / 10))
    if change == "solarize":
        return ImageOps.solarize(image, 256 - int(level * 256 / 10))
    if change == "rotate":
        return image.rotate(sign * int(level * 30 / 10), resample=Image.Resampling.BILINEAR)
    numbers = [1, 0, 0, 0, 1, 0]
    if change.startswith("shear"):
        numbers[1 if change == "shear_x" else 3] = sign * level * 0.3 / 10
    elif change == "translate_x":
        numbers[2] = sign * int(level * (size[0] / 3) / 10)
    elif change == "translate_y":
        numbers[5] = sign * int(level * (size[1] / 3) / 10)
    return image.transform(size, Image.Transform.AFFINE, tuple(numbers), resample=Image.Resampling.BILINEAR)


def augmix_with_pillow(image: Tensor, uniform: list[float], severity: float) -> Tensor:
    """One image ``(3, H, W)`` in [0, 1], and what its numbers stand for."""
    pixels = (image.double() * 255).round().clamp(0, 255)
    picture = Image.fromarray(pixels.to(torch.uint8).permute(1, 2, 0).contiguous().numpy())
    draws = iter(uniform)
    weights = [-np.log1p(-next(draws)) for _ in range(CHAINS)]
    lengths = [1 + int(LONGEST * next(draws)) for _ in range(CHAINS)]
    share = next(draws)
    size = CHAINS * LONGEST
    kinds, levels, signs = ([next(draws) for _ in range(size)] for _ in range(3))
    mixture = torch.zeros_like(pixels)
    for chain in range(CHAINS):
        current = picture
        for step in range(lengths[chain]):
            place = chain * LONGEST + step
            change = CHANGES[int(len(CHANGES) * kinds[place])]
            level = 0.1 + (severity - 0.1) * levels[place]
            current = changed_with_pillow(current, change, level, 1.0 if signs[place] < 0.5 else -1.0)
        result = torch.from_numpy(np.array(current)).permute(2, 0, 1).double()
        mixture += weights[chain] / sum(weights) * result
    return (share * pixels + (1 - share) * mixture) / 255


def views_with_pillow(views: Tensor, key: Tensor, severity: float, seed: int) -> Tensor:
    """Views ``(number, 3, H, W)`` of one image in [0, 1]."""
    found = []
    for number, view in enumerate(views):
        places = torch.tensor([-1 - (number * DRAWS + draw) for draw in range(DRAWS)])
        uniform = pair_scores(seed, key.view(1), places)[0].tolist()
        found.append(augmix_with_pillow(view, uniform, severity))
    return torch.stack(found)
