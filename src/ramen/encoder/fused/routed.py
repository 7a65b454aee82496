"""The fused passes of a vision transformer that ask a router at every norm.

A router sees the mean token of what a norm gets, and says what is added to that norm's parameters for each
image. So a pass is a chain of segments, from one norm to the next, each of them one differentiable function
of the tokens and of one norm's parameters; what the router does between two of them is left to autograd. The
segments are made of the parts of ``FusedTransformer``. They compute all tokens in every block: the last norms
are asked for means over all of them, even if the features need the class token alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.fused.description import FusedAttention, FusedMlp, FusedTower
from ramen.encoder.fused.heads import PoolingHead
from ramen.encoder.fused.transformer import FusedTransformer
from ramen.encoder.own_passes import Router
from ramen.kernels import norm, token_means
from ramen.kernels.norm import AffinePlace


class RoutedTransformer:
    """The routed passes of one tower.

    Args:
        passes: Its fused passes, if ``covers`` says so.
        places: Where each norm layer, by name, has its parameters in the flat vector.
    """

    def __init__(self, passes: FusedTransformer, places: Mapping[str, AffinePlace]) -> None:
        self._passes = passes
        self._names = {place: name for name, place in places.items()}

    def __call__(self, prepared: Tensor, affine: Tensor, router: Router) -> Tensor:
        """Features ``(B, d)`` of a result of ``prepare``, with gradients to ``affine`` and the router."""
        tower = self._passes.tower
        stream, means = token_means.forward(prepared, tower.positions)

        def run(segment: "_Segment") -> tuple[Tensor, Tensor]:
            rows = _own_parameters(affine, segment.place)
            added = router(self._names[segment.place], means)
            rows = rows if added is None else rows + added.flatten(1)
            result: tuple[Tensor, Tensor] = _SegmentFunction.apply(stream, rows, segment)
            return result

        if tower.norm_before is not None:
            stream, means = run(_NormBefore(tower.norm_before))
        for block in tower.blocks:
            stream, means = run(_Attention(block.attention.norm, self._passes, block.attention))
            stream, means = run(_Mlp(block.mlp.norm, self._passes, block.mlp))
        assert isinstance(tower.head, PoolingHead)
        features, _ = run(_Head(tower.head.norm_place, tower.head))
        return features


def covers(tower: FusedTower) -> bool:
    """Whether all norms are those before attentions and MLPs, before the blocks, and of all tokens after."""
    head, norms = tower.head, [tower.norm_before]
    for block in tower.blocks:
        attention, mlp = block.attention, block.mlp
        if attention.query_norm or attention.key_norm or attention.inner_norm or mlp.inner_norm:
            return False
        norms += [attention.norm, mlp.norm]
    if not isinstance(head, PoolingHead) or head.norm_after_pool:
        return False
    return all(place is None or _is_one_piece(place) for place in [*norms, head.norm_place])


def _is_one_piece(place: AffinePlace) -> bool:
    return place.weight is None or place.bias in (None, place.weight + place.width)


def _own_parameters(affine: Tensor, place: AffinePlace) -> Tensor:
    """The part of the flat vector, or of its rows, that belongs to a norm: weight before bias."""
    starts = [start for start in (place.weight, place.bias) if start is not None]
    return affine[..., starts[0] : starts[-1] + place.width]


def _alone(place: AffinePlace) -> AffinePlace:
    """The same norm in a vector that has its own parameters alone."""
    weight = None if place.weight is None else 0
    bias = None if place.bias is None else 0 if weight is None else place.width
    return replace(place, weight=weight, bias=bias)


# -- segments ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """From what a norm gets to what the next one gets."""

    place: AffinePlace

    def forward(self, stream: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Any]:
        """The next tokens, their means, and what ``backward`` needs."""
        raise NotImplementedError

    def backward(self, gradient: Tensor, saved: Any, rows: Tensor, table: Tensor) -> Tensor:
        """The gradient of ``stream``; that of ``rows`` goes into ``table``."""
        raise NotImplementedError


class _NormBefore(_Segment):
    def forward(self, stream: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Any]:
        result = norm.forward(stream, None, rows, _alone(self.place))
        # A function that holds its own output would keep all memory until garbage is collected.
        return *token_means.forward(result.output), replace(result, output=result.total)

    def backward(self, gradient: Tensor, saved: Any, rows: Tensor, table: Tensor) -> Tensor:
        return norm.backward(gradient, saved, rows, _alone(self.place), None, table)


@dataclass(frozen=True)
class _Attention(_Segment):
    passes: FusedTransformer
    part: FusedAttention

    def forward(self, stream: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Any]:
        normalised = norm.forward(stream, None, rows, _alone(self.place))
        attended, saved = self.passes.attend(self.part, normalised, rows, False, keep=True)
        delta = F.linear(attended, self.part.out_weight, self.part.out_bias)
        return *token_means.forward(stream, delta), saved

    def backward(self, gradient: Tensor, saved: Any, rows: Tensor, table: Tensor) -> Tensor:
        part = replace(self.part, norm=_alone(self.place))
        return self.passes.attention_backward(part, saved, gradient, rows, table)


@dataclass(frozen=True)
class _Mlp(_Segment):
    passes: FusedTransformer
    part: FusedMlp

    def forward(self, stream: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Any]:
        normalised = norm.forward(stream, None, rows, _alone(self.place))
        activated, saved = self.passes.activate(self.part, normalised, rows)
        delta = F.linear(activated, self.part.proj_weight, self.part.proj_bias)
        return *token_means.forward(stream, delta), saved

    def backward(self, gradient: Tensor, saved: Any, rows: Tensor, table: Tensor) -> Tensor:
        part = replace(self.part, norm=_alone(self.place))
        return self.passes.mlp_backward(part, saved, gradient, rows, table)


@dataclass(frozen=True)
class _Head(_Segment):
    head: PoolingHead

    def forward(self, stream: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Any]:
        """The features, and nothing in place of means."""
        head, tokens = replace(self.head, norm_place=_alone(self.place)), stream.shape[1]
        needed = stream[:, :1] if head.pools_class_token else stream
        features, saved = head.forward(needed, None, rows, None, keep=True)
        return features, features.new_empty(0), (saved, tokens)

    def backward(self, gradient: Tensor, saved: Any, rows: Tensor, table: Tensor) -> Tensor:
        head, (result, tokens) = replace(self.head, norm_place=_alone(self.place)), saved
        stream = head.backward(gradient.contiguous(), result, rows, tokens, table)
        return F.pad(stream, (0, 0, 0, tokens - stream.shape[1]))


class _SegmentFunction(torch.autograd.Function):
    """A segment as one differentiable function of tokens and norm parameters."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, rows: Tensor, segment: _Segment) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.segment, ctx.rows = segment, rows
        following, means, ctx.saved = segment.forward(stream, rows)
        ctx.shape, ctx.dtype = following.shape, following.dtype
        return following, means

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, of_means: Tensor | None) -> tuple[Tensor, Tensor, None]:
        if ctx.saved is None:
            raise RuntimeError("a second backward pass through the same forward pass is not possible")
        saved, ctx.saved = ctx.saved, None
        if gradient is None:
            assert of_means is not None
            gradient = of_means.new_zeros(ctx.shape, dtype=ctx.dtype)
        if of_means is not None:  # the gradient of tokens is the next segment's, which needs it no more
            gradient = token_means.backward(gradient, of_means)
        table = norm.new_gradient_rows(ctx.rows, len(gradient))
        stream = ctx.segment.backward(gradient, saved, ctx.rows, table)
        found = table.sum(1)
        return stream, found if ctx.rows.ndim == 2 else found.sum(0), None
