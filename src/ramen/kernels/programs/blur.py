"""The program behind ``ramen.kernels.blur``."""

import triton
import triton.language as tl


@triton.jit
def _weighted(first, step, inside, far, near, middle):
    """The weighted sum of five pixels, ``step`` apart from each other."""
    outer = tl.load(first, mask=inside, other=0.0) + tl.load(first + 4 * step, mask=inside, other=0.0)
    inner = tl.load(first + step, mask=inside, other=0.0) + tl.load(first + 3 * step, mask=inside, other=0.0)
    return far * outer + near * inner + middle * tl.load(first + 2 * step, mask=inside, other=0.0)


@triton.jit
def blur_with_noise(
    images_pointer,
    noise_pointer,
    output_pointer,
    height,
    width,
    far,
    near,
    middle,
    strength,
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of pixels of one channel of an image; images have two more pixels on each side."""
    plane = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < height * width
    row, column = place // width, place % width
    if FLIP:
        column = width - 1 - column
    full = width + 4
    # The pixel that is two rows above and two columns left of the one in the middle.
    first = images_pointer + plane * (height + 4) * full + row * full + column
    outer = _weighted(first, full, inside, far, near, middle)
    outer += _weighted(first + 4, full, inside, far, near, middle)
    inner = _weighted(first + 1, full, inside, far, near, middle)
    inner += _weighted(first + 3, full, inside, far, near, middle)
    blurred = far * outer + near * inner + middle * _weighted(first + 2, full, inside, far, near, middle)
    own = plane * height * width + place
    noise = tl.load(noise_pointer + own, mask=inside, other=0.0)
    y = tl.minimum(tl.maximum(blurred + strength * noise, 0.0), 1.0)
    tl.store(output_pointer + own, y, mask=inside)
