"""Random views as their authors compose them, one at a time, in torchvision's operations."""

import math

import torch
import torchvision.transforms.functional as TF
from torch import Tensor

from ramen.utils.numerics import pair_scores, row_keys

SHAPES = (3 / 4, 4 / 3)


def box(uniform: list[float], height: int, width: int, smallest: float) -> tuple[int, int, int, int]:
    """Top, left, height and width, in the steps of torchvision's ``RandomResizedCrop.get_params``."""
    for attempt in range(10):
        area = height * width * (smallest + (1 - smallest) * uniform[attempt])
        low, high = math.log(SHAPES[0]), math.log(SHAPES[1])
        shape = math.exp(low + (high - low) * uniform[10 + attempt])
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(uniform[21] * (height - h + 1)), int(uniform[20] * (width - w + 1)), h, w
    h, w = height, width
    if width / height < SHAPES[0]:
        h = round(width / SHAPES[0])
    elif width / height > SHAPES[1]:
        w = round(height * SHAPES[1])
    return (height - h) // 2, (width - w) // 2, h, w


def views_with_torchvision(image: Tensor, number: int, smallest: float = 0.08, seed: int = 0) -> Tensor:
    """Views ``(number, 3, H, W)`` of one image ``(3, H, W)``."""
    height, width = image.shape[1:]
    key = row_keys(image[None].float())
    views = [image]
    for view in range(number - 1):
        places = torch.arange(view * 23, view * 23 + 23)
        uniform = pair_scores(seed, key, places)[0].tolist()
        part = TF.resized_crop(image, *box(uniform, height, width, smallest), [height, width], antialias=True)
        views.append(TF.hflip(part) if uniform[22] < 0.5 else part)
    return torch.stack(views)
