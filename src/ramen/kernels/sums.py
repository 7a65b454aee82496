"""Weighted sums straight from stored rows: for every query, its own rows with its own weights.

One Triton program sums one piece of one query's row, in registers, in the order of its picks. The programs
for one piece run side by side for all queries, so that rows which several queries share come from the cache.
If there are few queries, the picks of each are split among several programs, and their sums are added.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

_UNIT = 32  # values
_UNROLLED = 4  # rows whose loads are in flight together
_ENOUGH_PROGRAMS = 500  # to keep a GPU busy
_FEWEST_PICKS = 16  # per program
_PIECE_COLUMNS = 512  # of floating-point rows
_PIECE_WORDS = 128  # of packed rows; one per thread, so that no word has to move between threads


class Units(NamedTuple):
    """How a packed row is divided into units of 32 values: integers ``(units,)`` each."""

    scale: Tensor  # which scale of the row belongs to the unit
    start: Tensor  # its first value
    stop: Tensor  # one past its last value


def float_sums(stored: Tensor, stored_rows: Tensor, weights: Tensor, out: Tensor) -> None:
    """``out[q] = sum_s weights[q, s] * stored[stored_rows[q, s]]``.

    Args:
        stored: ``(R, columns)`` in fp32 or fp16.
        stored_rows: ``(Q, S)`` row numbers.
        weights: ``(Q, S)`` in fp32.
        out: ``(Q, columns)`` in fp32.
    """
    if _uses_triton(weights.device):
        _float_triton(stored, stored_rows, weights, out)
    else:
        _float_torch(stored, stored_rows, weights, out)


def packed_sums(
    bits: int,
    units: Units,
    stored: Tensor,
    scales: Tensor,
    stored_rows: Tensor,
    scale_rows: Tensor,
    weights: Tensor,
    out: Tensor,
    first_unit: int = 0,
) -> None:
    """``out[q] = sum_s weights[q, s] * decode(stored[stored_rows[q, s]], scales[scale_rows[q, s]])``.

    Args:
        bits: Per value: 1, 4 or 8.
        units: How a packed row is divided, on the device of the weights.
        stored: Packed rows, or a panel of them: some columns that hold whole units.
        scales: ``(R, blocks)``.
        stored_rows: ``(Q, S)`` row numbers in ``stored``.
        scale_rows: ``(Q, S)`` row numbers in ``scales``.
        weights: ``(Q, S)`` in fp32.
        out: ``(Q, G)`` in fp32; values that ``stored`` has no columns for stay as they are.
        first_unit: The unit that a panel starts with.
    """
    sums = _packed_triton if _uses_triton(weights.device) else _packed_torch
    sums(bits, units, stored, scales, stored_rows, scale_rows, weights, out, first_unit)


def _uses_triton(device: torch.device) -> bool:
    return kernels.usable_on(device)


# -- plain torch ------------------------------------------------------------------------------------


def _float_torch(stored: Tensor, stored_rows: Tensor, weights: Tensor, out: Tensor) -> None:
    for query, rows in enumerate(stored_rows):
        out[query] = (weights[query, :, None] * stored[rows].float()).sum(0)


def _packed_torch(
    bits: int,
    units: Units,
    stored: Tensor,
    scales: Tensor,
    stored_rows: Tensor,
    scale_rows: Tensor,
    weights: Tensor,
    out: Tensor,
    first_unit: int,
) -> None:
    words = stored.view(torch.int32)
    last_unit = first_unit + words.shape[1] // bits
    scale_columns, starts, stops = (part[first_unit:last_unit] for part in units)
    column = starts[:, None] + torch.arange(_UNIT, device=out.device)
    inside = column < stops[:, None]
    for query, rows in enumerate(stored_rows):
        values = _unpacked(bits, words[rows]).unflatten(1, (-1, _UNIT))  # (S, units, 32)
        factors = weights[query, :, None] * scales[scale_rows[query]][:, scale_columns].float()
        out[query, column[inside]] = (factors[:, :, None] * values).sum(0)[inside]


def _unpacked(bits: int, words: Tensor) -> Tensor:
    """The values in rows of 32-bit words: whole numbers with a sign, or -1 and 1 if they have one bit."""
    code = torch.arange(32 // bits, dtype=torch.int32, device=words.device)
    # each code to the left end of a word; a signed shift back gives its value
    values = (words[:, :, None] << (32 - bits - bits * code)) >> (32 - bits)
    return (2 * values + 1 if bits == 1 else values).flatten(1)


# -- Triton -----------------------------------------------------------------------------------------


def _float_triton(stored: Tensor, stored_rows: Tensor, weights: Tensor, out: Tensor) -> None:
    columns = stored.shape[1]
    pieces = -(-columns // _PIECE_COLUMNS)
    splits = _splits(stored_rows, pieces)
    stored_rows, weights = (_padded(picks, splits) for picks in (stored_rows, weights))
    with kernels.current_device(weights.device), _sum_of_splits(out, splits) as sums:
        kernels.load("sums").float_sums[len(stored_rows), pieces, splits](
            stored, stored_rows, weights, sums,
            stored_rows.shape[1] // splits, columns, stored.stride(0), sums.stride(1), sums.stride(0),
            COLUMNS=_PIECE_COLUMNS, UNROLLED=_UNROLLED, **kernels.LAUNCH_OPTIONS,
        )  # fmt: skip


def _packed_triton(
    bits: int,
    units: Units,
    stored: Tensor,
    scales: Tensor,
    stored_rows: Tensor,
    scale_rows: Tensor,
    weights: Tensor,
    out: Tensor,
    first_unit: int,
) -> None:
    words = stored.view(torch.int32)
    pieces = -(-words.shape[1] // _PIECE_WORDS)
    # A panel must leave the columns of the others as they are, so its program writes straight into ``out``.
    is_panel = words.shape[1] != len(units.scale) * bits
    splits = 1 if is_panel else _splits(stored_rows, pieces)
    stored_rows, scale_rows, weights = (
        _padded(picks, splits) for picks in (stored_rows, scale_rows, weights)
    )
    with kernels.current_device(weights.device), _sum_of_splits(out, splits) as sums:
        kernels.load("sums").packed_sums[len(stored_rows), pieces, splits](
            words, scales, stored_rows, scale_rows, weights, units.scale, units.start, units.stop, sums,
            stored_rows.shape[1] // splits, first_unit, words.shape[1],
            words.stride(0), scales.stride(0), sums.stride(1), sums.stride(0),
            BITS=bits, WORDS=_PIECE_WORDS, UNROLLED=_UNROLLED, **kernels.LAUNCH_OPTIONS,
        )  # fmt: skip


def _splits(picks: Tensor, pieces: int) -> int:
    """Among how many programs the picks of a query, ``(Q, S)`` in all, are split."""
    queries, count = picks.shape
    return max(1, min(_ENOUGH_PROGRAMS // (queries * pieces), count // _FEWEST_PICKS))


@contextmanager
def _sum_of_splits(out: Tensor, splits: int) -> Iterator[Tensor]:
    """A buffer ``(splits, *out.shape)`` for the sums of each split; after the block ``out`` is their sum."""
    if splits == 1:
        yield out[None]
        return
    sums = out.new_empty(splits, *out.shape)
    yield sums
    out.copy_(sums.sum(0))


def _padded(picks: Tensor, splits: int) -> Tensor:
    """Picks followed by zeros (row 0 with weight 0), so that each split unrolls without a remainder."""
    return F.pad(picks, (0, -picks.shape[1] % (splits * _UNROLLED))).contiguous()
