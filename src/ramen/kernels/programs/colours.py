"""The programs behind ``ramen.kernels.colours``.

An order is a number whose octal digits are places in its ``CHANGES``, the first change lowest.
"""

import triton
import triton.language as tl


@triton.jit
def _clipped(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _grey(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _blended(red, green, blue, factor, other):
    rest = (1.0 - factor) * other
    return _clipped(factor * red + rest), _clipped(factor * green + rest), _clipped(factor * blue + rest)


@triton.jit
def _powered(x, exponent):
    return tl.exp(exponent * tl.log(tl.minimum(tl.maximum(x, 1e-8), 1.0)))


@triton.jit
def _channel(value, chroma, place):
    place = place - 6.0 * tl.floor(place / 6.0)
    return value - chroma * _clipped(tl.minimum(place, 4.0 - place))


@triton.jit
def _turned(red, green, blue, turn):
    value = tl.maximum(tl.maximum(red, green), blue)
    chroma = value - tl.minimum(tl.minimum(red, green), blue)
    safe = tl.where(chroma == 0.0, 1.0, chroma)
    other = tl.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe)
    sector = tl.where(value == red, (green - blue) / safe, other) + 6.0 * turn
    return (
        _channel(value, chroma, sector + 5.0),
        _channel(value, chroma, sector + 3.0),
        _channel(value, chroma, sector + 1.0),
    )


@triton.jit
def _changed(red, green, blue, grey, order, steps, brightness, contrast, saturation, hue, gamma):
    """The first so many changes; ``grey`` is the mean that contrast blends with."""
    for step in range(0, steps):
        change = (order >> (3 * step)) & 7
        if change == 0:
            red, green, blue = _blended(red, green, blue, brightness, 0.0)
        if change == 1:
            red, green, blue = _blended(red, green, blue, contrast, grey)
        if change == 2:
            red, green, blue = _blended(red, green, blue, saturation, _grey(red, green, blue))
        if change == 3:
            red, green, blue = _turned(red, green, blue, hue)
        if change == 4:
            red, green, blue = _powered(red, gamma), _powered(green, gamma), _powered(blue, gamma)
    return red, green, blue


@triton.jit(do_not_specialize=["order", "steps"])
def grey_sums(
    images_pointer,
    sums_pointer,
    pixels,
    order,
    steps,
    brightness,
    contrast,
    saturation,
    hue,
    gamma,
    BLOCK: tl.constexpr,
):
    """The sum of a block's greys after the first so many changes, for each image and block."""
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    first = images_pointer + image * 3 * pixels + place
    red = _clipped(tl.load(first, mask=inside, other=0.0))
    green = _clipped(tl.load(first + pixels, mask=inside, other=0.0))
    blue = _clipped(tl.load(first + 2 * pixels, mask=inside, other=0.0))
    red, green, blue = _changed(
        red, green, blue, 0.0, order, steps, brightness, contrast, saturation, hue, gamma
    )
    total = tl.sum(tl.where(inside, _grey(red, green, blue), 0.0), 0)
    tl.store(sums_pointer + image * tl.num_programs(1) + block, total)


@triton.jit(do_not_specialize=["order", "steps"])
def change_colours(
    images_pointer,
    sums_pointer,
    output_pointer,
    pixels,
    blocks,
    order,
    steps,
    brightness,
    contrast,
    saturation,
    hue,
    gamma,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """All changes of a block of an image's pixels."""
    image = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    sums = tl.load(sums_pointer + image * blocks + block, mask=block < blocks, other=0.0)
    grey = tl.sum(sums, 0) / pixels
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < pixels
    own = image * 3 * pixels + place
    first = images_pointer + own
    red = _clipped(tl.load(first, mask=inside, other=0.0))
    green = _clipped(tl.load(first + pixels, mask=inside, other=0.0))
    blue = _clipped(tl.load(first + 2 * pixels, mask=inside, other=0.0))
    red, green, blue = _changed(
        red, green, blue, grey, order, steps, brightness, contrast, saturation, hue, gamma
    )
    first = output_pointer + own
    tl.store(first, red, mask=inside)
    tl.store(first + pixels, green, mask=inside)
    tl.store(first + 2 * pixels, blue, mask=inside)
