"""Loss scaling that keeps the fp16 part of a backward pass in the middle of fp16's range.

Entropy gradients of confident images would vanish in fp16, those of encoders with small features overflow. So
the gradient of an encoder's output is scaled to a fixed size before it enters the encoder, per image if each
has its own parameters, and the gradient of the norm parameters is scaled back. Both in fp32 and by powers of
two, so that no digit is lost.
"""

from typing import Any

import torch
from torch import Tensor

_TARGET_SIZE = 2.0**6
_SMALLEST = 2.0**-100  # a smaller gradient counts as zero


class GradientScaling:
    """For one backward pass: wrap the encoder's output in ``enter`` and its parameters in ``leave``."""

    def __init__(self, per_image: bool) -> None:
        self.per_image = per_image
        self.factor: Tensor | float = 1.0

    def enter(self, features: Tensor) -> Tensor:
        """``features``, in fp32, whose gradient is scaled when it enters the encoder."""
        result: Tensor = _Enter.apply(features, self)
        return result

    def leave(self, affine: Tensor) -> Tensor:
        """``affine``, whose gradient is scaled back when it leaves the encoder."""
        result: Tensor = _Leave.apply(affine, self)
        return result


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, scaling: GradientScaling) -> Tensor:
        ctx.scaling = scaling
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        size = gradient.abs()
        largest = size.amax(1, keepdim=True) if ctx.scaling.per_image else size.amax()
        ctx.scaling.factor = torch.exp2(torch.log2(_TARGET_SIZE / largest.clamp_min(_SMALLEST)).floor())
        return gradient * ctx.scaling.factor, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, affine: Tensor, scaling: GradientScaling) -> Tensor:
        ctx.scaling = scaling
        return affine.view_as(affine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.scaling.factor, None
