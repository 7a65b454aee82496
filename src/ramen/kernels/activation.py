"""GELU: exact, in its tanh approximation, and as in OpenAI's CLIP; and the gate of SwiGLU.

Each pass reads the memory once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen import kernels
from ramen.utils.numerics import in_bfloat16_on_a_cpu

if TYPE_CHECKING:
    import triton.language as tl
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
        if in_bfloat16_on_a_cpu(x):  # fewer passes over the memory, and fewer roundings
            return F.silu(_QUICK * x).mul_(1 / _QUICK)
        return x * torch.sigmoid(_QUICK * x)
    return F.gelu(x, approximate=_APPROXIMATION[kind])


def _backward_torch(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    if kind in GATES:
        gate, value = x.chunk(2, -1)
        slope: Tensor = torch.ops.aten.silu_backward(gradient * value, gate)
        return torch.cat([slope, gradient * F.silu(gate)], -1)
    if kind == "quick_gelu":
        if in_bfloat16_on_a_cpu(x):
            quick_slope: Tensor = torch.ops.aten.silu_backward(gradient, _QUICK * x)
            return quick_slope
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
            gate_forward[_grid(output)](x, output, output.numel(), width, BLOCK=_BLOCK, num_warps=4)
        return output
    output = torch.empty_like(x)
    with kernels.current_device(x.device):
        activate[_grid(x)](x, output, x.numel(), KIND=KINDS.index(kind), BLOCK=_BLOCK, num_warps=4)
    return output


def _backward_triton(gradient: Tensor, x: Tensor, kind: str) -> Tensor:
    if kind in GATES:
        total = torch.empty_like(x)
        with kernels.current_device(x.device):
            gate_backward[_grid(gradient)](
                gradient, x, total, gradient.numel(), x.shape[-1] // 2, BLOCK=_BLOCK, num_warps=4
            )
        return total
    with kernels.current_device(x.device):
        activate_backward[_grid(x)](gradient, x, x.numel(), KIND=KINDS.index(kind), BLOCK=_BLOCK, num_warps=4)
    return gradient


def _grid(x: Tensor) -> tuple[int]:
    return (-(-x.numel() // _BLOCK),)


# -- programs ---------------------------------------------------------------------------------------


@kernels.program
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@kernels.program
def _erf(x, bell):
    """The error function to 5e-7, given ``bell = exp(-x * x)`` (Abramowitz and Stegun 7.1.26).

    Triton's own is so slow that it would limit the program's speed, instead of the memory.
    """
    t = 1.0 / (1.0 + 0.3275911 * tl.abs(x))
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return tl.where(x < 0, tail * bell - 1.0, 1.0 - tail * bell)


@kernels.program
def activate(x_pointer, output_pointer, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + place, mask=place < size, other=0.0).to(tl.float32)
    if KIND == 0:
        y = 0.5 * x * (1.0 + _erf(x * 0.7071067811865476, tl.exp(-0.5 * x * x)))
    elif KIND == 1:
        y = 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        y = x * tl.sigmoid(1.702 * x)
    tl.store(output_pointer + place, y.to(output_pointer.dtype.element_ty), mask=place < size)


@kernels.program
def activate_backward(gradient_pointer, x_pointer, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The derivative times the gradient, which it overwrites."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + place, mask=place < size, other=0.0).to(tl.float32)
    gradient = tl.load(gradient_pointer + place, mask=place < size, other=0.0).to(tl.float32)
    if KIND == 0:
        bell = tl.exp(-0.5 * x * x)
        slope = 0.5 * (1.0 + _erf(x * 0.7071067811865476, bell)) + 0.3989422804014327 * x * bell
    elif KIND == 1:
        bent = _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
        inner = 0.7978845608028654 * (1.0 + 0.134145 * x * x)
        slope = 0.5 * (1.0 + bent) + 0.5 * x * (1.0 - bent * bent) * inner
    else:
        gate = tl.sigmoid(1.702 * x)
        slope = gate * (1.0 + 1.702 * x * (1.0 - gate))
    gradient *= slope
    tl.store(gradient_pointer + place, gradient.to(gradient_pointer.dtype.element_ty), mask=place < size)


@kernels.program
def gate_forward(x_pointer, output_pointer, size, width, BLOCK: tl.constexpr):
    """The first half of each row of ``x``, through SiLU, times its second half; a half is ``width`` long."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    first = place + place // width * width
    opening = tl.load(x_pointer + first, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_pointer + first + width, mask=inside, other=0.0).to(tl.float32)
    y = opening * tl.sigmoid(opening) * value
    tl.store(output_pointer + place, y.to(output_pointer.dtype.element_ty), mask=inside)


@kernels.program
def gate_backward(gradient_pointer, x_pointer, total_pointer, size, width, BLOCK: tl.constexpr):
    """The gradient of both halves, given that of their product."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    first = place + place // width * width
    gradient = tl.load(gradient_pointer + place, mask=inside, other=0.0).to(tl.float32)
    opening = tl.load(x_pointer + first, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_pointer + first + width, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(opening)
    slope = share * (1.0 + opening * (1.0 - share))
    kind = total_pointer.dtype.element_ty
    tl.store(total_pointer + first, (gradient * value * slope).to(kind), mask=inside)
    tl.store(total_pointer + first + width, (gradient * opening * share).to(kind), mask=inside)
