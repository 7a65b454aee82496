"""The description of a vision transformer that the fused passes compute from.

It has the module's own weights, in the form that the passes take them. Readers, one per library, make it
(``ramen.encoder.fused.readers``).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ramen.kernels import rotation
from ramen.kernels.norm import AffinePlace


class NotCoveredError(Exception):
    """A tower has a part that the fused passes do not cover; the message says which."""


@dataclass(frozen=True)
class FusedAttention:
    """The attention of a block.

    Attributes:
        norm: Before it.
        qkv_weight: Of queries, keys and values, one above the other, ``(3 D, D)``.
        qkv_bias: Of the same.
        query_norm: Of each head's queries, if there is one.
        key_norm: Of each head's keys, if there is one.
        inner_norm: Between the heads and the last product, if there is one.
        out_weight: Of the last product.
        out_bias: Of the same.
    """

    norm: AffinePlace
    qkv_weight: Tensor
    qkv_bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    query_norm: AffinePlace | None = None
    key_norm: AffinePlace | None = None
    inner_norm: AffinePlace | None = None


@dataclass(frozen=True)
class FusedMlp:
    """The two products of a block, with an activation between them.

    Attributes:
        norm: Before it.
        fc_weight: Of the first product. If it is gated, those of the gate are above the others.
        fc_bias: Of the same.
        activation: Its kind, one of ``ramen.kernels.activation.KINDS`` or ``GATES``.
        inner_norm: Before the second product, if there is one.
        proj_weight: Of the second product.
        proj_bias: Of the same.
    """

    norm: AffinePlace
    fc_weight: Tensor
    fc_bias: Tensor | None
    activation: str
    proj_weight: Tensor
    proj_bias: Tensor | None
    inner_norm: AffinePlace | None = None


@dataclass(frozen=True)
class FusedBlock:
    """A residual block: attention, then an MLP, each with a norm before it."""

    attention: FusedAttention
    mlp: FusedMlp


@dataclass(frozen=True)
class Rotation:
    """Rotary positions: pairs of numbers of queries and keys are turned by an angle that the place decides.

    Attributes:
        cos: ``(patches, head width)``.
        sin: The same.
        neighbours: Whether pairs are neighbours; otherwise a number's partner is half a head away.
        prefix: How many tokens before the patches are not turned.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool
    prefix: int

    def turn(self, parts: Tensor, *, back: bool = False) -> None:
        """Turn queries or keys ``(B, T, heads, head width)`` in place, or with ``back`` their gradients."""
        rotation.turn(parts[:, self.prefix :], self.cos, self.sin, self.neighbours, back=back)


class Head(Protocol):
    """What makes features of the tokens after the last block, and the gradient back."""

    def forward(
        self, x: Tensor, delta: Tensor | None, affine: Tensor, shift: Tensor | None, *, keep: bool
    ) -> tuple[Tensor, object]:
        """Features ``(B, d)`` of ``x + delta + shift``, and with ``keep`` what ``backward`` needs."""

    def backward(self, gradient: Tensor, saved: object, affine: Tensor, tokens: int, rows: Tensor) -> Tensor:
        """The gradient of the tokens that ``forward`` got; those of norm parameters go into ``rows``.

        Args:
            gradient: Of the features.
            saved: What ``forward`` has kept.
            affine: As in ``forward``.
            tokens: How many an image has.
            rows: See ``ramen.kernels.norm.backward``.
        """


@dataclass(frozen=True)
class FusedTower:
    """The weights and settings of a tower that is covered.

    Attributes:
        patch: Height and width of a patch.
        patch_weight: Embeds a patch, ``(D, channels * height * width)``; padded with columns of zeros.
        prefix: How many tokens stand before the patches: the class token and registers.
        positions: ``(T, D)``: what is added to every token, be it learned, a position or a bias. The tokens
            of the prefix themselves are zeros.
        norm_before: The norm before the blocks, if there is one.
        blocks: In order.
        heads: Of every attention.
        rotation: Of queries and keys, if there is one.
        first_token_only: Whether the head needs the first token alone.
        head: What follows the blocks.
    """

    patch: tuple[int, int]
    patch_weight: Tensor
    prefix: int
    positions: Tensor
    norm_before: AffinePlace | None
    blocks: list[FusedBlock]
    heads: int
    first_token_only: bool
    head: Head
    rotation: Rotation | None = None

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
