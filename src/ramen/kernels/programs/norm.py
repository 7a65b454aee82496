"""The programs behind ``ramen.kernels.norm``; strides are in elements."""

import triton
import triton.language as tl


@triton.jit
def norm_forward(
    x_pointer,
    x_stride,
    delta_pointer,
    delta_stride,
    shift_pointer,
    total_pointer,
    output_pointer,
    mean_pointer,
    scale_pointer,
    affine_pointer,
    affine_stride,
    weight_at,
    bias_at,
    tokens,
    width,
    eps,
    HAS_DELTA: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
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


@triton.jit
def norm_backward(
    gradient_pointer,
    gradient_stride,
    input_pointer,
    input_stride,
    mean_pointer,
    scale_pointer,
    skip_pointer,
    total_pointer,
    affine_pointer,
    affine_stride,
    rows_pointer,
    rows_stride,
    chunk_stride,
    weight_at,
    bias_at,
    tokens,
    width,
    chunk_tokens,
    HAS_SKIP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
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
