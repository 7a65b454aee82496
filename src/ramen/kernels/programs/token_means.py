"""The program behind ``ramen.kernels.token_means``; strides are in elements."""

import triton
import triton.language as tl


@triton.jit
def add_and_average(
    x_pointer,
    delta_pointer,
    delta_stride,
    total_pointer,
    means_pointer,
    tokens,
    width,
    chunk_tokens,
    HAS_DELTA: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A chunk of one image's tokens: their sums with ``delta``, and the chunk's share of the mean."""
    image, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    inside = column < width
    summed = tl.zeros((COLUMNS,), dtype=tl.float32)
    end = tl.minimum((chunk + 1) * chunk_tokens, tokens)
    for token in tl.range(chunk * chunk_tokens, end, num_stages=STAGES):
        within = token * width + column
        place = image * tokens * width + within
        x = tl.load(x_pointer + place, mask=inside, other=0.0).to(tl.float32)
        if HAS_DELTA:
            x += tl.load(delta_pointer + image * delta_stride + within, mask=inside, other=0.0).to(tl.float32)
            rounded = x.to(total_pointer.dtype.element_ty)  # what is stored is what is averaged
            tl.store(total_pointer + place, rounded, mask=inside)
            x = rounded.to(tl.float32)
        summed += x
    row = (image * tl.num_programs(1) + chunk) * width + column
    tl.store(means_pointer + row, summed / tokens, mask=inside)
