"""The Triton program behind ``ramen.kernels.nearest``; strides are in elements."""

import triton
import triton.language as tl


@triton.jit
def nearest(
    products_pointer,
    products_stride,
    batch,
    table_pointer,
    table_stride,
    slots,
    queries_pointer,
    embeddings_pointer,
    width,
    rows_pointer,
    valid_pointer,
    distances_pointer,
    IN_TWO_PARTS: tl.constexpr,
    REMAINDER_SCALE: tl.constexpr,
    TOPK: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One query and one queue: the best entry, then the next best, and so on."""
    query = tl.program_id(0).to(tl.int64)
    queue = tl.program_id(1)
    slot = tl.arange(0, SLOTS)
    row = tl.load(table_pointer + queue * table_stride + slot, mask=slot < slots, other=-1)
    product = products_pointer + query * products_stride + row
    score = tl.load(product, mask=row >= 0, other=float("-inf"))
    if IN_TWO_PARTS:
        remainder = tl.load(product + batch * products_stride, mask=row >= 0, other=0.0)
        score += remainder * (1.0 / REMAINDER_SCALE)

    column = tl.arange(0, WIDTH)
    vector = tl.load(queries_pointer + query * width + column, mask=column < width, other=0.0)
    first = (query * tl.num_programs(1) + queue) * TOPK
    for number in tl.static_range(TOPK):
        best, at = tl.max(score, 0, return_indices=True)
        found = best > float("-inf")
        chosen = tl.where(found, tl.max(tl.where(slot == at, row, 0), 0), 0)
        other = tl.load(embeddings_pointer + chosen * width + column, mask=column < width, other=0.0)
        difference = vector - other.to(tl.float32)
        tl.store(rows_pointer + first + number, chosen)
        tl.store(valid_pointer + first + number, found)
        tl.store(distances_pointer + first + number, tl.sqrt(tl.sum(difference * difference, 0)))
        score = tl.where(slot == at, float("-inf"), score)
