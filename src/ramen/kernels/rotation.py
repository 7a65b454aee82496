"""Rotary positions: pairs of numbers of queries and keys are turned by an angle that their place decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ramen import kernels

if TYPE_CHECKING:
    import triton.language as tl
_TILE_SIZE = 1024  # pairs of a program


def turn(parts: Tensor, cos: Tensor, sin: Tensor, neighbours: bool, *, back: bool = False) -> None:
    """Turn queries or keys ``(B, T, heads, head width)`` in place, or with ``back`` their gradients.

    They may be views of a wider tensor; ``cos`` and ``sin`` are ``(T, head width)``. Pairs are neighbours, or
    a number's partner is half a head away.
    """
    if kernels.usable_on(parts.device) and parts.dtype != torch.float64 and parts.stride(3) == 1:
        _turn_triton(parts, cos, sin, neighbours, back)
    else:
        _turn_torch(parts, cos, sin, neighbours, back)


# -- plain torch ------------------------------------------------------------------------------------


def _turn_torch(parts: Tensor, cos: Tensor, sin: Tensor, neighbours: bool, back: bool) -> None:
    cos, sin = cos[:, None], sin[:, None]
    partners = -_partners(parts * sin, neighbours) if back else _partners(parts, neighbours) * sin
    parts.copy_(parts * cos + partners)


def _partners(x: Tensor, neighbours: bool) -> Tensor:
    """Each number's partner; that of the first of a pair has its sign changed."""
    if neighbours:
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


# -- Triton -----------------------------------------------------------------------------------------


def _turn_triton(parts: Tensor, cos: Tensor, sin: Tensor, neighbours: bool, back: bool) -> None:
    images, tokens, heads, width = parts.shape
    columns = kernels.power_of_two(heads * width // 2)
    tile = max(1, _TILE_SIZE // columns)
    with kernels.current_device(parts.device):
        turn_pairs[(images, -(-tokens // tile))](
            parts, parts.stride(0), parts.stride(1), parts.stride(2), cos, sin, tokens,
            heads * width // 2, width,
            NEIGHBOURS=neighbours, BACK=back, TILE=tile, COLUMNS=columns, num_warps=4,
        )  # fmt: skip


# -- programs ---------------------------------------------------------------------------------------


@kernels.program
def turn_pairs(
    parts_pointer, image_stride, token_stride, head_stride, cos_pointer, sin_pointer, tokens, pairs,
    width,
    NEIGHBOURS: tl.constexpr, BACK: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """All pairs of some tokens of one image, over all heads, in place."""
    image = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    pair = tl.arange(0, COLUMNS)
    inside = (token < tokens)[:, None] & (pair < pairs)[None, :]
    half = width // 2
    head, own = pair // half, pair % half
    if NEIGHBOURS:
        first, second = 2 * own, 2 * own + 1
    else:
        first, second = own, own + half
    place = parts_pointer + image * image_stride + token[:, None] * token_stride + head[None, :] * head_stride
    angle = token[:, None] * width
    x = tl.load(place + first[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(place + second[None, :], mask=inside, other=0.0).to(tl.float32)
    first_cos = tl.load(cos_pointer + angle + first[None, :], mask=inside, other=0.0)
    second_cos = tl.load(cos_pointer + angle + second[None, :], mask=inside, other=0.0)
    first_sin = tl.load(sin_pointer + angle + first[None, :], mask=inside, other=0.0)
    second_sin = tl.load(sin_pointer + angle + second[None, :], mask=inside, other=0.0)
    if BACK:
        turned_x = x * first_cos + y * second_sin
        turned_y = y * second_cos - x * first_sin
    else:
        turned_x = x * first_cos - y * first_sin
        turned_y = y * second_cos + x * second_sin
    kind = parts_pointer.dtype.element_ty
    tl.store(place + first[None, :], turned_x.to(kind), mask=inside)
    tl.store(place + second[None, :], turned_y.to(kind), mask=inside)
