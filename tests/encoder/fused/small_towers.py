"""A small vision transformer of open_clip, for the tests of the fused passes."""

from typing import Any

import torch
from open_clip.transformer import VisionTransformer
from torch import nn

SIZE = 35  # patches of 7 pixels: their 147 numbers are padded for the product


def tower(dtype: torch.dtype = torch.float64, **options: Any) -> VisionTransformer:
    """A small tower whose norm parameters, scales and biases are all different from each other."""
    torch.manual_seed(0)
    module = VisionTransformer(SIZE, 7, 64, 3, 4, 4.0, output_dim=24, **options)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, parameter.mean().item(), 0.3)
    return module.to(dtype)
