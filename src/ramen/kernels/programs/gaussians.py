"""The program behind ``ramen.kernels.gaussians``."""

import triton
import triton.language as tl


@triton.jit
def _unit(x, shortest):
    return x / tl.maximum(tl.sqrt(tl.sum(x * x, 0)), shortest)


@triton.jit
def anchored(
    sums_pointer,
    labels_pointer,
    usable_pointer,
    assigned_pointer,
    texts_pointer,
    first_pointer,
    factors_pointer,
    constants_pointer,
    images,
    classes,
    width,
    anchor,
    smallest_weight,
    smallest_variance,
    shortest,
    IMAGES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One class: its mean and variances, and what log densities need of them."""
    own = tl.program_id(0)

    # 1. How many images it has, and their weight.
    counted = tl.zeros((IMAGES,), dtype=tl.float32)
    weighed = tl.zeros((IMAGES,), dtype=tl.float32)
    for start in range(0, images, IMAGES):
        image = start + tl.arange(0, IMAGES)
        counts = tl.load(usable_pointer + image, mask=image < images, other=0) != 0
        label = tl.load(labels_pointer + image, mask=counts, other=-1)
        counted += tl.where(label == own, 1.0, 0.0)
        weighed += tl.load(assigned_pointer + image * classes + own, mask=counts, other=0.0)
    count, weight = tl.sum(counted, 0), tl.sum(weighed, 0)
    share = count / (count + anchor)

    # 2. The mean, between the text and that of its images.
    column = tl.arange(0, WIDTH)
    inside = column < width
    double = own * 2 * width + column  # of the two halves of a row, the first
    squares = tl.load(sums_pointer + double, mask=inside, other=0.0)
    minus_twice = tl.load(sums_pointer + double + width, mask=inside, other=0.0)
    text = tl.load(texts_pointer + own * width + column, mask=inside, other=0.0)
    mean = _unit(-0.5 * minus_twice, shortest)
    mean = _unit(text + share * (mean - text), shortest)

    # 3. The variances around it, likewise.
    first = tl.load(first_pointer + column, mask=inside, other=1.0)
    distances = tl.maximum(squares + mean * (minus_twice + weight * mean), 0.0)
    around_text = first + (text - mean) * (text - mean)
    variance = around_text + share * (distances / tl.maximum(weight, smallest_weight) - around_text)
    variance = tl.maximum(variance, smallest_variance)

    precision = 1.0 / variance
    weighted = mean * precision
    constant = tl.sum(tl.where(inside, tl.log(variance) + mean * weighted, 0.0), 0)
    tl.store(factors_pointer + double, precision, mask=inside)
    tl.store(factors_pointer + double + width, weighted, mask=inside)
    tl.store(constants_pointer + own, constant)
