"""Attention for short sequences, whose queries, keys and values are the output of one matrix product.

torch's kernels are made for long sequences; their backward pass takes three kernels and a copy of the result.
Here it takes two, which write the gradients side by side as the next product takes them. On an H200, for the
197 tokens of a ViT-B/16 and 100 images, that is 200 instead of 310 microseconds per layer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels
from ramen.utils.numerics import in_bfloat16_on_a_cpu

if TYPE_CHECKING:
    import triton.language as tl
_ROWS = 64
_COLUMNS = 32
_SMALLEST_SIDE = 16  # of a tile
_CAPABILITIES = {16: (8, 0), 32: (8, 0), 64: (8, 0), 128: (9, 0)}  # needed for tiles of heads of each width
_MOST_TOKENS = 640  # measured up to 257; torch's kernels are better at long sequences
_OPTIONS = {"num_warps": 4, "num_stages": 3}  # with the tile sizes, the fastest of those measured
# For a single query, one program holds all keys of a head in registers: this many numbers, with padding.
_MOST_KEY_NUMBERS = 2**15
_KEY_NUMBERS_PER_WARP = 2**11


@dataclass(frozen=True)
class AttentionResult:
    """The output of attention, and what its backward pass needs."""

    inputs: tuple[Tensor, ...]
    output: Tensor  # (B, T, D), all heads side by side
    lse: Tensor | None  # (B, heads, T), log-sum-exp; None for a single query, and if autograd saves it


def forward(inputs: tuple[Tensor, ...], heads: int, *, keep: bool) -> AttentionResult:
    """Attention in every head.

    Args:
        inputs: Queries, keys and values side by side in one tensor ``(B, T, 3 D)``; or two tensors: the query
            ``(B, 1, D)`` of a single token, and keys and values ``(B, T, 2 D)``.
        heads: Among which ``D`` is divided.
        keep: Whether to save what ``backward`` needs.
    """
    if _uses_triton(inputs, heads):
        run = _forward_triton if len(inputs) == 1 else _forward_triton_single_query
        return run(inputs, heads)
    if _is_multiplied_by_image(inputs):
        return AttentionResult(inputs, _forward_bfloat16(inputs[0], heads), None)
    for tensor in inputs:
        tensor.requires_grad_(keep)
    with torch.set_grad_enabled(keep):
        return AttentionResult(inputs, _attention_torch(inputs, heads), None)


def backward(gradient: Tensor, saved: AttentionResult, heads: int) -> tuple[Tensor, ...]:
    """The gradients of the inputs, given that of the output."""
    if saved.output.requires_grad:
        return torch.autograd.grad(saved.output, saved.inputs, gradient)
    if _is_multiplied_by_image(saved.inputs):
        return (_backward_bfloat16(gradient, saved.inputs[0], heads),)
    if saved.lse is None:
        return _backward_triton_single_query(gradient, saved.inputs, heads)
    return _backward_triton(gradient, saved, saved.lse, heads)


def _uses_triton(inputs: tuple[Tensor, ...], heads: int) -> bool:
    tokens, head_width = inputs[-1].shape[1], _head_width(inputs, heads)
    if inputs[0].dtype not in (torch.float16, torch.bfloat16):  # the programs would round fp32
        return False
    capability = _CAPABILITIES.get(head_width)
    if len(inputs) == 1:
        is_short = tokens <= _MOST_TOKENS
    else:
        is_short = _key_numbers(tokens, head_width) <= _MOST_KEY_NUMBERS
    return capability is not None and is_short and kernels.usable_on(inputs[0].device, capability)


def _head_width(inputs: tuple[Tensor, ...], heads: int) -> int:
    return sum(tensor.shape[-1] for tensor in inputs) // (3 * heads)


def _attention_torch(inputs: tuple[Tensor, ...], heads: int) -> Tensor:
    head_width = _head_width(inputs, heads)
    parts = [tensor.unflatten(-1, (-1, heads, head_width)).unbind(2) for tensor in inputs]
    query, key, value = (part.transpose(1, 2) for part in itertools.chain(*parts))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


# -- bfloat16 on a CPU ------------------------------------------------------------------------------


# Three quarters of the time of torch's own passes forward and two thirds back, which multiply small tiles:
# image by image, so that what is of the size of tokens times tokens stays in the cache. Scores and their
# softmax are in float32: rounded scores would double the error of the output, or more where they are large.


def _is_multiplied_by_image(inputs: tuple[Tensor, ...]) -> bool:
    return len(inputs) == 1 and in_bfloat16_on_a_cpu(inputs[0])


def _forward_bfloat16(qkv: Tensor, heads: int) -> Tensor:
    images, tokens, width = qkv.shape
    output = torch.empty((images, tokens, width // 3), dtype=qkv.dtype, device=qkv.device)
    scale = (width // (3 * heads)) ** -0.5
    for given, own in zip(qkv, output, strict=True):
        query, key, value = _by_head(given, 3 * heads).split(heads)
        weight = _weights(query * scale, key).to(qkv.dtype)
        own.unflatten(-1, (heads, -1)).transpose(0, 1).copy_(torch.bmm(weight, value))
    return output


def _backward_bfloat16(gradient: Tensor, qkv: Tensor, heads: int) -> Tensor:
    result = torch.empty_like(qkv)
    scale = (qkv.shape[-1] // (3 * heads)) ** -0.5
    for given, slope, own in zip(qkv, gradient, result, strict=True):
        query, key, value = _by_head(given, 3 * heads).split(heads)
        slope, query = _by_head(slope, heads), query * scale
        weight = _weights(query, key)
        weight_slope = torch.bmm(slope, value.mT).float()
        score_slope = torch._softmax_backward_data(weight_slope, weight, -1, torch.float32).to(qkv.dtype)
        parts = (
            torch.bmm(score_slope, key) * scale,
            torch.bmm(score_slope.mT, query),
            torch.bmm(weight.to(qkv.dtype).mT, slope),
        )
        own.unflatten(-1, (3 * heads, -1)).transpose(0, 1).copy_(torch.cat(parts))
    return result


def _weights(query: Tensor, key: Tensor) -> Tensor:
    return torch.bmm(query.float(), key.float().mT).softmax(-1)


def _by_head(tokens: Tensor, heads: int) -> Tensor:
    parts: Tensor = tokens.unflatten(-1, (heads, -1))
    return parts.transpose(0, 1).contiguous()


# -- Triton -----------------------------------------------------------------------------------------


def _forward_triton(inputs: tuple[Tensor, ...], heads: int) -> AttentionResult:
    (qkv,) = inputs
    images, tokens, width = qkv.shape
    output = torch.empty((images, tokens, width // 3), dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty((images, heads, tokens), dtype=torch.float32, device=qkv.device)
    grid, sizes = _launch(qkv, heads)
    with kernels.current_device(qkv.device):
        attend[grid](qkv, output, lse, tokens, heads, sizes["HEAD"] ** -0.5, **sizes, **_OPTIONS)
    return AttentionResult(inputs, output, lse)


def _backward_triton(gradient: Tensor, saved: AttentionResult, lse: Tensor, heads: int) -> tuple[Tensor, ...]:
    (qkv,) = saved.inputs
    tokens = qkv.shape[1]
    result, delta = torch.empty_like(qkv), torch.empty_like(lse)
    grid, sizes = _launch(qkv, heads)
    scale = sizes["HEAD"] ** -0.5
    with kernels.current_device(qkv.device):
        attend_backward_queries[grid](
            qkv, saved.output, gradient, lse, delta, result, tokens, heads, scale, **sizes, **_OPTIONS
        )
        attend_backward_keys[grid](
            qkv, gradient, lse, delta, result, tokens, heads, scale, **sizes, **_OPTIONS
        )
    return (result,)


def _launch(qkv: Tensor, heads: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid and the sizes of every program's tiles."""
    images, tokens, width = qkv.shape
    sizes = {
        "HEAD": width // (3 * heads),
        "ROWS": _ROWS,
        "COLUMNS": _COLUMNS,
        "LAST_COLUMNS": _tile_side(tokens % _COLUMNS),
    }
    return (-(-tokens // _ROWS), images * heads), sizes


def _tile_side(tokens: int) -> int:
    """The smallest side of a tile that holds these tokens; 0 for none."""
    return max(_SMALLEST_SIDE, kernels.power_of_two(tokens)) if tokens else 0


# -- Triton, a single query -------------------------------------------------------------------------


def _forward_triton_single_query(inputs: tuple[Tensor, ...], heads: int) -> AttentionResult:
    output = torch.empty_like(inputs[0])
    grid, sizes = _launch_single_query(inputs, heads)
    with kernels.current_device(output.device):
        attend_single[grid](*inputs, output, **sizes)
    return AttentionResult(inputs, output, None)


def _backward_triton_single_query(
    gradient: Tensor, inputs: tuple[Tensor, ...], heads: int
) -> tuple[Tensor, ...]:
    results = tuple(torch.empty_like(tensor) for tensor in inputs)
    grid, sizes = _launch_single_query(inputs, heads)
    with kernels.current_device(gradient.device):
        attend_single_backward[grid](*inputs, gradient, *results, **sizes)
    return results


def _launch_single_query(inputs: tuple[Tensor, ...], heads: int) -> tuple[tuple[int], dict[str, float]]:
    """The grid and the arguments of every program, which holds all keys and values of a head."""
    images, tokens, _ = inputs[1].shape
    head_width = _head_width(inputs, heads)
    sizes = {
        "tokens": tokens,
        "heads": heads,
        "scale": head_width**-0.5,
        "HEAD": head_width,
        "TOKENS": kernels.power_of_two(tokens),
        "num_warps": min(16, max(1, _key_numbers(tokens, head_width) // _KEY_NUMBERS_PER_WARP)),
    }
    return (images * heads,), sizes


def _key_numbers(tokens: int, head_width: int) -> int:
    return kernels.power_of_two(tokens) * head_width


# -- programs ---------------------------------------------------------------------------------------

# ``qkv`` holds, for every token, the queries of all heads side by side, then the keys, then the values. A
# program handles ``ROWS`` tokens of one head of one image. It loops over all tokens of that image in pieces
# of ``COLUMNS``; the last piece, of ``LAST_COLUMNS``, holds the remaining ones, and is 0 if there are none.
#
# If an image has a single query, a program handles one head of one image, and holds all its keys and values,
# which are side by side without queries.
#
# Exponentials are to the base of two, and so is ``lse``, the logarithm of a query's sum of exponentials:
# scores are multiplied by the logarithm of e to that base.


@kernels.program
def _places(tokens, width, heads, HEAD: tl.constexpr):
    """Where this program's head starts in ``qkv``, in the output, and in tensors of one number per query."""
    number = tl.program_id(1).to(tl.int64)  # of the head, counted across all images
    image, column = number // heads * tokens * width, number % heads * HEAD
    return 3 * image + column, image + column, number * tokens


@kernels.program
def _load(pointer, token, stride, tokens, HEAD: tl.constexpr, MASKED: tl.constexpr):
    """One head's part of these tokens; zeros for tokens past the last one."""
    place = pointer + token[:, None] * stride + tl.arange(0, HEAD)[None, :]
    if MASKED:
        return tl.load(place, mask=token[:, None] < tokens, other=0.0)
    return tl.load(place)


@kernels.program
def _store(pointer, token, stride, tokens, values, HEAD: tl.constexpr):
    place = pointer + token[:, None] * stride + tl.arange(0, HEAD)[None, :]
    tl.store(place, values.to(pointer.dtype.element_ty), mask=token[:, None] < tokens)


@kernels.program
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


@kernels.program
def attend(
    qkv_pointer, output_pointer, lse_pointer, tokens, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_COLUMNS: tl.constexpr,
):  # fmt: skip
    width, factor = heads * HEAD, scale * 1.4426950408889634
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


@kernels.program
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


@kernels.program
def attend_backward_queries(
    qkv_pointer, output_pointer, gradient_pointer, lse_pointer, delta_pointer, result_pointer,
    tokens, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of some queries; also ``delta``, the product of each one's output with its gradient."""
    width, factor = heads * HEAD, scale * 1.4426950408889634
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


@kernels.program
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


@kernels.program
def attend_backward_keys(
    qkv_pointer, gradient_pointer, lse_pointer, delta_pointer, result_pointer, tokens, heads, scale,
    HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_COLUMNS: tl.constexpr,
):  # fmt: skip
    width, factor = heads * HEAD, scale * 1.4426950408889634
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


@kernels.program
def _single_places(tokens, heads, HEAD: tl.constexpr, TOKENS: tl.constexpr):
    """Offsets of this program's head in the query and in the keys, and which tokens exist."""
    number = tl.program_id(0).to(tl.int64)  # of the head, counted across all images
    width, token, column = heads * HEAD, tl.arange(0, TOKENS), tl.arange(0, HEAD)
    first = number // heads * tokens * 2 * width + number % heads * HEAD
    keys = first + token[:, None] * (2 * width) + column[None, :]
    return number * HEAD + column, keys, token < tokens


@kernels.program
def _single_weights(query, key, there, scale):
    score = tl.where(there, tl.sum(key * query[None, :], 1) * (scale * 1.4426950408889634), float("-inf"))
    weight = tl.exp2(score - tl.max(score, 0))
    return weight / tl.sum(weight, 0)


@kernels.program
def attend_single(
    query_pointer, kv_pointer, output_pointer, tokens, heads, scale, HEAD: tl.constexpr, TOKENS: tl.constexpr
):
    own, keys, there = _single_places(tokens, heads, HEAD, TOKENS)
    query = tl.load(query_pointer + own).to(tl.float32)
    key = tl.load(kv_pointer + keys, mask=there[:, None], other=0.0).to(tl.float32)
    value = tl.load(kv_pointer + heads * HEAD + keys, mask=there[:, None], other=0.0).to(tl.float32)
    weight = _single_weights(query, key, there, scale)
    output = tl.sum(weight[:, None] * value, 0)
    tl.store(output_pointer + own, output.to(output_pointer.dtype.element_ty))


@kernels.program
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
