"""The entries of every queue that are most similar to a query, with their distances.

Entries are ranked by inner products of unit vectors, from one matrix product for all of them. Entries stored
in half precision are multiplied in half precision and summed in fp32: each query is split into two
half-precision parts whose sum it is, so that it loses nothing. Distances are computed from differences, as an
inner product has no digits left for a distance near zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ramen import kernels
from ramen.utils.numerics import aligned

if TYPE_CHECKING:
    import triton.language as tl
_MOST_TOPK = 8  # the program looks for one after the other
_MOST_SLOTS = 4096
REMAINDER_SCALE = 2.0**11  # brings the remainder to about the size of the number
_DISTANCE_BYTES = 64 * 2**20  # of differences in memory at a time, at most


def nearest(
    queries: Tensor, embeddings: Tensor, used: int, table: Tensor, topk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, validity and distances of the nearest entries, ``(B, queues, topk)`` each.

    A queue with fewer than ``topk`` entries has row 0 and False for those that are missing.

    Args:
        queries: Unit vectors ``(B, d)``, fp32.
        embeddings: Stored unit vectors ``(rows, d)``; row 0 is no entry.
        used: How many of the rows are in use.
        table: The row in each slot of each queue ``(queues, slots)``, -1 for an empty slot.
        topk: How many entries per queue at most.
    """
    topk = min(topk, table.shape[1])
    products = _products(queries, embeddings[: aligned(used)])
    if _uses_triton(table, topk):
        return _nearest_triton(queries, embeddings, products, table, topk)
    return _nearest_torch(queries, embeddings, products, table, topk)


def _uses_triton(table: Tensor, topk: int) -> bool:
    is_small = topk <= _MOST_TOPK and table.shape[1] <= _MOST_SLOTS
    return is_small and kernels.usable_on(table.device)


def _products(queries: Tensor, embeddings: Tensor) -> Tensor:
    """Inner products ``(B, rows)`` in fp32; in two parts ``(2 B, rows)`` for half precision on a GPU."""
    if embeddings.dtype == torch.float32 or embeddings.device.type == "cpu":
        return queries @ embeddings.float().T
    rounded = queries.to(embeddings.dtype)
    remainder = ((queries - rounded.float()) * REMAINDER_SCALE).to(embeddings.dtype)
    product: Tensor = torch.mm(torch.cat([rounded, remainder]), embeddings.T, out_dtype=torch.float32)
    return product


# -- plain torch ------------------------------------------------------------------------------------


def _nearest_torch(
    queries: Tensor, embeddings: Tensor, products: Tensor, table: Tensor, topk: int
) -> tuple[Tensor, Tensor, Tensor]:
    if len(products) > len(queries):
        rounded, remainder = products.chunk(2)
        products = rounded + remainder / REMAINDER_SCALE
    scores = products[:, table.clamp_min(0)].masked_fill(table < 0, -torch.inf)
    best = scores.topk(topk, dim=2)
    valid = best.values > -torch.inf
    rows = torch.where(valid, table.expand(len(queries), -1, -1).gather(2, best.indices), 0)
    return rows, valid, distances(queries, embeddings, rows)


def distances(queries: Tensor, embeddings: Tensor, rows: Tensor) -> Tensor:
    """Euclidean distances from each query to its rows ``(B, queues, k)``."""
    count = max(1, _DISTANCE_BYTES // (4 * rows.shape[1:].numel() * queries.shape[1]))
    parts = [
        (query[:, None, None, :] - embeddings[chosen]).norm(dim=-1)
        for query, chosen in zip(queries.split(count), rows.split(count), strict=True)
    ]
    return torch.cat(parts)


# -- Triton -----------------------------------------------------------------------------------------


def _nearest_triton(
    queries: Tensor, embeddings: Tensor, products: Tensor, table: Tensor, topk: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, width = queries.shape
    queues, slots = table.shape
    shape = (batch, queues, topk)
    rows = torch.empty(shape, dtype=torch.int64, device=queries.device)
    valid = torch.empty(shape, dtype=torch.bool, device=queries.device)
    distance = torch.empty(shape, dtype=torch.float32, device=queries.device)
    with kernels.current_device(queries.device):
        find_nearest[(batch, queues)](
            products, products.stride(0), batch, table, table.stride(0), slots, queries, embeddings,
            width, rows, valid, distance,
            IN_TWO_PARTS=len(products) > batch, REMAINDER_SCALE=REMAINDER_SCALE, TOPK=topk,
            SLOTS=kernels.power_of_two(slots), WIDTH=kernels.power_of_two(width), num_warps=4,
        )  # fmt: skip
    return rows, valid, distance


# -- programs ---------------------------------------------------------------------------------------


@kernels.program
def find_nearest(
    products_pointer, products_stride, batch, table_pointer, table_stride, slots, queries_pointer,
    embeddings_pointer, width, rows_pointer, valid_pointer, distances_pointer,
    IN_TWO_PARTS: tl.constexpr, REMAINDER_SCALE: tl.constexpr, TOPK: tl.constexpr, SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
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
