"""GELU as it is, in its tanh form and as OpenAI's CLIP has it: one pass over the memory each way."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

KINDS = ("gelu", "gelu_tanh", "quick_gelu")
_APPROXIMATION = {"gelu": "none", "gelu_tanh": "tanh"}
_QUICK = 1.702
_BLOCK = 4096


def forward(x: Tensor, kind: str) -> Tensor:
    """The activation of ``x``, contiguous, in its type."""
    if _fused(x):
        output = torch.empty_like(x)
        with kernels.current_device(x.device):
            kernels.load("activation").activate[_grid(x)](
                x, output, x.numel(), KIND=KINDS.index(kind), BLOCK=_BLOCK, num_warps=4
            )
        return output
    if kind == "quick_gelu":
        return x * torch.sigmoid(_QUICK * x)
    return F.gelu(x, approximate=_APPROXIMATION[kind])


def backward(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    """The gradient of ``x``, given that of the activation, which is overwritten."""
    if _fused(x):
        with kernels.current_device(x.device):
            kernels.load("activation").activate_backward[_grid(x)](
                gradient, x, x.numel(), KIND=KINDS.index(kind), BLOCK=_BLOCK, num_warps=4
            )
        return gradient
    if kind == "quick_gelu":
        gate = torch.sigmoid(_QUICK * x)
        return gradient * gate * (1 + _QUICK * x * (1 - gate))
    result: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=_APPROXIMATION[kind])
    return result


def _fused(x: Tensor) -> bool:
    return kernels.usable_on(x.device) and x.dtype != torch.float64


def _grid(x: Tensor) -> tuple[int]:
    return (-(-x.numel() // _BLOCK),)
