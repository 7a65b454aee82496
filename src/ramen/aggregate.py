"""Weighted sums of stored rows: for every query, its own rows with its own weights.

Two ways. On a GPU one dense product over the whole pool reads it once, at the speed of its memory. On a CPU
the rows that are really used are gathered and summed, which touches far less.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_REST_SCALE = 2.0**11  # what the rounding to half precision leaves is smaller by that much
_PANEL_BYTES = 64 * 2**20  # what is widened to fp32 at a time


def weighted_rows(pool: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """``out[q] = sum_s weights[q, s] * pool[rows[q, s]]`` in fp32; all on the pool's device.

    Args:
        pool: ``(R, G)`` of any floating-point type.
        rows: ``(Q, S)`` row numbers; a row may occur several times.
        weights: ``(Q, S)`` fp32.
    """
    if pool.device.type == "cpu":
        return _gathered(pool, rows, weights)
    return _dense(pool, rows, weights)


def _gathered(pool: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    if pool.dtype == torch.float32:
        return F.embedding_bag(rows, pool, per_sample_weights=weights, mode="sum")
    # Summation in half precision would lose bits: widen the rows in use, a panel of columns at a time.
    used, position = rows.unique(return_inverse=True)
    panel = max(1, _PANEL_BYTES // (4 * len(used)))
    panels = [
        F.embedding_bag(position, columns[used].float(), per_sample_weights=weights, mode="sum")
        for columns in pool.split(panel, dim=1)
    ]
    return torch.cat(panels, dim=1)


def _dense(pool: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    spread = weights.new_zeros(len(rows), len(pool)).scatter_add_(1, rows, weights)
    if pool.dtype == torch.float32:
        return spread @ pool
    # The product takes both factors in the pool's type. So the largest weight of each query is brought to 1,
    # and what the rounding of the weights leaves over goes along as further rows of the same product.
    largest = spread.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    exact = spread / largest
    rounded = exact.to(pool.dtype)
    rest = ((exact - rounded.float()) * _REST_SCALE).to(pool.dtype)
    sums, rest_sums = torch.mm(torch.cat([rounded, rest]), pool, out_dtype=torch.float32).chunk(2)
    return (sums + rest_sums / _REST_SCALE) * largest
