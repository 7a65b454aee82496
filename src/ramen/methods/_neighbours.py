"""Which images of a batch are nearest to each other."""

import torch
from torch import Tensor


def nearest_others(similarities: Tensor, usable: Tensor, number: int) -> Tensor:
    """Whether the image of the column is among the nearest of that of the row, ``(B, B)``.

    Nobody is his own neighbour. Of equally similar images the first ones count. Images that are not usable
    neither are nor have neighbours; if there are fewer others than ``number``, all of them count.

    Args:
        similarities: Of all pairs, ``(B, B)``.
        usable: Which images count, ``(B,)``.
        number: How many neighbours.
    """
    others = usable & ~torch.eye(len(usable), dtype=torch.bool, device=usable.device)
    order = torch.where(others, similarities, -torch.inf).argsort(dim=1, descending=True, stable=True)
    nearest = torch.zeros_like(others).scatter_(1, order[:, :number], True)
    return nearest & others & usable[:, None]
