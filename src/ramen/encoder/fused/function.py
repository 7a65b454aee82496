"""Fused passes as one differentiable function of the norm parameters."""

from typing import Any, Protocol

import torch
from torch import Tensor


class SavedPass(Protocol):
    """What a forward pass saves for its backward pass."""

    affine: Tensor


class FusedPasses(Protocol):
    """The fused passes of one encoder."""

    def is_prepared(self, images: Tensor) -> bool:
        """Whether ``images`` is a result of ``prepare``."""

    def prepare(self, images: Tensor) -> Tensor:
        """The part of a pass that no norm parameter changes."""

    def forward(self, prepared: Tensor, affine: Tensor, *, keep: bool) -> tuple[Tensor, Any]:
        """Features ``(B, d)`` of a result of ``prepare``; with ``keep`` also what ``backward`` needs."""

    def backward(self, gradient: Tensor, saved: Any) -> Tensor:
        """Each image's gradient of the norm parameters ``(B, G)``, given that of its features ``(B, d)``."""


class FusedFunction(torch.autograd.Function):
    """The features as a function of the norm parameters."""

    @staticmethod
    def forward(ctx: Any, prepared: Tensor, affine: Tensor, passes: FusedPasses) -> Tensor:
        """The features."""
        features, ctx.saved_forward = passes.forward(prepared, affine, keep=True)
        ctx.passes = passes
        return features

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        """The gradient of the parameters: one row per image, or their sum if all images share one vector."""
        if ctx.saved_forward is None:
            raise RuntimeError("a second backward pass through the same forward pass is not possible")
        saved, ctx.saved_forward = ctx.saved_forward, None
        rows = ctx.passes.backward(gradient.contiguous(), saved)
        return None, rows if saved.affine.ndim == 2 else rows.sum(0), None
