"""Rows in and out of tables that may be in host memory which the GPU sees (``kernels.pinned_memory``)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramen.kernels import OPTIONS, on
from ramen.utils.byte_views import in_words

_WIDTH = 1024  # numbers that one program moves
# Where others are at work: so few programs, each with a tile under way, keep a bus busy and leave room.
_PROGRAMS = 16
_TILE = {"ROWS": 16, "WIDTH": 512}


@triton.jit
def _write_kernel(source, rows, target, width, source_stride, target_stride, WIDTH: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    row = tl.load(rows + entry).to(tl.int64)
    values = tl.load(source + entry * source_stride + column, mask=inside)
    tl.store(target + row * target_stride + column, values, mask=inside)


@triton.jit
def _copy_kernel(
    source, needed, place, target, width, source_stride, target_stride, WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(needed + row) != 0:
        column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = column < width
        values = tl.load(source + row * source_stride + column, mask=inside)
        tl.store(target + tl.load(place + row) * target_stride + column, values, mask=inside)


@triton.jit
def _sparing_copy_kernel(
    source, needed, place, target, rows, width, source_stride, target_stride,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        wanted = tl.load(needed + row, mask=row < rows, other=0) != 0
        there = tl.load(place + row, mask=wanted, other=0)
        here = row.to(tl.int64)
        for start in range(0, width, WIDTH):
            column = start + tl.arange(0, WIDTH)
            inside = wanted[:, None] & (column < width)[None, :]
            values = tl.load(source + here[:, None] * source_stride + column[None, :], mask=inside)
            tl.store(target + there[:, None] * target_stride + column[None, :], values, mask=inside)


def write_rows(target: Tensor, rows: Tensor, values: Tensor) -> None:
    """``target[rows] = values``. Equal row numbers must come with equal values, or any of them may stay."""
    target, values = _as_words(target, values)
    width = values.shape[1]
    with on(rows.device):
        _write_kernel[len(rows), triton.cdiv(width, _WIDTH)](
            values, rows, target, width, values.stride(0), target.stride(0), WIDTH=_WIDTH, **OPTIONS
        )


def copy_rows(source: Tensor, needed: Tensor, place: Tensor, target: Tensor) -> None:
    """``target[place[needed]] = source[needed]``.

    Args:
        source: ``(R, width)``.
        needed: ``(R,)``, 0 for rows that are not copied.
        place: ``(R,)``, where a row goes.
        target: As wide as ``source``, of the same type.
    """
    source, target = _as_words(source, target)
    width = source.shape[1]
    with on(needed.device):
        _copy_kernel[len(source), triton.cdiv(width, _WIDTH)](
            source, needed, place, target, width, source.stride(0), target.stride(0), WIDTH=_WIDTH, **OPTIONS
        )


def copy_rows_sparingly(source: Tensor, needed: Tensor, place: Tensor, target: Tensor) -> None:
    """The same by a few programs, for a copy in the background: most of the GPU stays free for others."""
    source, target = _as_words(source, target)
    rows, width = source.shape
    with on(needed.device):
        _sparing_copy_kernel[(_PROGRAMS,)](
            source, needed, place, target, rows, width, source.stride(0), target.stride(0), **_TILE, **OPTIONS
        )


def _as_words(*tables: Tensor) -> list[Tensor]:
    return in_words(*tables, widest=torch.int32)  # for which the sizes above are
