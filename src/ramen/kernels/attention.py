"""Attention of short sequences, on queries, keys and values as one product leaves them.

torch's kernels are made for long sequences, and their backward pass takes three kernels and a copy of what
they write. Here it takes two, which write the gradients side by side as the next product wants them. On an
H200, for the 197 tokens of a ViT-B/16 and 100 images, that is 200 instead of 310 microseconds a layer.
"""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

_ROWS = 64
_COLUMNS = 32
_LEAST = 16  # of a tile's sides
_GENERATIONS = {16: (8, 0), 32: (8, 0), 64: (8, 0), 128: (9, 0)}  # that have room for tiles of heads so wide
_MOST_TOKENS = 640  # measured up to 257; long sequences are what torch's kernels are made for
_OPTIONS = {"num_warps": 4, "num_stages": 3}  # tile sizes and these are the fastest of those measured
_MOST_HELD = 2**15  # numbers of a head's keys that one program holds, padded, where there is a single query
_HELD_BY_WARP = 2**11


@dataclass(frozen=True)
class Attended:
    """Attention, and what its backward pass needs."""

    inputs: tuple[Tensor, ...]
    output: Tensor  # (B, T, D), all heads side by side
    lse: Tensor | None  # (B, heads, T); None for a single query, and where torch keeps what it needs itself


def forward(inputs: tuple[Tensor, ...], heads: int, *, keep: bool) -> Attended:
    """Attention in every head.

    Args:
        inputs: Queries, keys and values side by side in one tensor ``(B, T, 3 D)``; or the queries
            ``(B, 1, D)`` of a single token apart from keys and values ``(B, T, 2 D)``.
        heads: How many share ``D``.
        keep: Whether ``backward`` follows.
    """
    if _uses_triton(inputs, heads):
        return _forward_triton(inputs, heads) if len(inputs) == 1 else _forward_single(inputs, heads)
    for tensor in inputs:
        tensor.requires_grad_(keep)
    with torch.set_grad_enabled(keep):
        return Attended(inputs, _attend(inputs, heads), None)


def backward(gradient: Tensor, saved: Attended, heads: int) -> tuple[Tensor, ...]:
    """The gradients of the inputs, given that of the output."""
    if saved.output.requires_grad:
        return torch.autograd.grad(saved.output, saved.inputs, gradient)
    if saved.lse is None:
        return _backward_single(gradient, saved.inputs, heads)
    return _backward_triton(gradient, saved, saved.lse, heads)


def _uses_triton(inputs: tuple[Tensor, ...], heads: int) -> bool:
    tokens, head_width = inputs[-1].shape[1], _head_width(inputs, heads)
    if inputs[0].dtype not in (torch.float16, torch.bfloat16):  # fp32 would be rounded
        return False
    least = _GENERATIONS.get(head_width)
    short = tokens <= _MOST_TOKENS if len(inputs) == 1 else _held(tokens, head_width) <= _MOST_HELD
    return least is not None and short and kernels.usable_on(inputs[0].device, least)


def _head_width(inputs: tuple[Tensor, ...], heads: int) -> int:
    return sum(tensor.shape[-1] for tensor in inputs) // (3 * heads)


def _attend(inputs: tuple[Tensor, ...], heads: int) -> Tensor:
    head_width = _head_width(inputs, heads)
    parts = [tensor.unflatten(-1, (-1, heads, head_width)).unbind(2) for tensor in inputs]
    query, key, value = (part.transpose(1, 2) for part in itertools.chain(*parts))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


# -- Triton -----------------------------------------------------------------------------------------


def _forward_triton(inputs: tuple[Tensor, ...], heads: int) -> Attended:
    (qkv,) = inputs
    images, tokens, width = qkv.shape
    output = torch.empty((images, tokens, width // 3), dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty((images, heads, tokens), dtype=torch.float32, device=qkv.device)
    grid, sizes = _launch(qkv, heads)
    with kernels.current_device(qkv.device):
        kernels.load("attention").attend[grid](
            qkv, output, lse, tokens, heads, sizes["HEAD"] ** -0.5, **sizes, **_OPTIONS
        )
    return Attended(inputs, output, lse)


def _backward_triton(gradient: Tensor, saved: Attended, lse: Tensor, heads: int) -> tuple[Tensor, ...]:
    (qkv,) = saved.inputs
    tokens = qkv.shape[1]
    result, delta = torch.empty_like(qkv), torch.empty_like(lse)
    grid, sizes = _launch(qkv, heads)
    scale = sizes["HEAD"] ** -0.5
    programs = kernels.load("attention")
    with kernels.current_device(qkv.device):
        programs.attend_backward_queries[grid](
            qkv, saved.output, gradient, lse, delta, result, tokens, heads, scale, **sizes, **_OPTIONS
        )
        programs.attend_backward_keys[grid](
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
        "LAST_COLUMNS": _holding(tokens % _COLUMNS),
    }
    return (-(-tokens // _ROWS), images * heads), sizes


def _holding(tokens: int) -> int:
    """The smallest side of a tile for so many tokens."""
    return max(_LEAST, kernels.power_of_two(tokens)) if tokens else 0


# -- Triton, a single query -------------------------------------------------------------------------


def _forward_single(inputs: tuple[Tensor, ...], heads: int) -> Attended:
    output = torch.empty_like(inputs[0])
    grid, sizes = _launch_single(inputs, heads)
    with kernels.current_device(output.device):
        kernels.load("attention").attend_single[grid](*inputs, output, **sizes)
    return Attended(inputs, output, None)


def _backward_single(gradient: Tensor, inputs: tuple[Tensor, ...], heads: int) -> tuple[Tensor, ...]:
    results = tuple(torch.empty_like(tensor) for tensor in inputs)
    grid, sizes = _launch_single(inputs, heads)
    with kernels.current_device(gradient.device):
        kernels.load("attention").attend_single_backward[grid](*inputs, gradient, *results, **sizes)
    return results


def _launch_single(inputs: tuple[Tensor, ...], heads: int) -> tuple[tuple[int], dict[str, float]]:
    """The grid, and what every program is told: it holds all keys and values of a head."""
    images, tokens, _ = inputs[1].shape
    head_width = _head_width(inputs, heads)
    sizes = {
        "tokens": tokens,
        "heads": heads,
        "scale": head_width**-0.5,
        "HEAD": head_width,
        "TOKENS": kernels.power_of_two(tokens),
        "num_warps": min(16, max(1, _held(tokens, head_width) // _HELD_BY_WARP)),
    }
    return (images * heads,), sizes


def _held(tokens: int, head_width: int) -> int:
    return kernels.power_of_two(tokens) * head_width
