"""The mean of every window of pixels, windows side by side, and its gradient.

torch's own program for feature maps with the channels of a pixel beside each other takes about twenty times
as long as the memory needs: it was half of a ResNet's backward pass.
"""

import torch
from torch import Tensor

from ramen import kernels

Window = tuple[int, int]

_BLOCK = 1024


def forward(x: Tensor, window: Window) -> Tensor:
    """The means of ``x``, ``(B, C, H, W)``; pixels beyond the last whole window are left out."""
    return _forward_triton(x, window) if _uses_triton(x) else _forward_torch(x, window)


def backward(gradient: Tensor, shape: torch.Size, window: Window) -> Tensor:
    """The gradient of what ``forward`` got, which has that shape."""
    if _uses_triton(gradient):
        return _backward_triton(gradient, shape, window)
    return _backward_torch(gradient, shape, window)


def empty_map(like: Tensor, shape: torch.Size) -> Tensor:
    """A feature map of that shape, not filled, with the channels of a pixel beside each other."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _uses_triton(x: Tensor) -> bool:
    return kernels.usable_on(x.device) and x.dtype != torch.float64


# -- plain torch ------------------------------------------------------------------------------------


def _forward_torch(x: Tensor, window: Window) -> Tensor:
    result: Tensor = torch.ops.aten.avg_pool2d(x, window, window)
    return result


def _backward_torch(gradient: Tensor, shape: torch.Size, window: Window) -> Tensor:
    given = empty_map(gradient, shape)  # only its shape and layout are used
    result: Tensor = torch.ops.aten.avg_pool2d_backward(
        gradient, given, window, window, (0, 0), False, True, None
    )
    return result


# -- Triton -----------------------------------------------------------------------------------------


def _forward_triton(x: Tensor, window: Window) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    images, channels, height, width = x.shape
    rows, columns = height // window[0], width // window[1]
    output = empty_map(x, torch.Size((images, channels, rows, columns)))
    grid = (images * rows, -(-columns * channels // _BLOCK))
    with kernels.current_device(x.device):
        kernels.load("mean_pool").mean_pool[grid](
            x, output, height, width, rows, columns, channels, *window, BLOCK=_BLOCK, num_warps=4
        )
    return output


def _backward_triton(gradient: Tensor, shape: torch.Size, window: Window) -> Tensor:
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    images, channels, height, width = shape
    rows, columns = gradient.shape[2:]
    total = empty_map(gradient, shape)
    grid = (images * height, -(-width * channels // _BLOCK))
    with kernels.current_device(gradient.device):
        kernels.load("mean_pool").mean_pool_backward[grid](
            gradient, total, height, width, rows, columns, channels, *window, BLOCK=_BLOCK, num_warps=4
        )
    return total
