"""The mean of every window of pixels, windows side by side, and its gradient.

torch's own program for feature maps with the channels of a pixel beside each other takes about twenty times
as long as the memory needs: it was half of a ResNet's backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ramen import kernels

if TYPE_CHECKING:
    import triton.language as tl
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
        mean_pool[grid](x, output, height, width, rows, columns, channels, *window, BLOCK=_BLOCK, num_warps=4)
    return output


def _backward_triton(gradient: Tensor, shape: torch.Size, window: Window) -> Tensor:
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    images, channels, height, width = shape
    rows, columns = gradient.shape[2:]
    total = empty_map(gradient, shape)
    grid = (images * height, -(-width * channels // _BLOCK))
    with kernels.current_device(gradient.device):
        mean_pool_backward[grid](
            gradient, total, height, width, rows, columns, channels, *window, BLOCK=_BLOCK, num_warps=4
        )
    return total


# -- programs ---------------------------------------------------------------------------------------


@kernels.program
def mean_pool(
    x_pointer, output_pointer, height, width, rows, columns, channels,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of one row of windows of one image."""
    row = tl.program_id(0).to(tl.int64)  # counted over all images
    image, own_row = row // rows, row % rows
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns * channels
    column, channel = place // channels, place % channels
    first = ((image * height + own_row * DOWN) * width + column * ACROSS) * channels + channel
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for down in tl.static_range(DOWN):
        for across in tl.static_range(ACROSS):
            pixel = x_pointer + first + (down * width + across) * channels
            total += tl.load(pixel, mask=inside, other=0.0).to(tl.float32)
    mean = total / (DOWN * ACROSS)
    output = output_pointer + row * columns * channels + place
    tl.store(output, mean.to(output_pointer.dtype.element_ty), mask=inside)


@kernels.program
def mean_pool_backward(
    gradient_pointer, total_pointer, height, width, rows, columns, channels,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of one row of pixels of one image; pixels in no window get zero."""
    pixel_row = tl.program_id(0).to(tl.int64)
    image, own_row = pixel_row // height, pixel_row % height // DOWN
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width * channels
    column, channel = place // channels // ACROSS, place % channels
    pooled = inside & (column < tl.where(own_row < rows, columns, 0))
    found = gradient_pointer + ((image * rows + own_row) * columns + column) * channels + channel
    gradient = tl.load(found, mask=pooled, other=0.0).to(tl.float32) / (DOWN * ACROSS)
    total = total_pointer + pixel_row * width * channels + place
    tl.store(total, gradient.to(total_pointer.dtype.element_ty), mask=inside)
