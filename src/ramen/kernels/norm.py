"""Layer norm with a weight and a bias per image, fused with the addition before it.

Forward: ``total = x + delta``; normalise every token of ``total``; apply that image's weight and bias.
Backward: the gradient of ``total``, and each image's gradient of weight and bias, written straight into its
row of one table. Triton reads every token once each way; plain torch makes a dozen passes over the memory.

Parameters are in the flat vector of all norm layers, one vector for all images or one row per image:
``AffinePlace`` says where in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ramen import kernels
from ramen.utils.numerics import in_bfloat16_on_a_cpu

if TYPE_CHECKING:
    import triton.language as tl
# An image's tokens are divided into chunks, whose gradients a GPU sums in parallel. Measured: this many
# programs keep a GPU busy; with fewer chunks it would be idle, and more would only write more.
_ENOUGH_PROGRAMS = 500
_FEWEST_CHUNKS, _MOST_CHUNKS = 8, 64


@dataclass(frozen=True)
class AffinePlace:
    """A layer norm whose weight and bias start at these positions of the flat vector; None: it has none."""

    weight: int | None
    bias: int | None
    width: int
    eps: float


@dataclass(frozen=True)
class NormResult:
    """The output of a norm, and what its backward pass needs."""

    total: Tensor  # (B, T, D), the sum that was normalised
    output: Tensor  # (B, T, D)
    mean: Tensor  # (B, T), fp32
    scale: Tensor  # (B, T), one over the standard deviation, fp32


def new_gradient_rows(affine: Tensor, images: int) -> Tensor:
    """A buffer ``(images, chunks, G)`` that ``backward`` writes to.

    Its sum over chunks is the gradient, once every layer has written its part.
    """
    chunks = _chunks(images) if _uses_triton(affine) else 1
    return torch.empty((images, chunks, affine.shape[-1]), dtype=affine.dtype, device=affine.device)


def forward(
    x: Tensor, delta: Tensor | None, affine: Tensor, place: AffinePlace, shift: Tensor | None = None
) -> NormResult:
    """Normalise ``x + delta``.

    Args:
        x: ``(B, T, D)``; the tokens of an image are contiguous, there may be gaps between images.
        delta: Added first: ``(B, T, D)``, or ``(T, D)`` for every image, or None.
        affine: The flat vector ``(G,)``, or one row per image ``(B, G)``.
        place: Where in it this layer's parameters are.
        shift: ``(D,)``, also added to every token, but not to ``total``. Such a result has no ``backward``.
    """
    if _uses_triton(affine):
        return _forward_triton(x, delta, affine, place, shift)
    if in_bfloat16_on_a_cpu(x):
        return _forward_bfloat16(x, delta, affine, place, shift)
    return _forward_torch(x, delta, affine, place, shift)


def backward(
    gradient: Tensor, saved: NormResult, affine: Tensor, place: AffinePlace, skip: Tensor | None, rows: Tensor
) -> Tensor:
    """The gradient of ``total``; that of weight and bias goes into ``rows``.

    Args:
        gradient: Of the output, ``(B, T, D)``.
        saved: What ``forward`` returned.
        affine: As in ``forward``.
        place: As in ``forward``.
        skip: The gradient that reaches ``total`` around the norm, ``(B, T, D)``, or None.
        rows: The buffer from ``new_gradient_rows``.
    """
    if _uses_triton(affine):
        return _backward_triton(gradient, saved, affine, place, skip, rows)
    if in_bfloat16_on_a_cpu(gradient):
        return _backward_bfloat16(gradient, saved, affine, place, skip, rows)
    return _backward_torch(gradient, saved, affine, place, skip, rows)


def _uses_triton(affine: Tensor) -> bool:
    return kernels.usable_on(affine.device) and affine.dtype == torch.float32


# -- plain torch ------------------------------------------------------------------------------------


def _part(affine: Tensor, start: int | None, width: int) -> Tensor | None:
    """One parameter, in a shape that broadcasts over tokens."""
    if start is None:
        return None
    part = affine[..., start : start + width]
    return part if affine.ndim == 1 else part[:, None]


def _forward_torch(
    x: Tensor, delta: Tensor | None, affine: Tensor, place: AffinePlace, shift: Tensor | None
) -> NormResult:
    total = x if delta is None else x + delta
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    wide = wide if shift is None else wide + shift
    weight, bias = _part(affine, place.weight, place.width), _part(affine, place.bias, place.width)
    if affine.ndim == 1:
        output, mean, scale = torch.native_layer_norm(wide, [place.width], weight, bias, place.eps)
        return NormResult(total, output.to(x.dtype), mean[..., 0], scale[..., 0])
    output, mean, scale = torch.native_layer_norm(wide, [place.width], None, None, place.eps)
    if weight is not None and bias is not None:
        output = torch.addcmul(bias, output, weight)
    elif weight is not None:
        output = output * weight
    elif bias is not None:
        output = output + bias
    return NormResult(total, output.to(x.dtype), mean[..., 0], scale[..., 0])


def _backward_torch(
    gradient: Tensor, saved: NormResult, affine: Tensor, place: AffinePlace, skip: Tensor | None, rows: Tensor
) -> Tensor:
    wide = gradient.to(saved.mean.dtype)
    scale = saved.scale[..., None]
    normalised = (saved.total.to(wide.dtype) - saved.mean[..., None]) * scale
    if place.weight is not None:
        rows[:, 0, place.weight : place.weight + place.width] = (wide * normalised).sum(1)
    if place.bias is not None:
        rows[:, 0, place.bias : place.bias + place.width] = wide.sum(1)
    weight = _part(affine, place.weight, place.width)
    wide = wide if weight is None else wide * weight
    mean_gradient = wide.mean(-1, keepdim=True)
    mean_product = (wide * normalised).mean(-1, keepdim=True)
    total = scale * (wide - mean_gradient - normalised * mean_product)
    total = total if skip is None else total + skip
    return total.to(gradient.dtype)


# -- bfloat16 on a CPU ------------------------------------------------------------------------------
# torch's own norm reads and writes bfloat16 and computes in fp32. It takes one weight and bias, so it is
# called for each image: its tokens stay in the cache, and no tensor in fp32 goes to memory and back.


def _own_parameters(affine: Tensor, place: AffinePlace, image: int) -> tuple[Tensor | None, Tensor | None]:
    row = affine if affine.ndim == 1 else affine[image]
    return _part(row, place.weight, place.width), _part(row, place.bias, place.width)


def _forward_bfloat16(
    x: Tensor, delta: Tensor | None, affine: Tensor, place: AffinePlace, shift: Tensor | None
) -> NormResult:
    total = x if delta is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = torch.empty(2, *x.shape[:2], dtype=torch.float32, device=x.device)
    for image, tokens in enumerate(total):
        if delta is not None:
            torch.add(x[image], delta if delta.ndim == 2 else delta[image], out=tokens)
        given = tokens if shift is None else tokens + shift  # a shift makes it fp32
        weight, bias = _own_parameters(affine, place, image)
        results = torch.native_layer_norm(given, [place.width], weight, bias, place.eps)
        output[image], mean[image], scale[image] = results[0], results[1][:, 0], results[2][:, 0]
    return NormResult(total, output, mean, scale)


def _backward_bfloat16(
    gradient: Tensor, saved: NormResult, affine: Tensor, place: AffinePlace, skip: Tensor | None, rows: Tensor
) -> Tensor:
    total = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    for image, own in enumerate(gradient):
        mean, scale = saved.mean[image, :, None], saved.scale[image, :, None]
        given = saved.total[image]
        weight, bias = _own_parameters(affine, place, image)
        found, *_ = torch.ops.aten.native_layer_norm_backward(
            own, given, [place.width], mean, scale, weight, bias, [True, False, False]
        )
        total[image] = found if skip is None else found + skip[image]
        wide = own.float()  # torch would add up tokens in bfloat16
        if place.bias is not None:
            rows[image, 0, place.bias : place.bias + place.width] = wide.sum(0)
        if place.weight is not None:
            product = wide.mul_(scale).mul_(given.float().sub_(mean))
            rows[image, 0, place.weight : place.weight + place.width] = product.sum(0)
    return total


# -- Triton -----------------------------------------------------------------------------------------


# The fastest sizes of those measured. Forward, a program handles several tokens at once. Backward, it handles
# those of its chunk one by one while the next ones are loading; few warps make sums over a token fast.
_FORWARD_TILE_SIZE, _FORWARD_WARPS = 2048, 4
_BACKWARD_STAGES, _BACKWARD_WARPS = 3, 2


def _options(place: AffinePlace) -> dict[str, int]:
    """The compile-time constants that describe a layer."""
    has = {"HAS_WEIGHT": place.weight is not None, "HAS_BIAS": place.bias is not None}
    return {**has, "COLUMNS": kernels.power_of_two(place.width)}


def _chunks(images: int) -> int:
    return min(_MOST_CHUNKS, max(_FEWEST_CHUNKS, _ENOUGH_PROGRAMS // images))


def _forward_triton(
    x: Tensor, delta: Tensor | None, affine: Tensor, place: AffinePlace, shift: Tensor | None
) -> NormResult:
    images, tokens, width = x.shape
    options = _options(place)
    tile = max(1, _FORWARD_TILE_SIZE // options["COLUMNS"])
    total = x if delta is None else torch.empty((images, tokens, width), dtype=x.dtype, device=x.device)
    output = torch.empty((images, tokens, width), dtype=x.dtype, device=x.device)
    mean = torch.empty((images, tokens), dtype=torch.float32, device=x.device)
    scale = torch.empty_like(mean)
    with kernels.current_device(affine.device):
        norm_forward[(images, -(-tokens // tile))](
            x, x.stride(0), delta if delta is not None else x,
            delta.stride(0) if delta is not None and delta.ndim == 3 else 0,
            shift if shift is not None else x, total, output, mean, scale, affine,
            affine.stride(0) if affine.ndim == 2 else 0, place.weight or 0, place.bias or 0, tokens,
            width, place.eps,
            HAS_DELTA=delta is not None, HAS_SHIFT=shift is not None, TILE=tile, num_warps=_FORWARD_WARPS,
            **options,
        )  # fmt: skip
    return NormResult(total, output, mean, scale)


def _backward_triton(
    gradient: Tensor, saved: NormResult, affine: Tensor, place: AffinePlace, skip: Tensor | None, rows: Tensor
) -> Tensor:
    images, tokens, width = gradient.shape
    chunks = rows.shape[1]
    options = _options(place)
    total = torch.empty((images, tokens, width), dtype=gradient.dtype, device=gradient.device)
    with kernels.current_device(affine.device):
        norm_backward[(images, chunks)](
            gradient, gradient.stride(0), saved.total, saved.total.stride(0), saved.mean, saved.scale,
            skip if skip is not None else gradient, total, affine,
            affine.stride(0) if affine.ndim == 2 else 0, rows, rows.stride(0), rows.stride(1),
            place.weight or 0, place.bias or 0, tokens, width, -(-tokens // chunks),
            HAS_SKIP=skip is not None, STAGES=_BACKWARD_STAGES, num_warps=_BACKWARD_WARPS, **options,
        )  # fmt: skip
    return total


# -- programs ---------------------------------------------------------------------------------------


@kernels.program
def norm_forward(
    x_pointer, x_stride, delta_pointer, delta_stride, shift_pointer, total_pointer, output_pointer,
    mean_pointer, scale_pointer, affine_pointer, affine_stride, weight_at, bias_at, tokens, width, eps,
    HAS_DELTA: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of one image's tokens: add, normalise, scale and shift."""
    image = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, COLUMNS)
    inside = (token < tokens)[:, None] & (column < width)[None, :]
    within = token[:, None] * width + column[None, :]
    place = image * tokens * width + within

    x = tl.load(x_pointer + image * x_stride + within, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta_pointer + image * delta_stride + within, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(total_pointer.dtype.element_ty)  # what is stored is what is normalised
        tl.store(total_pointer + place, rounded, mask=inside)
        x = rounded.to(tl.float32)
    if HAS_SHIFT:
        x += tl.load(shift_pointer + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    mean = tl.sum(x, 1) / width
    centred = tl.where(inside, x - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    y = centred * scale[:, None]
    row = affine_pointer + image * affine_stride + column
    if HAS_WEIGHT:
        y *= tl.load(row + weight_at, mask=column < width, other=0.0)[None, :]
    if HAS_BIAS:
        y += tl.load(row + bias_at, mask=column < width, other=0.0)[None, :]
    tl.store(output_pointer + place, y.to(output_pointer.dtype.element_ty), mask=inside)
    tl.store(mean_pointer + image * tokens + token, mean, mask=token < tokens)
    tl.store(scale_pointer + image * tokens + token, scale, mask=token < tokens)


@kernels.program
def norm_backward(
    gradient_pointer, gradient_stride, input_pointer, input_stride, mean_pointer, scale_pointer,
    skip_pointer, total_pointer, affine_pointer, affine_stride, rows_pointer, rows_stride, chunk_stride,
    weight_at, bias_at, tokens, width, chunk_tokens,
    HAS_SKIP: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A chunk of one image's tokens: their gradient, and the chunk's sum for weight and bias."""
    image = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    inside = column < width
    weight_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
    bias_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
    if HAS_WEIGHT:
        weight = tl.load(affine_pointer + image * affine_stride + weight_at + column, mask=inside, other=0.0)
    end = tl.minimum((chunk + 1) * chunk_tokens, tokens)
    for token in tl.range(chunk * chunk_tokens, end, num_stages=STAGES):
        offset = token * width + column
        gradient = tl.load(gradient_pointer + image * gradient_stride + offset, mask=inside, other=0.0)
        gradient = gradient.to(tl.float32)
        x = tl.load(input_pointer + image * input_stride + offset, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_pointer + image * tokens + token)
        scale = tl.load(scale_pointer + image * tokens + token)
        normalised = tl.where(inside, (x - mean) * scale, 0.0)
        weight_sum += gradient * normalised
        bias_sum += gradient
        if HAS_WEIGHT:
            gradient *= weight
        mean_gradient = tl.sum(gradient, 0) / width
        mean_product = tl.sum(gradient * normalised, 0) / width
        total = scale * (gradient - mean_gradient - normalised * mean_product)
        place = image * tokens * width + offset
        if HAS_SKIP:
            total += tl.load(skip_pointer + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(total_pointer + place, total.to(total_pointer.dtype.element_ty), mask=inside)
    row = rows_pointer + image * rows_stride + chunk * chunk_stride + column
    if HAS_WEIGHT:
        tl.store(row + weight_at, weight_sum, mask=inside)
    if HAS_BIAS:
        tl.store(row + bias_at, bias_sum, mask=inside)
