"""The programs behind ``ramen.kernels.attention``.

``qkv`` holds, for every token, the queries of all heads side by side, then the keys, then the values. A
program handles ``ROWS`` tokens of one head of one image. It loops over all tokens of that image in pieces of
``COLUMNS``; the last piece, of ``LAST_COLUMNS``, holds the remaining ones, and is 0 if there are none.

If an image has a single query, a program handles one head of one image, and holds all its keys and values,
which are side by side without queries.

Exponentials are to the base of two, and so is ``lse``, the logarithm of a query's sum of exponentials.
"""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _places(tokens, width, heads, HEAD: tl.constexpr):
    """Where this program's head starts in ``qkv``, in the output, and in tensors of one number per query."""
    number = tl.program_id(1).to(tl.int64)  # of the head, counted across all images
    image, column = number // heads * tokens * width, number % heads * HEAD
    return 3 * image + column, image + column, number * tokens


@triton.jit
def _load(pointer, token, stride, tokens, HEAD: tl.constexpr, MASKED: tl.constexpr):
    """One head's part of these tokens; zeros for tokens past the last one."""
    place = pointer + token[:, None] * stride + tl.arange(0, HEAD)[None, :]
    if MASKED:
        return tl.load(place, mask=token[:, None] < tokens, other=0.0)
    return tl.load(place)


@triton.jit
def _store(pointer, token, stride, tokens, values, HEAD: tl.constexpr):
    place = pointer + token[:, None] * stride + tl.arange(0, HEAD)[None, :]
    tl.store(place, values.to(pointer.dtype.element_ty), mask=token[:, None] < tokens)


@triton.jit
def _add_keys(
    query, qkv, width, first, tokens, factor, highest, total, sums,
    HEAD: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add some keys and values to the highest score, the sum of exponentials and the weighted values."""
    token = first + tl.arange(0, SIZE)
    key = _load(qkv + width, token, 3 * width, tokens, HEAD, MASKED)
    score = tl.dot(query, key.T)
    if MASKED:
        score = tl.where((token < tokens)[None, :], score, float("-inf"))
    higher = tl.maximum(highest, tl.max(score, 1))
    weight = tl.exp2(score * factor - (higher * factor)[:, None])
    shrunk = tl.exp2((highest - higher) * factor)
    value = _load(qkv + 2 * width, token, 3 * width, tokens, HEAD, MASKED)
    sums = tl.dot(weight.to(value.dtype), value, sums * shrunk[:, None])
    return higher, total * shrunk + tl.sum(weight, 1), sums


@triton.jit
def attend(
    qkv_pointer, output_pointer, lse_pointer, tokens, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The outputs of some queries."""
    width, factor = heads * HEAD, scale * _LOG2_E
    place, output_place, query_place = _places(tokens, width, heads, HEAD)
    qkv = qkv_pointer + place
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query = _load(qkv, row, 3 * width, tokens, HEAD, True)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, HEAD), tl.float32)
    whole = tokens // COLUMNS * COLUMNS
    for first in range(0, whole, COLUMNS):
        highest, total, sums = _add_keys(
            query, qkv, width, first, tokens, factor, highest, total, sums, HEAD, COLUMNS, False
        )
    if LAST_COLUMNS > 0:
        highest, total, sums = _add_keys(
            query, qkv, width, whole, tokens, factor, highest, total, sums, HEAD, LAST_COLUMNS, True
        )
    _store(output_pointer + output_place, row, width, tokens, sums / total[:, None], HEAD)
    tl.store(lse_pointer + query_place + row, highest * factor + tl.log2(total), mask=row < tokens)


@triton.jit
def _add_to_queries(
    query, gradient, lse, delta, qkv, width, first, tokens, factor, sums,
    HEAD: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the part of some keys and values to the gradient of the queries."""
    token = first + tl.arange(0, SIZE)
    key = _load(qkv + width, token, 3 * width, tokens, HEAD, MASKED)
    value = _load(qkv + 2 * width, token, 3 * width, tokens, HEAD, MASKED)
    weight = tl.exp2(tl.dot(query, key.T) * factor - lse[:, None])
    slope = weight * (tl.dot(gradient, value.T) - delta[:, None])
    return tl.dot(slope.to(key.dtype), key, sums)  # keys past the last token are zeros


@triton.jit
def attend_backward_queries(
    qkv_pointer, output_pointer, gradient_pointer, lse_pointer, delta_pointer, result_pointer,
    tokens, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of some queries; also ``delta``, the product of each one's output with its gradient."""
    width, factor = heads * HEAD, scale * _LOG2_E
    place, output_place, query_place = _places(tokens, width, heads, HEAD)
    qkv = qkv_pointer + place
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query = _load(qkv, row, 3 * width, tokens, HEAD, True)
    gradient = _load(gradient_pointer + output_place, row, width, tokens, HEAD, True)
    output = _load(output_pointer + output_place, row, width, tokens, HEAD, True)
    delta = tl.sum(gradient.to(tl.float32) * output.to(tl.float32), 1)
    tl.store(delta_pointer + query_place + row, delta, mask=row < tokens)
    lse = tl.load(lse_pointer + query_place + row, mask=row < tokens, other=float("inf"))
    sums = tl.zeros((ROWS, HEAD), tl.float32)
    whole = tokens // COLUMNS * COLUMNS
    for first in range(0, whole, COLUMNS):
        sums = _add_to_queries(
            query, gradient, lse, delta, qkv, width, first, tokens, factor, sums, HEAD, COLUMNS, False
        )
    if LAST_COLUMNS > 0:
        sums = _add_to_queries(
            query, gradient, lse, delta, qkv, width, whole, tokens, factor, sums, HEAD, LAST_COLUMNS, True
        )
    _store(result_pointer + place, row, 3 * width, tokens, sums * scale, HEAD)


@triton.jit
def _add_to_keys(
    key, value, qkv, gradient_pointer, lse_pointer, delta_pointer, width, first, tokens, factor,
    key_sums, value_sums,
    HEAD: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the part of some queries to the gradients of keys and values."""
    token = first + tl.arange(0, SIZE)
    query = _load(qkv, token, 3 * width, tokens, HEAD, MASKED)
    gradient = _load(gradient_pointer, token, width, tokens, HEAD, MASKED)
    if MASKED:  # a query past the last token has weight zero
        lse = tl.load(lse_pointer + token, mask=token < tokens, other=float("inf"))
        delta = tl.load(delta_pointer + token, mask=token < tokens, other=0.0)
    else:
        lse = tl.load(lse_pointer + token)
        delta = tl.load(delta_pointer + token)
    weight = tl.exp2(tl.dot(key, query.T) * factor - lse[None, :])
    value_sums = tl.dot(weight.to(gradient.dtype), gradient, value_sums)
    slope = weight * (tl.dot(value, gradient.T) - delta[None, :])
    return tl.dot(slope.to(query.dtype), query, key_sums), value_sums


@triton.jit
def attend_backward_keys(
    qkv_pointer, gradient_pointer, lse_pointer, delta_pointer, result_pointer, tokens, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of some keys and values."""
    width, factor = heads * HEAD, scale * _LOG2_E
    place, output_place, query_place = _places(tokens, width, heads, HEAD)
    qkv = qkv_pointer + place
    gradient_pointer += output_place
    lse_pointer += query_place
    delta_pointer += query_place
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    key = _load(qkv + width, row, 3 * width, tokens, HEAD, True)
    value = _load(qkv + 2 * width, row, 3 * width, tokens, HEAD, True)
    key_sums = tl.zeros((ROWS, HEAD), tl.float32)
    value_sums = tl.zeros((ROWS, HEAD), tl.float32)
    whole = tokens // COLUMNS * COLUMNS
    for first in range(0, whole, COLUMNS):
        key_sums, value_sums = _add_to_keys(
            key, value, qkv, gradient_pointer, lse_pointer, delta_pointer, width, first, tokens, factor,
            key_sums, value_sums, HEAD, COLUMNS, False,
        )  # fmt: skip
    if LAST_COLUMNS > 0:
        key_sums, value_sums = _add_to_keys(
            key, value, qkv, gradient_pointer, lse_pointer, delta_pointer, width, whole, tokens, factor,
            key_sums, value_sums, HEAD, LAST_COLUMNS, True,
        )  # fmt: skip
    result = result_pointer + place
    _store(result + width, row, 3 * width, tokens, key_sums * scale, HEAD)
    _store(result + 2 * width, row, 3 * width, tokens, value_sums, HEAD)


@triton.jit
def _single_places(tokens, heads, HEAD: tl.constexpr, TOKENS: tl.constexpr):
    """Offsets of this program's head in the query and in the keys, and which tokens exist."""
    number = tl.program_id(0).to(tl.int64)  # of the head, counted across all images
    width, token, column = heads * HEAD, tl.arange(0, TOKENS), tl.arange(0, HEAD)
    first = number // heads * tokens * 2 * width + number % heads * HEAD
    keys = first + token[:, None] * (2 * width) + column[None, :]
    return number * HEAD + column, keys, token < tokens


@triton.jit
def _single_weights(query, key, there, scale):
    score = tl.where(there, tl.sum(key * query[None, :], 1) * (scale * _LOG2_E), float("-inf"))
    weight = tl.exp2(score - tl.max(score, 0))
    return weight / tl.sum(weight, 0)


@triton.jit
def attend_single(
    query_pointer, kv_pointer, output_pointer, tokens, heads, scale, HEAD: tl.constexpr, TOKENS: tl.constexpr
):
    """The output of an image's single query."""
    own, keys, there = _single_places(tokens, heads, HEAD, TOKENS)
    query = tl.load(query_pointer + own).to(tl.float32)
    key = tl.load(kv_pointer + keys, mask=there[:, None], other=0.0).to(tl.float32)
    value = tl.load(kv_pointer + heads * HEAD + keys, mask=there[:, None], other=0.0).to(tl.float32)
    weight = _single_weights(query, key, there, scale)
    output = tl.sum(weight[:, None] * value, 0)
    tl.store(output_pointer + own, output.to(output_pointer.dtype.element_ty))


@triton.jit
def attend_single_backward(
    query_pointer, kv_pointer, gradient_pointer, query_result_pointer, kv_result_pointer,
    tokens, heads, scale,
    HEAD: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """The gradients of an image's single query and of all its keys and values."""
    own, keys, there = _single_places(tokens, heads, HEAD, TOKENS)
    query = tl.load(query_pointer + own).to(tl.float32)
    gradient = tl.load(gradient_pointer + own).to(tl.float32)
    key = tl.load(kv_pointer + keys, mask=there[:, None], other=0.0).to(tl.float32)
    weight = _single_weights(query, key, there, scale)
    value_result = kv_result_pointer + heads * HEAD + keys
    kind = kv_result_pointer.dtype.element_ty
    tl.store(value_result, (weight[:, None] * gradient[None, :]).to(kind), mask=there[:, None])
    value = tl.load(kv_pointer + heads * HEAD + keys, mask=there[:, None], other=0.0).to(tl.float32)
    slope = tl.sum(value * gradient[None, :], 1)
    slope = weight * (slope - tl.sum(weight * slope, 0)) * scale
    tl.store(query_result_pointer + own, tl.sum(slope[:, None] * key, 0).to(kind))
    tl.store(kv_result_pointer + keys, (slope[:, None] * query[None, :]).to(kind), mask=there[:, None])
