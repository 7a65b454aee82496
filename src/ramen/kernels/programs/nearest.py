"""The program behind ``ramen.kernels.nearest``; strides are in elements."""

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
    HAS_REST: tl.constexpr,
    REST_SCALE: tl.constexpr,
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
    if HAS_REST:
        rest = tl.load(product + batch * products_stride, mask=row >= 0, other=0.0)
        score += rest * (1.0 / REST_SCALE)

    column = tl.arange(0, WIDTH)
    vector = tl.load(queries_pointer + query * width + column, mask=column < width, other=0.0)
    place = (query * tl.num_programs(1) + queue) * TOPK
    for number in tl.static_range(TOPK):
        best, at = tl.max(score, 0, return_indices=True)
        found = best > float("-inf")
        chosen = tl.where(found, tl.max(tl.where(slot == at, row, 0), 0), 0)
        other = tl.load(embeddings_pointer + chosen * width + column, mask=column < width, other=0.0)
        apart = vector - other.to(tl.float32)
        tl.store(rows_pointer + place + number, chosen)
        tl.store(valid_pointer + place + number, found)
        tl.store(distances_pointer + place + number, tl.sqrt(tl.sum(apart * apart, 0)))
        score = tl.where(slot == at, float("-inf"), score)
