"""The programs behind ``ramen.kernels.activation``; ``KIND`` is an index into its ``KINDS``."""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _erf(x, bell):
    """The error function to 5e-7, given ``bell = exp(-x * x)`` (Abramowitz and Stegun 7.1.26).

    Triton's own is so slow that it would limit the program's speed, instead of the memory.
    """
    t = 1.0 / (1.0 + 0.3275911 * tl.abs(x))
    tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return tl.where(x < 0, tail * bell - 1.0, 1.0 - tail * bell)


@triton.jit
def activate(x_pointer, output_pointer, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The activation."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_pointer + place, mask=place < size, other=0.0).to(tl.float32)
    if KIND == 0:
        y = 0.5 * x * (1.0 + _erf(x * 0.7071067811865476, tl.exp(-0.5 * x * x)))
    elif KIND == 1:
        y = 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        y = x * tl.sigmoid(1.702 * x)
    tl.store(output_pointer + place, y.to(output_pointer.dtype.element_ty), mask=place < size)


@triton.jit
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


@triton.jit
def gate(x_pointer, output_pointer, size, width, BLOCK: tl.constexpr):
    """The first half of each row of ``x``, through SiLU, times its second half; a half is ``width`` long."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    first = place + place // width * width
    opening = tl.load(x_pointer + first, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x_pointer + first + width, mask=inside, other=0.0).to(tl.float32)
    y = opening * tl.sigmoid(opening) * value
    tl.store(output_pointer + place, y.to(output_pointer.dtype.element_ty), mask=inside)


@triton.jit
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
