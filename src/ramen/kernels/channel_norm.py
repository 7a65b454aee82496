"""Batch norm by stored statistics with a weight and a bias per image, fused with what surrounds it.

Forward: normalise every channel of ``x``; apply that image's weight and bias; add ``skip``; apply ReLU.
Backward: the gradient of ``x``, and each image's gradient of weight and bias, written straight into its row
of one table. Triton reads every number once each way; plain torch makes a dozen passes over the memory.

Feature maps are ``(B, C, H, W)`` with the channels of a pixel beside each other (``torch.channels_last``), as
tensor cores take them. Where parameters are in the flat vector is said as for layer norms
(``ramen.kernels.norm.AffinePlace``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ramen import kernels
from ramen.kernels.norm import AffinePlace

if TYPE_CHECKING:
    import triton.language as tl
# Numbers of a tile, and its channels at most. Backward, a program handles its pixels tile by tile while the
# next ones are loading.
_FORWARD_TILE_SIZE, _BACKWARD_TILE_SIZE, _MOST_CHANNELS = 2048, 1024, 128
_BACKWARD_STAGES, _WARPS = 3, 4


@dataclass(frozen=True)
class ChannelNorm:
    """A batch norm: where its parameters are, and the statistics that it normalises with."""

    place: AffinePlace
    mean: Tensor  # (C,), in the type of the flat vector
    scale: Tensor  # (C,), one over the standard deviation


@dataclass(frozen=True)
class MapGradients:
    """What a backward pass returns."""

    of_input: Tensor | None  # the gradient of ``x``; None if it was not asked for
    # that of the sum before the ReLU, which is also that of ``skip``; None if not asked for
    after_relu: Tensor | None


def forward(
    x: Tensor,
    affine: Tensor,
    layer: ChannelNorm,
    *,
    skip: Tensor | None = None,
    relu: bool,
    in_place: bool = False,
) -> Tensor:
    """Normalise ``x``.

    Args:
        x: ``(B, C, H, W)``.
        affine: The flat vector ``(G,)``, or one row per image ``(B, G)``.
        layer: The batch norm.
        skip: Added before the ReLU, like ``x``.
        relu: Whether a ReLU follows.
        in_place: Whether ``x`` may be overwritten.
    """
    if _uses_triton(affine):
        return _forward_triton(x, affine, layer, skip, relu, in_place)
    return _forward_torch(x, affine, layer, skip, relu)


def backward(
    gradient: Tensor,
    other: Tensor | None,
    x: Tensor,
    output: Tensor | None,
    affine: Tensor,
    layer: ChannelNorm,
    rows: Tensor,
    *,
    relu: bool,
    needs_input: bool = True,
    needs_skip: bool = False,
) -> MapGradients:
    """The gradient of ``x``; that of weight and bias goes into ``rows``.

    Args:
        gradient: Of the output.
        other: Another part of the gradient of the output, to be added, or None.
        x: What ``forward`` got.
        output: What ``forward`` returned; needed if there was a ``skip`` and a ReLU.
        affine: As in ``forward``.
        layer: As in ``forward``.
        rows: The buffer from ``ramen.kernels.norm.new_gradient_rows``.
        relu: As in ``forward``.
        needs_input: Whether the gradient of ``x`` is needed.
        needs_skip: Whether that of ``skip`` is needed.
    """
    if _uses_triton(affine):
        return _backward_triton(
            gradient, other, x, output, affine, layer, rows, relu, needs_input, needs_skip
        )
    return _backward_torch(gradient, other, x, output, affine, layer, rows, relu, needs_input, needs_skip)


def _uses_triton(affine: Tensor) -> bool:
    return kernels.usable_on(affine.device) and affine.dtype == torch.float32


# -- plain torch ------------------------------------------------------------------------------------


def _part(affine: Tensor, start: int | None, width: int) -> Tensor | None:
    return None if start is None else affine[..., start : start + width]


def _factor_and_shift(affine: Tensor, layer: ChannelNorm) -> tuple[Tensor, Tensor]:
    """Normalising and applying the parameters is one product and one sum; both in a shape that broadcasts."""
    place, factor = layer.place, layer.scale
    weight, bias = _part(affine, place.weight, place.width), _part(affine, place.bias, place.width)
    factor = factor if weight is None else factor * weight
    shift = -layer.mean * factor
    shift = shift if bias is None else shift + bias
    return factor[..., None, None], shift[..., None, None]


def _forward_torch(x: Tensor, affine: Tensor, layer: ChannelNorm, skip: Tensor | None, relu: bool) -> Tensor:
    factor, shift = _factor_and_shift(affine, layer)
    y = torch.addcmul(shift, x.to(factor.dtype), factor)
    y = y if skip is None else y.add_(skip)
    y = y.relu_() if relu else y
    return y.to(x.dtype)


def _backward_torch(
    gradient: Tensor,
    other: Tensor | None,
    x: Tensor,
    output: Tensor | None,
    affine: Tensor,
    layer: ChannelNorm,
    rows: Tensor,
    relu: bool,
    needs_input: bool,
    needs_skip: bool,
) -> MapGradients:
    factor, shift = _factor_and_shift(affine, layer)
    wide, given = gradient.to(factor.dtype), x.to(factor.dtype)
    wide = wide if other is None else wide + other
    if relu:
        if output is None:
            output = torch.addcmul(shift, given, factor).to(x.dtype)
        wide = torch.where(output > 0, wide, 0)
    place = layer.place
    of_bias = wide.sum((2, 3))
    if place.weight is not None:  # the sum of gradient * (x - mean) * scale
        of_weight = ((wide * given).sum((2, 3)) - layer.mean * of_bias) * layer.scale
        rows[:, 0, place.weight : place.weight + place.width] = of_weight
    if place.bias is not None:
        rows[:, 0, place.bias : place.bias + place.width] = of_bias
    return MapGradients(
        (wide * factor).to(gradient.dtype) if needs_input else None,
        wide.to(gradient.dtype) if needs_skip else None,
    )


# -- Triton -----------------------------------------------------------------------------------------


def _options(layer: ChannelNorm, tile_size: int) -> dict[str, int]:
    """The compile-time constants that describe a layer and a tile of this many numbers."""
    channels = min(_MOST_CHANNELS, kernels.power_of_two(layer.place.width))
    return {
        "HAS_WEIGHT": layer.place.weight is not None,
        "HAS_BIAS": layer.place.bias is not None,
        "CHANNELS": channels,
        "TILE": tile_size // channels,
        "num_warps": _WARPS,
    }


def _by_pixels(feature_map: Tensor) -> Tensor:
    """The same with the channels of a pixel beside each other: what the programs read."""
    return feature_map.contiguous(memory_format=torch.channels_last)


def _forward_triton(
    x: Tensor, affine: Tensor, layer: ChannelNorm, skip: Tensor | None, relu: bool, in_place: bool
) -> Tensor:
    x = _by_pixels(x)
    skip = None if skip is None else _by_pixels(skip)
    images, channels, height, width = x.shape
    options = _options(layer, _FORWARD_TILE_SIZE)
    output = x if in_place else torch.empty_like(x)
    grid = (images, -(-height * width // options["TILE"]), -(-channels // options["CHANNELS"]))
    with kernels.current_device(affine.device):
        channel_norm_forward[grid](
            x, x if skip is None else skip, output, layer.mean, layer.scale, affine,
            affine.stride(0) if affine.ndim == 2 else 0, layer.place.weight or 0, layer.place.bias or 0,
            height * width, channels,
            HAS_SKIP=skip is not None, RELU=relu, **options,
        )  # fmt: skip
    return output


def _backward_triton(
    gradient: Tensor,
    other: Tensor | None,
    x: Tensor,
    output: Tensor | None,
    affine: Tensor,
    layer: ChannelNorm,
    rows: Tensor,
    relu: bool,
    needs_input: bool,
    needs_skip: bool,
) -> MapGradients:
    gradient = _by_pixels(gradient)
    other = None if other is None else _by_pixels(other)
    images, channels, height, width = x.shape
    options, chunks = _options(layer, _BACKWARD_TILE_SIZE), rows.shape[1]
    of_input = torch.empty_like(gradient) if needs_input else None
    after_relu = torch.empty_like(gradient) if needs_skip else None
    with kernels.current_device(affine.device):
        channel_norm_backward[(images, chunks, -(-channels // options["CHANNELS"]))](
            gradient, gradient if other is None else other, x, x if output is None else output,
            gradient if of_input is None else of_input, gradient if after_relu is None else after_relu,
            layer.mean, layer.scale, affine, affine.stride(0) if affine.ndim == 2 else 0, rows,
            rows.stride(0), rows.stride(1), layer.place.weight or 0, layer.place.bias or 0,
            height * width, channels, -(-height * width // chunks),
            HAS_OTHER=other is not None, RELU=relu, HAS_OUTPUT=output is not None,
            NEEDS_INPUT=needs_input, NEEDS_SKIP=needs_skip, STAGES=_BACKWARD_STAGES, **options,
        )  # fmt: skip
    return MapGradients(of_input, after_relu)


# -- programs ---------------------------------------------------------------------------------------


@kernels.program
def _factor_and_shift_of(
    mean_pointer, scale_pointer, row, column, known, weight_at, bias_at, HAS_WEIGHT, HAS_BIAS
):
    """Normalising and applying an image's parameters, as one product and one sum."""
    factor = tl.load(scale_pointer + column, mask=known, other=0.0)
    if HAS_WEIGHT:
        factor *= tl.load(row + weight_at, mask=known, other=0.0)
    shift = -tl.load(mean_pointer + column, mask=known, other=0.0) * factor
    if HAS_BIAS:
        shift += tl.load(row + bias_at, mask=known, other=0.0)
    return factor, shift


@kernels.program
def channel_norm_forward(
    x_pointer, skip_pointer, output_pointer, mean_pointer, scale_pointer, affine_pointer, affine_stride,
    weight_at, bias_at, pixels, channels,
    HAS_SKIP: tl.constexpr, RELU: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some channels of some pixels of one image."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    known = column < channels
    row = affine_pointer + image * affine_stride + column
    factor, shift = _factor_and_shift_of(
        mean_pointer, scale_pointer, row, column, known, weight_at, bias_at, HAS_WEIGHT, HAS_BIAS
    )
    inside = (pixel < pixels)[:, None] & known[None, :]
    place = image * pixels * channels + pixel[:, None] * channels + column[None, :]
    y = tl.load(x_pointer + place, mask=inside, other=0.0).to(tl.float32) * factor[None, :] + shift[None, :]
    if HAS_SKIP:
        y += tl.load(skip_pointer + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(output_pointer + place, y.to(output_pointer.dtype.element_ty), mask=inside)


@kernels.program
def channel_norm_backward(
    gradient_pointer, other_pointer, x_pointer, output_pointer, of_input_pointer, after_relu_pointer,
    mean_pointer, scale_pointer, affine_pointer, affine_stride, rows_pointer, rows_stride, chunk_stride,
    weight_at, bias_at, pixels, channels, chunk_pixels,
    HAS_OTHER: tl.constexpr, RELU: tl.constexpr, HAS_OUTPUT: tl.constexpr, NEEDS_INPUT: tl.constexpr,
    NEEDS_SKIP: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, TILE: tl.constexpr,
    CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some channels of a chunk of one image's pixels: their gradients, and the chunk's sums."""
    image = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    known = column < channels
    row = affine_pointer + image * affine_stride + column
    factor, shift = _factor_and_shift_of(
        mean_pointer, scale_pointer, row, column, known, weight_at, bias_at, HAS_WEIGHT, HAS_BIAS
    )
    mean = tl.load(mean_pointer + column, mask=known, other=0.0)
    scale = tl.load(scale_pointer + column, mask=known, other=0.0)
    weight_sums = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
    bias_sums = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
    end = tl.minimum((chunk + 1) * chunk_pixels, pixels)
    for first in tl.range(chunk * chunk_pixels, end, TILE, num_stages=STAGES):
        pixel = first + tl.arange(0, TILE)
        inside = (pixel < end)[:, None] & known[None, :]
        place = image * pixels * channels + pixel[:, None] * channels + column[None, :]
        gradient = tl.load(gradient_pointer + place, mask=inside, other=0.0).to(tl.float32)
        if HAS_OTHER:
            gradient += tl.load(other_pointer + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_pointer + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            if HAS_OUTPUT:
                y = tl.load(output_pointer + place, mask=inside, other=0.0)
            else:  # rounded as it was stored
                y = (x * factor[None, :] + shift[None, :]).to(x_pointer.dtype.element_ty)
            gradient = tl.where(y > 0, gradient, 0.0)
        if NEEDS_SKIP:
            stored = gradient.to(after_relu_pointer.dtype.element_ty)
            tl.store(after_relu_pointer + place, stored, mask=inside)
        if NEEDS_INPUT:
            stored = (gradient * factor[None, :]).to(of_input_pointer.dtype.element_ty)
            tl.store(of_input_pointer + place, stored, mask=inside)
        weight_sums += gradient * ((x - mean[None, :]) * scale[None, :])
        bias_sums += gradient
    found = rows_pointer + image * rows_stride + chunk * chunk_stride + column
    if HAS_WEIGHT:
        tl.store(found + weight_at, tl.sum(weight_sums, 0), mask=known)
    if HAS_BIAS:
        tl.store(found + bias_at, tl.sum(bias_sums, 0), mask=known)
