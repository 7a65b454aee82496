"""Rotary positions: pairs of numbers of queries and keys are turned by an angle that their place decides."""

import torch
from torch import Tensor

from ramen import kernels

_TILE_SIZE = 1024  # pairs of a program


def turn(parts: Tensor, cos: Tensor, sin: Tensor, neighbours: bool, *, back: bool = False) -> None:
    """Turn queries or keys in place, or with ``back`` their gradients.

    Args:
        parts: ``(B, T, heads, head width)``; a view of a wider tensor is possible.
        cos: ``(T, head width)``.
        sin: The same.
        neighbours: Whether pairs are neighbours; otherwise a number's partner is half a head away.
        back: Whether ``parts`` are gradients of what was turned.
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
        kernels.load("rotation").turn[(images, -(-tokens // tile))](
            parts,
            parts.stride(0),
            parts.stride(1),
            parts.stride(2),
            cos,
            sin,
            tokens,
            heads * width // 2,
            width,
            NEIGHBOURS=neighbours,
            BACK=back,
            TILE=tile,
            COLUMNS=columns,
            num_warps=4,
        )
