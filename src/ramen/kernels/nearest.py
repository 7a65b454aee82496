"""The entries of every queue that are most similar to a query, with their distances.

Ranking goes by inner products of unit vectors, in one product of matrices for all entries. What is stored in
half precision is multiplied in half precision and summed in fp32: the query is split into two halves whose
sum it is, so that nothing of it is lost. Distances come from differences, since products would leave no digit
of a distance near zero.
"""

import torch
from torch import Tensor

from ramen import kernels
from ramen.utils import split_precision
from ramen.utils.numerics import aligned

_MOST_TOPK = 8  # the kernel looks for one after the other
_MOST_SLOTS = 4096
_DISTANCE_BYTES = 64 * 2**20  # the most that is spread out at a time to compute distances


def nearest(
    queries: Tensor, embeddings: Tensor, used: int, table: Tensor, topk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, whether there is one, and distance, ``(B, queues, topk)`` each; row 0 where there is none.

    Args:
        queries: Unit vectors ``(B, d)``, fp32.
        embeddings: Stored ones ``(rows, d)``; row 0 belongs to nobody.
        used: How many of the rows are in use.
        table: The row in each slot of each queue ``(queues, slots)``, -1 for none.
        topk: How many of each queue at most.
    """
    topk = min(topk, table.shape[1])
    products = _products(queries, embeddings[: aligned(used)])
    small = topk <= _MOST_TOPK and table.shape[1] <= _MOST_SLOTS
    if small and kernels.usable_on(queries.device):
        return _nearest_triton(queries, embeddings, products, table, topk)
    if len(products) > len(queries):
        products = split_precision.join(products)
    scores = products[:, table.clamp_min(0)].masked_fill(table < 0, -torch.inf)
    best = scores.topk(topk, dim=2)
    valid = best.values > -torch.inf
    rows = torch.where(valid, table.expand(len(queries), -1, -1).gather(2, best.indices), 0)
    return rows, valid, distances(queries, embeddings, rows)


def distances(queries: Tensor, embeddings: Tensor, rows: Tensor) -> Tensor:
    """Euclidean distances of each query to its rows ``(B, queues, k)``."""
    slab = max(1, _DISTANCE_BYTES // (4 * rows[0].numel() * queries.shape[1]))
    parts = [
        (query[:, None, None, :] - embeddings[chosen]).norm(dim=-1)
        for query, chosen in zip(queries.split(slab), rows.split(slab), strict=True)
    ]
    return torch.cat(parts)


def _products(queries: Tensor, embeddings: Tensor) -> Tensor:
    """Inner products ``(B, rows)`` in fp32; on a GPU with half-precision rows, two parts ``(2 B, rows)``."""
    if embeddings.dtype == torch.float32 or embeddings.device.type == "cpu":
        return queries @ embeddings.float().T
    return split_precision.split_product(queries, embeddings.T)


def _nearest_triton(
    queries: Tensor, embeddings: Tensor, products: Tensor, table: Tensor, topk: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, width = queries.shape
    queues, slots = table.shape
    shape = (batch, queues, topk)
    rows = torch.empty(shape, dtype=torch.int64, device=queries.device)
    valid = torch.empty(shape, dtype=torch.bool, device=queries.device)
    apart = torch.empty(shape, dtype=torch.float32, device=queries.device)
    with kernels.current_device(queries.device):
        kernels.load("nearest").nearest[(batch, queues)](
            products,
            products.stride(0),
            batch,
            table,
            table.stride(0),
            slots,
            queries,
            embeddings,
            width,
            rows,
            valid,
            apart,
            HAS_REST=len(products) > batch,
            REST_SCALE=split_precision.REST_SCALE,
            TOPK=topk,
            SLOTS=kernels.power_of_two(slots),
            WIDTH=kernels.power_of_two(width),
            num_warps=4,
        )
    return rows, valid, apart
