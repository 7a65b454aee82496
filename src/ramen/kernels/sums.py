"""Weighted sums straight from stored rows: for every query, its own rows with its own weights.

One program sums one piece of one query's row, in registers, in the order of its picks. Programs of one piece
run side by side for all queries, so that rows which several queries share come from the cache. Where queries
are few, the picks of each are shared out among several programs, whose sums are added. The torch for it is
``_gathered`` in ``ramen.memory.row_sums``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ramen.kernels import OPTIONS, on

_UNROLLED = 4  # rows whose loads are under way together
_PROGRAMS = 500  # as many keep a GPU busy
_FEWEST_PICKS = 16  # of a program
_COLUMNS = 512  # of a piece of floating-point rows
_WORDS = 128  # of a piece of packed rows; one a thread, so that no word has to move between threads


@triton.jit
def _float_kernel(
    stored, places, weights, out,
    picks, columns, stored_stride, out_stride, share_stride,
    COLUMNS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    share = tl.program_id(2).to(tl.int64)
    inside = column < columns
    first_pick = (query * tl.num_programs(2) + share) * picks
    places += first_pick
    weights += first_pick
    out += share * share_stride
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, picks, UNROLLED):
        for step in tl.static_range(UNROLLED):
            place = tl.load(places + first + step).to(tl.int64)
            weight = tl.load(weights + first + step)
            row = tl.load(stored + place * stored_stride + column, mask=inside, other=0.0)
            total += weight * row.to(tl.float32)
    tl.store(out + query * out_stride + column, total, mask=inside)


@triton.jit
def _packed_kernel(
    words, scales, places, rows, weights, unit_block, unit_start, unit_stop, out,
    picks, first_unit, row_words, words_stride, scales_stride, out_stride, share_stride,
    BITS: tl.constexpr, WORDS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = word < row_words
    unit = first_unit + word // BITS  # 32 values of BITS bits are BITS words of 32 bits
    block = tl.load(unit_block + unit, mask=inside, other=0)
    code = tl.arange(0, 32 // BITS)
    share = tl.program_id(2).to(tl.int64)
    first_pick = (query * tl.num_programs(2) + share) * picks
    places += first_pick
    rows += first_pick
    weights += first_pick
    out += share * share_stride
    total = tl.zeros((32 // BITS, WORDS), tl.float32)
    for first in range(0, picks, UNROLLED):
        for step in tl.static_range(UNROLLED):
            place = tl.load(places + first + step).to(tl.int64)
            row = tl.load(rows + first + step).to(tl.int64)
            weight = tl.load(weights + first + step)
            packed = tl.load(words + place * words_stride + word, mask=inside, other=0)
            scale = tl.load(scales + row * scales_stride + block, mask=inside, other=0.0)
            factor = weight * scale.to(tl.float32)
            # each code to the left end of a word; a signed shift back gives its value
            shifted = packed[None, :] << (32 - BITS - BITS * code)[:, None]
            if BITS == 1:  # at the left end it is the sign bit of a float already
                sign = shifted & -2147483648
                total += (factor.to(tl.int32, bitcast=True)[None, :] ^ sign).to(tl.float32, bitcast=True)
            else:
                total += factor[None, :] * (shifted >> (32 - BITS)).to(tl.float32)
    start = tl.load(unit_start + unit, mask=inside, other=0) + word % BITS * (32 // BITS)
    stop = tl.load(unit_stop + unit, mask=inside, other=0)
    column = start[None, :] + code[:, None]
    tl.store(out + query * out_stride + column, total, mask=column < stop[None, :])


class Units(NamedTuple):
    """How a packed row is divided into units of 32 values: integers ``(units,)`` each."""

    scale: Tensor  # which scale of the row belongs to the unit
    start: Tensor  # its first value
    stop: Tensor  # one past its last value


def float_sums(stored: Tensor, places: Tensor, weights: Tensor, out: Tensor) -> None:
    """``out[q] = sum_s weights[q, s] * stored[places[q, s]]``.

    Args:
        stored: ``(R, columns)`` in fp32 or fp16.
        places: ``(Q, S)`` row numbers.
        weights: ``(Q, S)`` in fp32.
        out: ``(Q, columns)`` in fp32.
    """
    columns = stored.shape[1]
    pieces = triton.cdiv(columns, _COLUMNS)
    shares = _shares(places, pieces)
    places, weights = _shared_out(shares, places), _shared_out(shares, weights)
    with on(weights.device), _added_up(out, shares) as sums:
        _float_kernel[len(places), pieces, shares](
            stored, places, weights, sums,
            places.shape[1] // shares, columns, stored.stride(0), sums.stride(1), sums.stride(0),
            COLUMNS=_COLUMNS, UNROLLED=_UNROLLED, **OPTIONS,
        )  # fmt: skip


def packed_sums(
    bits: int,
    units: Units,
    stored: Tensor,
    scales: Tensor,
    places: Tensor,
    rows: Tensor,
    weights: Tensor,
    out: Tensor,
    first_unit: int = 0,
) -> None:
    """``out[q] = sum_s weights[q, s] * decode(stored[places[q, s]], scales[rows[q, s]])``.

    Args:
        bits: Of a value: 1, 4 or 8.
        units: How a packed row is divided, on the device of the weights.
        stored: Packed rows, or a panel of them: some columns that hold whole units.
        scales: ``(R, blocks)``.
        places: ``(Q, S)`` row numbers in ``stored``.
        rows: ``(Q, S)`` row numbers in ``scales``.
        weights: ``(Q, S)`` in fp32.
        out: ``(Q, G)`` in fp32; what ``stored`` has no columns of is left alone.
        first_unit: The unit that a panel starts with.
    """
    words = stored.view(torch.int32)
    pieces = triton.cdiv(words.shape[1], _WORDS)
    # A panel leaves the columns of the others alone, so its sums have to go where they belong at once.
    whole = words.shape[1] == len(units.scale) * bits
    shares = _shares(places, pieces) if whole else 1
    places, rows, weights = (_shared_out(shares, picks) for picks in (places, rows, weights))
    with on(weights.device), _added_up(out, shares) as sums:
        _packed_kernel[len(places), pieces, shares](
            words, scales, places, rows, weights, units.scale, units.start, units.stop, sums,
            places.shape[1] // shares, first_unit, words.shape[1],
            words.stride(0), scales.stride(0), sums.stride(1), sums.stride(0),
            BITS=bits, WORDS=_WORDS, UNROLLED=_UNROLLED, **OPTIONS,
        )  # fmt: skip


def _shares(places: Tensor, pieces: int) -> int:
    """Among how many programs the picks of a query are shared out."""
    queries, picks = places.shape
    return max(1, min(_PROGRAMS // (queries * pieces), picks // _FEWEST_PICKS))


@contextmanager
def _added_up(out: Tensor, shares: int) -> Iterator[Tensor]:
    """Room for the sums of each share, ``(shares, *out.shape)``; behind the block ``out`` has them all."""
    if shares == 1:
        yield out[None]
        return
    sums = out.new_empty(shares, *out.shape)
    yield sums
    out.copy_(sums.sum(0))


def _shared_out(shares: int, picks: Tensor) -> Tensor:
    """Zeros behind, so that all shares are alike and have no rest: row 0 with weight 0."""
    return F.pad(picks, (0, -picks.shape[1] % (shares * _UNROLLED))).contiguous()
