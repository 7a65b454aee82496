"""timm's ``VisionTransformer`` and ``Eva``, by themselves and as the trunk of open_clip's ``TimmModel``.

That is most of timm's transformers: CLIP, DeiT, DINOv2 with registers, DINOv3, SigLIP, EVA-02.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ramen.encoder.fused.description import (
    FusedAttention,
    FusedBlock,
    FusedMlp,
    FusedTower,
    NotCoveredError,
    Rotation,
)
from ramen.encoder.fused.readers.parts import (
    TowerNorms,
    activation_kind,
    layer_scale,
    patch_weight,
    require_linear,
    same,
    scaled,
    stacked,
    token_sum,
)

_TOWERS = {"VisionTransformer": "timm.models.vision_transformer", "Eva": "timm.models.eva"}


def read(module: Any, norms: TowerNorms) -> FusedTower | None:
    """The description of ``module``; None if it is something else."""
    if _is_tower(module):
        return _tower(module, "", norms, lambda tokens: tokens)
    if type(module).__name__ == "TimmModel" and _is_tower(module.trunk):
        return _tower(module.trunk, "trunk.", norms, module.head)
    return None


def _is_tower(module: object) -> bool:
    return _TOWERS.get(type(module).__name__) == type(module).__module__


def _tower(tower: Any, name: str, norms: TowerNorms, after: Callable[[Tensor], Tensor]) -> FusedTower:
    embedding = tower.patch_embed
    if type(embedding).__name__ != "PatchEmbed" or not isinstance(embedding.norm, nn.Identity):
        raise NotCoveredError(f"it embeds its patches by a {type(embedding).__name__} of its own kind")
    if tower.training or tower.grad_checkpointing:
        raise NotCoveredError("it is not in eval mode, or trades memory for time")
    weight = patch_weight(embedding.proj)
    prefix = [token[0] for token in (tower.cls_token, tower.reg_token) if token is not None]
    rows, columns = embedding.grid_size

    def head(tokens: Tensor) -> Tensor:
        return after(tower.forward_head(tower.norm(tokens)))

    pools_first_token = tower.global_pool == "token" and tower.attn_pool is None
    if tower.global_pool not in ("token", "avg", "map"):
        raise NotCoveredError(f"it pools by {tower.global_pool!r}")
    positions = None if tower.pos_embed is None else tower.pos_embed[0]
    return FusedTower(
        patch=tuple(embedding.proj.kernel_size),
        patch_weight=weight,
        prefix=sum(len(tokens) for tokens in prefix),
        positions=token_sum(
            prefix,
            positions,
            embedding.proj.bias,
            weight,
            patches=rows * columns,
            at_prefix=not tower.no_embed_class,
        ),
        norm_before=norms.place_unless_identity(f"{name}norm_pre", tower.norm_pre),
        blocks=[_block(f"{name}blocks.{number}", block, norms) for number, block in enumerate(tower.blocks)],
        heads=same("the number of heads", [block.attn.num_heads for block in tower.blocks]),
        first_token_only=pools_first_token,
        rotation=_rotation(tower, weight),
        head=norms.head(
            head, *(f"{name}{part}" for part in ("norm", "fc_norm", "attn_pool", "head")), "head"
        ),
    )


def _rotation(tower: Any, like: Tensor) -> Rotation | None:
    rope = getattr(tower, "rope", None)
    if rope is None:
        return None
    if getattr(tower, "rope_mixed", False):
        raise NotCoveredError("its rotary positions differ from block to block")
    shape = tower.patch_embed.grid_size
    angles = rope.get_embed(shape=shape) if tower.dynamic_img_size else rope.get_embed()
    if angles.ndim != 2:
        raise NotCoveredError("its rotary positions differ from head to head")
    attentions = [block.attn for block in tower.blocks]
    halves = same(
        "their rotary positions", [bool(getattr(part, "rotate_half", False)) for part in attentions]
    )
    prefix = same("their rotary positions", [part.num_prefix_tokens for part in attentions])
    sin, cos = angles.to(torch.promote_types(like.dtype, torch.float32)).to(like.device).chunk(2, -1)
    return Rotation(cos.contiguous(), sin.contiguous(), neighbours=not halves, prefix=prefix)


def _block(name: str, block: Any, norms: TowerNorms) -> FusedBlock:
    if type(block).__name__ == "Block":
        scales = layer_scale(block.ls1), layer_scale(block.ls2)
    elif type(block).__name__ == "EvaBlock":
        scales = block.gamma_1, block.gamma_2
    else:
        raise NotCoveredError(f"its block {name} is a {type(block).__name__}")
    return FusedBlock(_attention(name, block.attn, norms, scales[0]), _mlp(name, block.mlp, norms, scales[1]))


def _attention(name: str, attention: Any, norms: TowerNorms, scale: Tensor | None) -> FusedAttention:
    if type(attention).__name__ not in ("Attention", "EvaAttention") or attention.gate is not None:
        raise NotCoveredError(f"its block {name} has an attention of its own kind")
    require_linear(name, attention.proj)
    if attention.num_heads * attention.head_dim != attention.proj.out_features:
        raise NotCoveredError(f"its block {name} has heads of a width of their own")
    out_weight, out_bias = scaled(attention.proj, scale)
    qkv_weight, qkv_bias = _qkv(name, attention)
    return FusedAttention(
        norm=norms.place(f"{name}.norm1"),
        qkv_weight=qkv_weight,
        qkv_bias=qkv_bias,
        out_weight=out_weight,
        out_bias=out_bias,
        query_norm=norms.place_unless_identity(f"{name}.attn.q_norm", attention.q_norm),
        key_norm=norms.place_unless_identity(f"{name}.attn.k_norm", attention.k_norm),
        inner_norm=norms.place_unless_identity(f"{name}.attn.norm", attention.norm),
    )


def _qkv(name: str, attention: Any) -> tuple[Tensor, Tensor | None]:
    if attention.qkv is None:
        require_linear(name, attention.q_proj, attention.k_proj, attention.v_proj)
        return stacked(attention.q_proj, attention.k_proj, attention.v_proj)
    require_linear(name, attention.qkv)
    if getattr(attention, "q_bias", None) is not None:
        return attention.qkv.weight, torch.cat([attention.q_bias, attention.k_bias, attention.v_bias])
    return attention.qkv.weight, attention.qkv.bias


def _mlp(name: str, mlp: Any, norms: TowerNorms, scale: Tensor | None) -> FusedMlp:
    require_linear(name, mlp.fc2)
    kind = type(mlp).__name__
    if kind == "Mlp":
        require_linear(name, mlp.fc1)
        activation, (fc_weight, fc_bias) = activation_kind(mlp.act), (mlp.fc1.weight, mlp.fc1.bias)
    elif (
        kind in ("SwiGLU", "GluMlp") and isinstance(mlp.act, nn.SiLU) and not getattr(mlp, "gate_last", False)
    ):
        parts = (mlp.fc1_g, mlp.fc1_x) if kind == "SwiGLU" else (mlp.fc1,)
        require_linear(name, *parts)
        activation, (fc_weight, fc_bias) = "swiglu", stacked(*parts)
    else:
        raise NotCoveredError(f"its block {name} has an MLP of its own kind, {kind}")
    proj_weight, proj_bias = scaled(mlp.fc2, scale)
    return FusedMlp(
        norm=norms.place(f"{name}.norm2"),
        fc_weight=fc_weight,
        fc_bias=fc_bias,
        activation=activation,
        proj_weight=proj_weight,
        proj_bias=proj_bias,
        inner_norm=norms.place_unless_identity(f"{name}.mlp.norm", mlp.norm),
    )
