"""The programs behind ``ramen.kernels.rows``; strides are in elements."""

import triton
import triton.language as tl


@triton.jit
def write_rows(source, rows, target, width, source_stride, target_stride, WIDTH: tl.constexpr):
    """A piece of one row of ``source``, to the row of ``target`` with its number."""
    entry = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    row = tl.load(rows + entry).to(tl.int64)
    values = tl.load(source + entry * source_stride + column, mask=inside)
    tl.store(target + row * target_stride + column, values, mask=inside)


@triton.jit
def copy_rows(source, needed, target_rows, target, width, source_stride, target_stride, WIDTH: tl.constexpr):
    """A piece of one row of ``source``, if it is needed."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(needed + row) != 0:
        column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = column < width
        values = tl.load(source + row * source_stride + column, mask=inside)
        tl.store(target + tl.load(target_rows + row) * target_stride + column, values, mask=inside)


@triton.jit
def copy_rows_sparingly(
    source, needed, target_rows, target, rows, width, source_stride, target_stride,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The needed ones among every so many rows, tile by tile: a few programs handle all rows."""
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        copied = tl.load(needed + row, mask=row < rows, other=0) != 0
        target_row = tl.load(target_rows + row, mask=copied, other=0)
        source_row = row.to(tl.int64)
        for start in range(0, width, WIDTH):
            column = start + tl.arange(0, WIDTH)
            inside = copied[:, None] & (column < width)[None, :]
            values = tl.load(source + source_row[:, None] * source_stride + column[None, :], mask=inside)
            tl.store(target + target_row[:, None] * target_stride + column[None, :], values, mask=inside)
