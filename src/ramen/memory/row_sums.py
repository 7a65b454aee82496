"""Weighted sums of stored rows: for every query, its own rows with its own weights.

Ways to do it, which differ in what they read and in the last bits:

- ``dense``: one matrix product over the whole table, at the speed of a GPU's memory; for floating-point rows
  on a GPU without Triton.
- ``kernel``: a Triton kernel that reads the picked rows as they are stored. If they are in host memory that
  the GPU reads, those in use come over the bus first, each once, a panel of columns at a time; some may be
  there already (``ramen.memory.fetch_ahead``).
- ``gathered``: plain torch, ``Codec.sum_rows``. On a GPU it waits for the device once.
"""

import torch
from torch import Tensor

from ramen import kernels
from ramen.kernels import sums
from ramen.kernels.rows import copy_rows
from ramen.memory.codecs import Codec, PackedCodec
from ramen.memory.fetch_ahead import FetchAhead, marked
from ramen.utils import checks, split_precision

WAYS = ("dense", "kernel", "gathered")
_STAGING_BYTES = 128 * 2**20  # what comes over the bus at a time


def weighted_sums(
    codec: Codec,
    stored: Tensor,
    scales: Tensor,
    rows: Tensor,
    weights: Tensor,
    way: str | None = None,
    ahead: FetchAhead | None = None,
) -> Tensor:
    """``out[q] = sum_s weights[q, s] * decode(row rows[q, s])``, ``(Q, G)`` in fp32.

    Args:
        codec: Of the rows.
        stored: ``(R, width)``; on the device of the rest or in host memory.
        scales: Of all rows, as ``codec.encode`` gives them.
        rows: ``(Q, S)`` row numbers; a row may occur several times.
        weights: ``(Q, S)`` in fp32.
        way: One of ``WAYS``; the best for this codec and these devices if not given.
        ahead: What has been fetched of ``stored`` before; only a kernel makes use of it.
    """
    way = best_way(codec, stored, weights.device) if way is None else checks.choice("way", way, WAYS)
    if way == "gathered":
        return codec.sum_rows(stored, scales, rows, weights)
    weights = codec.fold(weights, scales, rows)
    if way == "dense":
        if isinstance(codec, PackedCodec):
            raise ValueError(f"way must not be 'dense' for codec {codec.name!r}, whose rows are packed")
        return _dense(stored, rows, weights)
    return _by_kernel(codec, stored, scales, rows, weights, ahead)


def best_way(codec: Codec, stored: Tensor, device: torch.device) -> str:
    """How to sum rows of ``stored`` for weights on ``device``."""
    if device.type == "cpu":
        return "gathered"
    reachable = stored.device == device or stored.is_pinned()
    if reachable and kernels.usable_on(device):
        return "kernel"
    return "gathered" if stored.device != device or isinstance(codec, PackedCodec) else "dense"


# -- plain torch --------------------------------------------------------------------------------------


def _dense(pool: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    spread = weights.new_zeros(len(rows), len(pool)).scatter_add_(1, rows, weights)
    if pool.dtype == torch.float32:
        return spread @ pool
    # The product takes both factors in the pool's type. So the largest weight of each query is brought to
    # about 1, by a power of two.
    largest = spread.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    largest = torch.exp2(torch.log2(largest).ceil())
    return split_precision.sum_parts(split_precision.product_in_parts(spread / largest, pool)) * largest


# -- kernels ------------------------------------------------------------------------------------------


def _by_kernel(
    codec: Codec, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor, ahead: FetchAhead | None
) -> Tensor:
    out = weights.new_empty(len(rows), codec.size)
    if stored.device == weights.device:
        _sum_panel(codec, stored, scales, rows, rows, weights, out, 0)
    else:
        _sum_from_host(codec, stored, scales, rows, weights, out, ahead)
    return out


def _sum_from_host(
    codec: Codec,
    stored: Tensor,
    scales: Tensor,
    rows: Tensor,
    weights: Tensor,
    out: Tensor,
    ahead: FetchAhead | None,
) -> None:
    first = 0
    if ahead is not None and ahead.width:
        _sum_panel(codec, ahead.table, scales, ahead.places(rows), rows, weights, out, 0)
        first = ahead.width
        if first == codec.width:
            return
    # Which rows are in use, and a place in a smaller table for each, without asking how many there are.
    needed = marked(len(stored), rows)
    place = needed.cumsum(0) - 1
    places = place[rows]
    most = min(rows.numel(), len(stored))
    for panel in codec.panels(most, _STAGING_BYTES, unpacked=False, first=first):
        part = torch.empty(most, panel.stop - panel.start, dtype=stored.dtype, device=rows.device)
        copy_rows(stored[:, panel], needed, place, part)
        _sum_panel(codec, part, scales, places, rows, weights, out, panel.start)


def _sum_panel(
    codec: Codec,
    stored: Tensor,
    scales: Tensor,
    places: Tensor,
    rows: Tensor,
    weights: Tensor,
    out: Tensor,
    first: int,
) -> None:
    if isinstance(codec, PackedCodec):
        tables = codec.blocks.tables(weights.device)
        units = sums.Units(tables.block, tables.start, tables.stop)
        first_unit = first // codec.unit_width
        sums.packed_sums(codec.bits, units, stored, scales, places, rows, weights, out, first_unit)
    else:
        sums.float_sums(stored, places, weights, out[:, first : first + stored.shape[1]])
