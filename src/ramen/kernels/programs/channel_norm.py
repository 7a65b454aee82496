"""The programs behind ``ramen.kernels.channel_norm``; strides are in elements."""

import triton
import triton.language as tl


@triton.jit
def _factor_and_shift(
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


@triton.jit
def channel_norm_forward(
    x_pointer,
    skip_pointer,
    output_pointer,
    mean_pointer,
    scale_pointer,
    affine_pointer,
    affine_stride,
    weight_at,
    bias_at,
    pixels,
    channels,
    HAS_SKIP: tl.constexpr,
    RELU: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Some channels of some pixels of one image."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    known = column < channels
    row = affine_pointer + image * affine_stride + column
    factor, shift = _factor_and_shift(
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


@triton.jit
def channel_norm_backward(
    gradient_pointer,
    other_pointer,
    x_pointer,
    output_pointer,
    of_input_pointer,
    after_relu_pointer,
    mean_pointer,
    scale_pointer,
    affine_pointer,
    affine_stride,
    rows_pointer,
    rows_stride,
    chunk_stride,
    weight_at,
    bias_at,
    pixels,
    channels,
    chunk_pixels,
    HAS_OTHER: tl.constexpr,
    RELU: tl.constexpr,
    HAS_OUTPUT: tl.constexpr,
    NEEDS_INPUT: tl.constexpr,
    NEEDS_SKIP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Some channels of a chunk of one image's pixels: their gradients, and the chunk's sums."""
    image = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    known = column < channels
    row = affine_pointer + image * affine_stride + column
    factor, shift = _factor_and_shift(
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
