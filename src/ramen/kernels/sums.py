"""Weighted sums straight from stored rows: for every query, its own rows with its own weights.

One Triton program sums one piece of one query's row, in registers, in the order of its picks. The programs
for one piece run side by side for all queries, so that rows which several queries share come from the cache.
If there are few queries, the picks of each are split among several programs, and their sums are added. Their
plain form is ``sum_rows`` of the codecs (``ramen.memory.codecs``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

if TYPE_CHECKING:
    import triton.language as tl

_UNROLLED = 4  # rows whose loads are in flight together
_ENOUGH_PROGRAMS = 500  # to keep a GPU busy
_FEWEST_PICKS = 16  # per program
_PIECE_COLUMNS = 512  # of floating-point rows
_PIECE_WORDS = 128  # of packed rows; one per thread, so that no word has to move between threads
_OPTIONS = {"UNROLLED": _UNROLLED, "num_warps": 4, "enable_fp_fusion": True}


class Units(NamedTuple):
    """How a packed row is divided into units of 32 values: integers ``(units,)`` each."""

    scale: Tensor  # which scale of the row belongs to the unit
    start: Tensor  # its first value
    stop: Tensor  # one past its last value


uses_triton = kernels.usable_on  # whether these functions can be called for tensors on a device


def float_sums(stored: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """``out[q] = sum_s weights[q, s] * stored[rows[q, s]]``, ``(Q, columns)`` in fp32.

    Args:
        stored: ``(R, columns)`` in fp32 or fp16.
        rows: ``(Q, S)`` row numbers.
        weights: ``(Q, S)`` in fp32.
    """
    columns = stored.shape[1]
    pieces = -(-columns // _PIECE_COLUMNS)
    splits = _splits(rows, pieces)
    rows, weights = (_padded(picks, splits) for picks in (rows, weights))
    sums = weights.new_empty(splits, len(rows), columns)
    with kernels.current_device(weights.device):
        sum_float_rows[len(rows), pieces, splits](
            stored, rows, weights, sums,
            rows.shape[1] // splits, columns, stored.stride(0), sums.stride(1), sums.stride(0),
            COLUMNS=_PIECE_COLUMNS, **_OPTIONS,
        )  # fmt: skip
    return sums[0] if splits == 1 else sums.sum(0)


def sign_sums(
    units: Units, stored: Tensor, scales: Tensor, rows: Tensor, weights: Tensor, size: int
) -> Tensor:
    """``out[q] = sum_s weights[q, s] * decode(row rows[q, s])``, ``(Q, size)`` in fp32.

    Args:
        units: How a packed row is divided, on the device of the weights.
        stored: Rows of one bit per value, set if it is negative.
        scales: ``(R, blocks)``.
        rows: ``(Q, S)`` row numbers.
        weights: ``(Q, S)`` in fp32.
        size: Values of a row without padding.
    """
    words = stored.view(torch.int32)
    pieces = -(-words.shape[1] // _PIECE_WORDS)
    splits = _splits(rows, pieces)
    rows, weights = (_padded(picks, splits) for picks in (rows, weights))
    sums = weights.new_empty(splits, len(rows), size)
    with kernels.current_device(weights.device):
        sum_sign_rows[len(rows), pieces, splits](
            words, scales, rows, weights, units.scale, units.start, units.stop, sums,
            rows.shape[1] // splits, words.shape[1],
            words.stride(0), scales.stride(0), sums.stride(1), sums.stride(0),
            WORDS=_PIECE_WORDS, **_OPTIONS,
        )  # fmt: skip
    return sums[0] if splits == 1 else sums.sum(0)


def _splits(picks: Tensor, pieces: int) -> int:
    """Among how many programs the picks of a query, ``(Q, S)`` in all, are split."""
    queries, count = picks.shape
    return max(1, min(_ENOUGH_PROGRAMS // (queries * pieces), count // _FEWEST_PICKS))


def _padded(picks: Tensor, splits: int) -> Tensor:
    """Picks followed by zeros (row 0 with weight 0), so that each split unrolls without a remainder."""
    return F.pad(picks, (0, -picks.shape[1] % (splits * _UNROLLED))).contiguous()


# -- programs ---------------------------------------------------------------------------------------

# A program sums one piece of a row for one query: for the picks ``split * picks`` to ``(split + 1) * picks``
# of that query, if these are split among several programs. Strides are in elements.


@kernels.program
def sum_float_rows(
    stored, stored_rows, weights, out,
    picks, columns, stored_stride, out_stride, split_stride,
    COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """``COLUMNS`` columns of floating-point rows."""
    query = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2).to(tl.int64)
    inside = column < columns
    first_pick = (query * tl.num_programs(2) + split) * picks
    stored_rows += first_pick
    weights += first_pick
    out += split * split_stride
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, picks, UNROLLED):
        for step in tl.static_range(UNROLLED):
            stored_row = tl.load(stored_rows + first + step).to(tl.int64)
            weight = tl.load(weights + first + step)
            row = tl.load(stored + stored_row * stored_stride + column, mask=inside, other=0.0)
            total += weight * row.to(tl.float32)
    tl.store(out + query * out_stride + column, total, mask=inside)


@kernels.program
def sum_sign_rows(
    words, scales, stored_rows, weights, unit_scale, unit_start, unit_stop, out,
    picks, row_words, words_stride, scales_stride, out_stride, split_stride,
    WORDS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """``WORDS`` words of packed rows, each of which is a unit of 32 values."""
    query = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = unit < row_words
    scale_column = tl.load(unit_scale + unit, mask=inside, other=0)
    bit = tl.arange(0, 32)
    split = tl.program_id(2).to(tl.int64)
    first_pick = (query * tl.num_programs(2) + split) * picks
    stored_rows += first_pick
    weights += first_pick
    out += split * split_stride
    total = tl.zeros((32, WORDS), tl.float32)
    for first in range(0, picks, UNROLLED):
        for step in tl.static_range(UNROLLED):
            stored_row = tl.load(stored_rows + first + step).to(tl.int64)
            weight = tl.load(weights + first + step)
            packed = tl.load(words + stored_row * words_stride + unit, mask=inside, other=0)
            scale = tl.load(scales + stored_row * scales_stride + scale_column, mask=inside, other=0.0)
            factor = weight * scale.to(tl.float32)
            # each bit to the left end of its word, where it is the sign bit of a float
            sign = (packed[None, :] << (31 - bit)[:, None]) & -2147483648
            total += (factor.to(tl.int32, bitcast=True)[None, :] ^ sign).to(tl.float32, bitcast=True)
    start = tl.load(unit_start + unit, mask=inside, other=0)
    stop = tl.load(unit_stop + unit, mask=inside, other=0)
    column = start[None, :] + bit[:, None]
    tl.store(out + query * out_stride + column, total, mask=column < stop[None, :])
