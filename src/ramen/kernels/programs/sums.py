"""The programs behind ``ramen.kernels.sums``; strides are in elements.

A program sums one piece of a row for one query: for the picks ``split * picks`` to ``(split + 1) * picks``
of that query, if these are split among several programs.
"""

import triton
import triton.language as tl


@triton.jit
def float_sums(
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


@triton.jit
def packed_sums(
    words, scales, stored_rows, scale_rows, weights, unit_scale, unit_start, unit_stop, out,
    picks, first_unit, row_words, words_stride, scales_stride, out_stride, split_stride,
    BITS: tl.constexpr, WORDS: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """``WORDS`` 32-bit words of packed rows, each of which holds ``32 // BITS`` values."""
    query = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = word < row_words
    unit = first_unit + word // BITS  # 32 values of BITS bits are BITS words of 32 bits
    scale_column = tl.load(unit_scale + unit, mask=inside, other=0)
    code = tl.arange(0, 32 // BITS)
    split = tl.program_id(2).to(tl.int64)
    first_pick = (query * tl.num_programs(2) + split) * picks
    stored_rows += first_pick
    scale_rows += first_pick
    weights += first_pick
    out += split * split_stride
    total = tl.zeros((32 // BITS, WORDS), tl.float32)
    for first in range(0, picks, UNROLLED):
        for step in tl.static_range(UNROLLED):
            stored_row = tl.load(stored_rows + first + step).to(tl.int64)
            scale_row = tl.load(scale_rows + first + step).to(tl.int64)
            weight = tl.load(weights + first + step)
            packed = tl.load(words + stored_row * words_stride + word, mask=inside, other=0)
            scale = tl.load(scales + scale_row * scales_stride + scale_column, mask=inside, other=0.0)
            factor = weight * scale.to(tl.float32)
            # each code to the left end of a word; a signed shift back gives its value
            shifted = packed[None, :] << (32 - BITS - BITS * code)[:, None]
            if BITS == 1:  # at the left end it is already the sign bit of a float
                sign = shifted & -2147483648
                total += (factor.to(tl.int32, bitcast=True)[None, :] ^ sign).to(tl.float32, bitcast=True)
            else:
                total += factor[None, :] * (shifted >> (32 - BITS)).to(tl.float32)
    start = tl.load(unit_start + unit, mask=inside, other=0) + word % BITS * (32 // BITS)
    stop = tl.load(unit_stop + unit, mask=inside, other=0)
    column = start[None, :] + code[:, None]
    tl.store(out + query * out_stride + column, total, mask=column < stop[None, :])
