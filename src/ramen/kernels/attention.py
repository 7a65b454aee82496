"""Attention for short sequences, whose queries, keys and values are the output of one matrix product.

torch's kernels are made for long sequences; their backward pass takes three kernels and a copy of the result.
Here it takes two, which write the gradients side by side as the next product takes them. On an H200, for the
197 tokens of a ViT-B/16 and 100 images, that is 200 instead of 310 microseconds per layer.
"""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

_ROWS = 64
_COLUMNS = 32
_SMALLEST_SIDE = 16  # of a tile
_CAPABILITIES = {16: (8, 0), 32: (8, 0), 64: (8, 0), 128: (9, 0)}  # needed for tiles of heads of each width
_MOST_TOKENS = 640  # measured up to 257; torch's kernels are better at long sequences
_OPTIONS = {"num_warps": 4, "num_stages": 3}  # with the tile sizes, the fastest of those measured
# For a single query, one program holds all keys of a head in registers: so many numbers, with padding.
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
    for tensor in inputs:
        tensor.requires_grad_(keep)
    with torch.set_grad_enabled(keep):
        return AttentionResult(inputs, _attention_torch(inputs, heads), None)


def backward(gradient: Tensor, saved: AttentionResult, heads: int) -> tuple[Tensor, ...]:
    """The gradients of the inputs, given that of the output."""
    if saved.output.requires_grad:
        return torch.autograd.grad(saved.output, saved.inputs, gradient)
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


# -- Triton -----------------------------------------------------------------------------------------


def _forward_triton(inputs: tuple[Tensor, ...], heads: int) -> AttentionResult:
    (qkv,) = inputs
    images, tokens, width = qkv.shape
    output = torch.empty((images, tokens, width // 3), dtype=qkv.dtype, device=qkv.device)
    lse = torch.empty((images, heads, tokens), dtype=torch.float32, device=qkv.device)
    grid, sizes = _launch(qkv, heads)
    with kernels.current_device(qkv.device):
        kernels.load("attention").attend[grid](
            qkv, output, lse, tokens, heads, sizes["HEAD"] ** -0.5, **sizes, **_OPTIONS
        )
    return AttentionResult(inputs, output, lse)


def _backward_triton(gradient: Tensor, saved: AttentionResult, lse: Tensor, heads: int) -> tuple[Tensor, ...]:
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
        kernels.load("attention").attend_single[grid](*inputs, output, **sizes)
    return AttentionResult(inputs, output, None)


def _backward_triton_single_query(
    gradient: Tensor, inputs: tuple[Tensor, ...], heads: int
) -> tuple[Tensor, ...]:
    results = tuple(torch.empty_like(tensor) for tensor in inputs)
    grid, sizes = _launch_single_query(inputs, heads)
    with kernels.current_device(gradient.device):
        kernels.load("attention").attend_single_backward[grid](*inputs, gradient, *results, **sizes)
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
