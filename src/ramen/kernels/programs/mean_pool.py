"""The programs behind ``ramen.kernels.mean_pool``; the channels of a pixel are beside each other."""

import triton
import triton.language as tl


@triton.jit
def mean_pool(
    x_pointer,
    output_pointer,
    height,
    width,
    rows,
    columns,
    channels,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
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


@triton.jit
def mean_pool_backward(
    gradient_pointer,
    total_pointer,
    height,
    width,
    rows,
    columns,
    channels,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
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
