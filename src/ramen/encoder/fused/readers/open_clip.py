"""open_clip's own vision transformer."""

from typing import Any

from torch import nn

from ramen.encoder.fused.description import (
    FusedAttention,
    FusedBlock,
    FusedMlp,
    FusedTower,
    NotCoveredError,
)
from ramen.encoder.fused.heads import PoolingHead
from ramen.encoder.fused.readers.parts import (
    TowerNorms,
    activation_kind,
    layer_scale,
    patch_weight,
    require_linear,
    same,
    scaled,
    token_sum,
)


def read(module: Any, norms: TowerNorms) -> FusedTower | None:
    """The description of ``module``; None if it is something else."""
    if type(module).__name__ != "VisionTransformer" or not type(module).__module__.startswith("open_clip"):
        return None
    if module.attn_pool is not None or module.pool_type not in ("tok", "avg"):
        raise NotCoveredError("it pools by attention")
    weight = patch_weight(module.conv1)
    positions = module.positional_embedding
    resblocks = module.transformer.resblocks
    pools_class_token = module.pool_type == "tok"
    return FusedTower(
        patch=tuple(module.conv1.kernel_size),
        patch_weight=weight,
        prefix=1,
        positions=token_sum(
            [module.class_embedding[None]],
            positions,
            module.conv1.bias,
            weight,
            patches=len(positions) - 1,
            at_prefix=True,
        ),
        norm_before=norms.place_unless_identity("ln_pre", module.ln_pre),
        blocks=[
            _block(f"transformer.resblocks.{number}", block, norms) for number, block in enumerate(resblocks)
        ],
        heads=same("the number of heads", [block.attn.num_heads for block in resblocks]),
        first_token_only=pools_class_token,
        head=PoolingHead(
            norms.place("ln_post"), 1, pools_class_token, module.final_ln_after_pool, module.proj
        ),
    )


def _block(name: str, block: Any, norms: TowerNorms) -> FusedBlock:
    if type(block).__name__ != "ResidualAttentionBlock" or hasattr(block, "ln_1_kv"):
        raise NotCoveredError(f"its block {name} is a {type(block).__name__}")
    attention, mlp = block.attn, block.mlp
    require_linear(name, attention.out_proj, mlp.c_fc, mlp.c_proj)
    if (
        type(attention) is not nn.MultiheadAttention
        or attention.in_proj_weight is None
        or attention.bias_k is not None
        or attention.add_zero_attn
    ):
        raise NotCoveredError(f"its block {name} has an attention of its own kind")
    out_weight, out_bias = scaled(attention.out_proj, layer_scale(block.ls_1))
    proj_weight, proj_bias = scaled(mlp.c_proj, layer_scale(block.ls_2))
    return FusedBlock(
        FusedAttention(
            norm=norms.place(f"{name}.ln_1"),
            qkv_weight=attention.in_proj_weight,
            qkv_bias=attention.in_proj_bias,
            out_weight=out_weight,
            out_bias=out_bias,
        ),
        FusedMlp(
            norm=norms.place(f"{name}.ln_2"),
            fc_weight=mlp.c_fc.weight,
            fc_bias=mlp.c_fc.bias,
            activation=activation_kind(mlp.gelu),
            proj_weight=proj_weight,
            proj_bias=proj_bias,
        ),
    )
