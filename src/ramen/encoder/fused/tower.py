"""What fused passes are, and the description of a vision transformer that they compute from.

The description has the module's own weights, in the form that the passes take them
(``ramen.encoder.fused.read``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from ramen.encoder.norms import BatchNorm, LayerNorm, Norm
from ramen.kernels import rotation
from ramen.kernels.channel_norm import ChannelNorm
from ramen.kernels.norm import AffinePlace

HeadFunction = Callable[[Tensor], Tensor]


class NotCoveredError(Exception):
    """A tower has a part that the fused passes do not cover; the message says which."""


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


@dataclass(frozen=True)
class FusedAttention:
    """The attention of a block."""

    norm: AffinePlace  # before it
    qkv_weight: Tensor  # of queries, keys and values, one above the other, ``(3 D, D)``
    qkv_bias: Tensor | None  # of the same
    out_weight: Tensor  # of the last product
    out_bias: Tensor | None  # of the same
    query_norm: AffinePlace | None = None  # of each head's queries, if there is one
    key_norm: AffinePlace | None = None  # of each head's keys, if there is one
    inner_norm: AffinePlace | None = None  # between the heads and the last product, if there is one


@dataclass(frozen=True)
class FusedMlp:
    """The two products of a block, with an activation between them."""

    norm: AffinePlace  # before it
    # of the first product. If it is gated, those of the gate are above the others
    fc_weight: Tensor
    fc_bias: Tensor | None  # of the same
    activation: str  # its kind, one of ``ramen.kernels.activation.KINDS`` or ``GATES``
    proj_weight: Tensor  # of the second product
    proj_bias: Tensor | None  # of the same
    inner_norm: AffinePlace | None = None  # before the second product, if there is one


@dataclass(frozen=True)
class FusedBlock:
    """A residual block: attention, then an MLP, each with a norm before it."""

    attention: FusedAttention
    mlp: FusedMlp


@dataclass(frozen=True)
class Rotation:
    """Rotary positions: pairs of numbers of queries and keys, turned by an angle that the place decides."""

    cos: Tensor  # ``(patches, head width)``
    sin: Tensor  # the same
    neighbours: bool  # whether pairs are neighbours; otherwise a number's partner is half a head away
    prefix: int  # how many tokens before the patches are not turned

    def turn(self, parts: Tensor, *, back: bool = False) -> None:
        """Turn queries or keys ``(B, T, heads, head width)`` in place, or with ``back`` their gradients."""
        rotation.turn(parts[:, self.prefix :], self.cos, self.sin, self.neighbours, back=back)


@dataclass(frozen=True)
class FusedTower:
    """The weights and settings of a tower that is covered."""

    patch: tuple[int, int]  # height and width of a patch
    patch_weight: Tensor  # embeds a patch, ``(D, channels * height * width)``; padded with columns of zeros
    prefix: int  # how many tokens stand before the patches: the class token and registers
    # ``(T, D)``: what is added to every token, be it learned, a position or a bias. The tokens of the prefix
    # themselves are zeros
    positions: Tensor
    norm_before: AffinePlace | None  # the norm before the blocks, if there is one
    blocks: list[FusedBlock]  # in order
    heads: int  # of every attention
    first_token_only: bool  # whether the head needs the first token alone
    head: "Head"  # what follows the blocks
    rotation: Rotation | None = None  # of queries and keys, if there is one

    @cached_property
    def bias_sums(self) -> list[Tensor | None]:
        """The sum of all biases that have been added to the residual stream.

        Before each of the two norms of every block, and after the last block.
        """
        sums: list[Tensor | None] = [None]
        for block in self.blocks:
            sums.append(_sum(sums[-1], block.attention.out_bias))
            sums.append(_sum(sums[-1], block.mlp.proj_bias))
        return sums


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other.to(torch.promote_types(other.dtype, torch.float32))
    return one + other


def open_clip_head(parent: Any, tower: Any) -> tuple[HeadFunction, bool]:
    if getattr(tower, "attn_pool", None) is not None:
        raise NotCoveredError("it pools by attention")
    first = tower.pool_type == "tok"

    def head(tokens: Tensor) -> Any:
        if first:
            pooled = tower.ln_post(tokens[:, 0])
        elif tower.final_ln_after_pool:
            pooled = tower.ln_post(tokens[:, 1:].mean(1))
        else:
            pooled = tower.ln_post(tokens)[:, 1:].mean(1)
        return pooled if tower.proj is None else pooled @ tower.proj

    return head, first


def timm_head(parent: Any, tower: Any) -> tuple[HeadFunction, bool]:
    after = getattr(parent, "head", None)  # of open_clip's TimmModel

    def head(tokens: Tensor) -> Any:
        features = tower.forward_head(tower.norm(tokens))
        return features if after is None else after(features)

    return head, tower.global_pool == "token" and tower.attn_pool is None


def transformers_head(parent: Any, tower: Any) -> tuple[HeadFunction, bool]:
    after = getattr(parent, "visual_projection", None)
    pools = getattr(tower, "head", None)

    def head(tokens: Tensor) -> Any:
        kept = tower.post_layernorm(tokens[:, 0] if pools is None else tokens)
        features = kept if pools is None else pools(kept)
        return features if after is None else after(features)

    return head, pools is None


class Head:
    """What follows the blocks: the module's own layers, differentiated by autograd, a small part of a pass.

    Its function, which uses the ``norms``, makes features of the tokens ``(B, T, D)`` after the last block.
    """

    def __init__(
        self,
        function: HeadFunction,
        norms: Mapping[str, Norm],
        places: Mapping[str, AffinePlace],
    ) -> None:
        self._function = function
        self._parameters = [
            (layer, kind, start, start + places[name].width)
            for name, layer in norms.items()
            for kind, start in (("weight", places[name].weight), ("bias", places[name].bias))
            if start is not None
        ]

    def forward(
        self, x: Tensor, delta: Tensor | None, affine: Tensor, shift: Tensor | None, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor, list[Tensor]] | None]:
        """Features ``(B, d)`` of ``x + delta + shift``, and with ``keep`` what ``backward`` needs."""
        total = x if delta is None else x + delta
        total = total if shift is None else (total + shift).to(x.dtype)
        if not keep:
            return self._features(
                total, [affine[..., start:stop] for *_, start, stop in self._parameters]
            ), None
        with torch.enable_grad():
            total = total.detach().requires_grad_()
            rows = affine.detach().expand(len(x), -1)
            leaves = [rows[:, start:stop].requires_grad_() for *_, start, stop in self._parameters]
            features = self._features(total, leaves)
        return features.detach(), (features, total, leaves)

    def backward(self, gradient: Tensor, saved: tuple[Tensor, Tensor, list[Tensor]], rows: Tensor) -> Tensor:
        """The gradient of what ``forward`` got; those of norm parameters go into ``rows``."""
        features, total, leaves = saved
        found = torch.autograd.grad(
            features, [total, *leaves], gradient.to(features.dtype), allow_unused=True
        )
        for (*_, start, stop), part in zip(self._parameters, found[1:], strict=True):
            rows[:, :, start:stop] = 0
            if part is not None:
                rows[:, 0, start:stop] = part
        stream = found[0]
        assert stream is not None
        return stream

    def _features(self, total: Tensor, parameters: list[Tensor]) -> Tensor:
        try:
            for (layer, kind, *_), part in zip(self._parameters, parameters, strict=True):
                setattr(layer, kind, part.unflatten(-1, layer.param_shape))
            return self._function(total)
        finally:
            for layer, *_ in self._parameters:
                layer.weight = layer.bias = None


# -- where norms have their parameters ----------------------------------------------------------------


class TowerNorms:
    """The norm layers of a tower, of which each must be found, and their places in the flat vector."""

    def __init__(self, norms: Mapping[str, Norm], places: Mapping[str, AffinePlace]) -> None:
        self._norms, self._places = norms, places
        self._left = set(norms)

    def place(self, name: str) -> AffinePlace:
        """Of a layer norm that must be there."""
        layer = self._norms.get(name)
        if not isinstance(layer, LayerNorm) or layer.activation is not None or layer.channels_first:
            raise NotCoveredError(f"its norm layer {name} is not a layer norm with parameters")
        self._left.discard(name)
        return self._places[name]

    def place_if_there(self, name: str) -> AffinePlace | None:
        """Of a layer norm that may be there."""
        return self.place(name) if name in self._norms else None

    def channel_norm(self, name: str, layer: object, dtype: torch.dtype) -> ChannelNorm:
        """Of a batch norm with the statistics of its training; an activation inside it is the caller's."""
        found = self._norms.get(name)
        if found is not layer or not isinstance(found, BatchNorm):
            raise NotCoveredError(f"its norm layer {name} is not a batch norm with running statistics")
        self._left.discard(name)
        place = self._places[name]
        exact = torch.promote_types(dtype, torch.float32)
        mean, variance = found.running_mean.to(exact), found.running_var.to(exact)
        return ChannelNorm(place, mean, torch.rsqrt(variance + place.eps))

    def head(self, function: Callable[[Tensor], Tensor]) -> Head:
        """What follows the blocks, computed by the module; all norm layers that are left belong to it."""
        left, self._left = sorted(self._left), set()
        return Head(function, {name: self._norms[name] for name in left}, self._places)

    def require_all_used(self) -> None:
        """Raise NotCoveredError if a norm layer is in none of the places that were read."""
        if self._left:
            raise NotCoveredError(
                f"it has more norm layers than a plain transformer: {', '.join(sorted(self._left))}"
            )
