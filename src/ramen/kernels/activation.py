"""GELU: exact, in its tanh approximation, and as in OpenAI's CLIP; and the gate of SwiGLU.

Each pass reads the memory once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels

KINDS = ("gelu", "gelu_tanh", "quick_gelu")
GATES = ("swiglu",)  # the first half of the numbers, through SiLU, times the second half
_APPROXIMATION = {"gelu": "none", "gelu_tanh": "tanh"}
_QUICK = 1.702
_BLOCK = 4096


def forward(x: Tensor, kind: str) -> Tensor:
    """The activation of a contiguous ``x``, in its dtype."""
    return _forward_triton(x, kind) if _uses_triton(x) else _forward_torch(x, kind)


def backward(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    """The gradient of ``x``, given that of the activation, which may be overwritten."""
    return _backward_triton(gradient, x, kind) if _uses_triton(x) else _backward_torch(gradient, x, kind)


def _uses_triton(x: Tensor) -> bool:
    return kernels.usable_on(x.device) and x.dtype != torch.float64


# -- plain torch ------------------------------------------------------------------------------------


def _forward_torch(x: Tensor, kind: str) -> Tensor:
    if kind in GATES:
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value
    if kind == "quick_gelu":
        return x * torch.sigmoid(_QUICK * x)
    return F.gelu(x, approximate=_APPROXIMATION[kind])


def _backward_torch(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    if kind in GATES:
        gate, value = x.chunk(2, -1)
        slope: Tensor = torch.ops.aten.silu_backward(gradient * value, gate)
        return torch.cat([slope, gradient * F.silu(gate)], -1)
    if kind == "quick_gelu":
        gate = torch.sigmoid(_QUICK * x)
        return gradient * gate * (1 + _QUICK * x * (1 - gate))
    result: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=_APPROXIMATION[kind])
    return result


# -- Triton -----------------------------------------------------------------------------------------


def _forward_triton(x: Tensor, kind: str) -> Tensor:
    if kind in GATES:
        width = x.shape[-1] // 2
        output = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
        with kernels.current_device(x.device):
            kernels.load("activation").gate[_grid(output)](
                x, output, output.numel(), width, BLOCK=_BLOCK, num_warps=4
            )
        return output
    output = torch.empty_like(x)
    with kernels.current_device(x.device):
        kernels.load("activation").activate[_grid(x)](
            x, output, x.numel(), KIND=KINDS.index(kind), BLOCK=_BLOCK, num_warps=4
        )
    return output


def _backward_triton(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    if kind in GATES:
        total = torch.empty_like(x)
        with kernels.current_device(x.device):
            kernels.load("activation").gate_backward[_grid(gradient)](
                gradient, x, total, gradient.numel(), x.shape[-1] // 2, BLOCK=_BLOCK, num_warps=4
            )
        return total
    with kernels.current_device(x.device):
        kernels.load("activation").activate_backward[_grid(x)](
            gradient, x, x.numel(), KIND=KINDS.index(kind), BLOCK=_BLOCK, num_warps=4
        )
    return gradient


def _grid(x: Tensor) -> tuple[int]:
    return (-(-x.numel() // _BLOCK),)
