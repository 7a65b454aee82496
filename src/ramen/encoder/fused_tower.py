"""Which vision transformers the fused passes cover, and the weights that these passes compute with.

Covered are open_clip's plain vision transformers. Any part that the fused passes would compute differently,
or not at all, is refused by name, so that nothing is left out without a word.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ramen.encoder.norm_layers import LayerNorm, Norm
from ramen.kernels.norm import AffinePlace

_LINEAR = (nn.Linear, type(nn.MultiheadAttention(1, 1).out_proj))


class NotCoveredError(Exception):
    """A tower has a part that the fused passes do not cover; the message says which."""


@dataclass(frozen=True)
class FusedBlock:
    """The weights of one residual block, and the places of its two norms."""

    attention_norm: AffinePlace
    qkv_weight: Tensor
    qkv_bias: Tensor | None
    out_weight: Tensor
    out_bias: Tensor | None
    mlp_norm: AffinePlace
    fc_weight: Tensor
    fc_bias: Tensor | None
    proj_weight: Tensor
    proj_bias: Tensor | None


@dataclass(frozen=True)
class FusedTower:
    """The weights and settings of a tower that is covered.

    Attributes:
        patch: Height and width of a patch.
        patch_weight: Embeds a patch, ``(D, channels * height * width)``; padded with columns of zeros.
        positions: ``(T, D)``; the class token is a token of zeros with a position of its own.
        norm_before: The norm before the blocks, if there is one.
        blocks: In order.
        norm_after: The norm after the blocks.
        heads: Of every attention.
        activation: Its kind, one of ``ramen.kernels.activation.KINDS``.
        pools_class_token: Whether the features are those of the class token, or the mean of all others.
        norm_after_pool: Whether ``norm_after`` comes after the mean.
        proj: Applied to the pooled features, if there is one.
        bias_sums: The sum of all biases that have been added to the residual stream: before each of the two
            norms of every block, and after the last block.
    """

    patch: tuple[int, int]
    patch_weight: Tensor
    positions: Tensor
    norm_before: AffinePlace | None
    blocks: list[FusedBlock]
    norm_after: AffinePlace
    heads: int
    activation: str
    pools_class_token: bool
    norm_after_pool: bool
    proj: Tensor | None
    bias_sums: list[Tensor | None]


def fused_tower(
    module: nn.Module, norms: Mapping[str, Norm], places: Mapping[str, AffinePlace]
) -> FusedTower:
    """The weights of ``module``.

    Args:
        module: A ``VisionTransformer`` of open_clip whose norm layers are replaced.
        norms: The replacements, by name.
        places: Where each of them, by name, has its parameters in the flat vector.

    Raises:
        NotCoveredError: The tower has a part that the fused passes do not cover.
    """
    _require_plain_tower(module)
    tower: Any = module
    layer_norms = {name: place for name, place in places.items() if isinstance(norms[name], LayerNorm)}
    patch_weight = _padded(tower.conv1.weight.flatten(1))
    positions = tower.positional_embedding.to(patch_weight.dtype, copy=True)
    positions[0] += tower.class_embedding.to(positions.dtype)
    has_norm_before = not isinstance(tower.ln_pre, nn.Identity)
    norm_before = _required(layer_norms, "ln_pre") if has_norm_before else None
    norm_after = _required(layer_norms, "ln_post")
    blocks = [
        _fused_block(f"transformer.resblocks.{number}", block, layer_norms)
        for number, block in enumerate(tower.transformer.resblocks)
    ]
    first = tower.transformer.resblocks[0]
    activation = _activation_kind(first.mlp.gelu)
    if len(places) != 2 * len(blocks) + 1 + has_norm_before:
        raise NotCoveredError("it has more norm layers than a plain transformer")
    return FusedTower(
        patch=tuple(tower.conv1.kernel_size),
        patch_weight=patch_weight,
        positions=positions,
        norm_before=norm_before,
        blocks=blocks,
        norm_after=norm_after,
        heads=first.attn.num_heads,
        activation=activation,
        pools_class_token=tower.pool_type == "tok",
        norm_after_pool=tower.final_ln_after_pool,
        proj=tower.proj,
        bias_sums=_bias_sums(blocks),
    )


def _require_plain_tower(module: nn.Module) -> None:
    if type(module).__name__ != "VisionTransformer" or not type(module).__module__.startswith("open_clip"):
        raise NotCoveredError(f"it is a {type(module).__name__}, not open_clip's VisionTransformer")
    tower: Any = module
    if tower.attn_pool is not None or tower.pool_type not in ("tok", "avg"):
        raise NotCoveredError("it pools by attention")
    if type(tower.conv1) is not nn.Conv2d or tower.conv1.bias is not None:
        raise NotCoveredError("it does not embed its patches by a plain convolution")
    if tower.conv1.stride != tower.conv1.kernel_size:
        raise NotCoveredError("its patches overlap, or have gaps between them")
    for name, part in module.named_modules():
        # the fused passes would not call them
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) or is_parametrized(part):
            raise NotCoveredError(f"its part {name!r} has hooks, a parametrization or a forward of its own")


def _required(layer_norms: Mapping[str, AffinePlace], name: str) -> AffinePlace:
    if name not in layer_norms:
        raise NotCoveredError(f"its norm layer {name} is not a layer norm with parameters")
    return layer_norms[name]


def _fused_block(name: str, block: Any, layer_norms: Mapping[str, AffinePlace]) -> FusedBlock:
    if type(block).__name__ != "ResidualAttentionBlock" or hasattr(block, "ln_1_kv"):
        raise NotCoveredError(f"its block {name} is a {type(block).__name__}")
    attention = block.attn
    for part in (attention.out_proj, block.mlp.c_fc, block.mlp.c_proj):
        if type(part) not in _LINEAR:
            raise NotCoveredError(f"its block {name} has a {type(part).__name__}, not a plain linear layer")
    if (
        type(attention) is not nn.MultiheadAttention
        or attention.in_proj_weight is None
        or attention.bias_k is not None
        or attention.add_zero_attn
    ):
        raise NotCoveredError(f"its block {name} has an attention of its own kind")
    # a learned scale after a product is a scale of the product's weights
    out_weight, out_bias = _scaled(attention.out_proj, block.ls_1)
    proj_weight, proj_bias = _scaled(block.mlp.c_proj, block.ls_2)
    return FusedBlock(
        attention_norm=_required(layer_norms, f"{name}.ln_1"),
        qkv_weight=attention.in_proj_weight,
        qkv_bias=attention.in_proj_bias,
        out_weight=out_weight,
        out_bias=out_bias,
        mlp_norm=_required(layer_norms, f"{name}.ln_2"),
        fc_weight=block.mlp.c_fc.weight,
        fc_bias=block.mlp.c_fc.bias,
        proj_weight=proj_weight,
        proj_bias=proj_bias,
    )


def _activation_kind(layer: nn.Module) -> str:
    if isinstance(layer, nn.GELU):
        return "gelu_tanh" if layer.approximate == "tanh" else "gelu"
    if type(layer).__name__ == "QuickGELU":
        return "quick_gelu"
    raise NotCoveredError(f"its activation is {type(layer).__name__}")


def _scaled(linear: nn.Linear, scale: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer followed by a learned scale per channel, or by nothing."""
    if isinstance(scale, nn.Identity):
        return linear.weight, linear.bias
    gamma = getattr(scale, "gamma", None)
    if type(scale).__name__ != "LayerScale" or not isinstance(gamma, Tensor):
        raise NotCoveredError(f"a block ends in a {type(scale).__name__}")
    wide = torch.promote_types(linear.weight.dtype, torch.float32)
    weight = (linear.weight.to(wide) * gamma.to(wide)[:, None]).to(linear.weight.dtype)
    bias = None if linear.bias is None else (linear.bias.to(wide) * gamma.to(wide)).to(linear.bias.dtype)
    return weight, bias


def _bias_sums(blocks: list[FusedBlock]) -> list[Tensor | None]:
    sums: list[Tensor | None] = [None]
    for block in blocks:
        sums.append(_sum(sums[-1], block.out_bias))
        sums.append(_sum(sums[-1], block.proj_bias))
    return sums


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other.to(torch.promote_types(other.dtype, torch.float32))
    return one + other


def _padded(weight: Tensor) -> Tensor:
    """``weight`` with columns of zeros up to a multiple of eight, which makes products fast."""
    return F.pad(weight, (0, -weight.shape[1] % 8))
