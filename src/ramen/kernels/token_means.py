"""The mean token of each image, fused with the addition before it; and the gradient back to all tokens."""

import torch
from torch import Tensor

from ramen import kernels

# As in the norms' backward pass: chunks of an image's tokens are summed in parallel, each token by token.
_ENOUGH_PROGRAMS, _FEWEST_CHUNKS, _MOST_CHUNKS = 500, 8, 64
_STAGES, _WARPS = 3, 2


def forward(x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``x + delta`` and the means of its tokens, ``(B, D)`` in fp32 (fp64 for doubles).

    Args:
        x: ``(B, T, D)``, contiguous.
        delta: Added first: ``(B, T, D)``, or ``(T, D)`` for every image, or None.
    """
    return _forward_triton(x, delta) if _uses_triton(x) else _forward_torch(x, delta)


def backward(gradient: Tensor, of_means: Tensor) -> Tensor:
    """The gradient of ``x + delta``, given that of the sum itself, which is overwritten, and of the means."""
    return gradient.add_((of_means / gradient.shape[1]).to(gradient.dtype)[:, None])


def _uses_triton(x: Tensor) -> bool:
    return kernels.usable_on(x.device) and x.dtype != torch.float64


# -- plain torch ------------------------------------------------------------------------------------


def _forward_torch(x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
    total = x if delta is None else x + delta
    return total, total.mean(1, dtype=torch.promote_types(x.dtype, torch.float32))


# -- Triton -----------------------------------------------------------------------------------------


def _forward_triton(x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
    images, tokens, width = x.shape
    chunks = min(_MOST_CHUNKS, max(_FEWEST_CHUNKS, _ENOUGH_PROGRAMS // images))
    total = x if delta is None else torch.empty_like(x)
    means = torch.empty((images, chunks, width), dtype=torch.float32, device=x.device)
    with kernels.current_device(x.device):
        kernels.load("token_means").add_and_average[(images, chunks)](
            x,
            delta if delta is not None else x,
            delta.stride(0) if delta is not None and delta.ndim == 3 else 0,
            total,
            means,
            tokens,
            width,
            -(-tokens // chunks),
            HAS_DELTA=delta is not None,
            COLUMNS=kernels.power_of_two(width),
            STAGES=_STAGES,
            num_warps=_WARPS,
        )
    return total, means.sum(1)
