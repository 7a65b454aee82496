"""The vision towers of transformers' CLIP-like models: CLIP, SigLIP, AltCLIP, ChineseCLIP, MetaCLIP.

Their towers have the same parts under the same names. One is found inside whatever module holds it, together
with the projection beside it.
"""

from typing import Any

from torch import Tensor, nn

from ramen.encoder.fused.description import (
    FusedAttention,
    FusedBlock,
    FusedMlp,
    FusedTower,
    NotCoveredError,
)
from ramen.encoder.fused.readers.parts import (
    TowerNorms,
    activation_kind,
    patch_weight,
    require_linear,
    same,
    stacked,
    token_sum,
)

_PARTS = ("embeddings", "encoder", "post_layernorm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def read(module: nn.Module, norms: TowerNorms) -> FusedTower | None:
    """The description of the tower in ``module``; None if it is something else."""
    towers = {name: part for name, part in module.named_modules() if _is_tower(part)}
    if len(towers) != 1:
        return None
    ((name, tower),) = towers.items()
    owner: Any = module.get_submodule(name.rpartition(".")[0]) if name else None
    projection = getattr(owner, "visual_projection", None)
    return _tower(tower, f"{name}." if name else "", norms, projection)


def _is_tower(module: nn.Module) -> bool:
    from_transformers = type(module).__module__.startswith("transformers.models.")
    return from_transformers and all(hasattr(module, part) for part in _PARTS)


def _tower(tower: Any, name: str, norms: TowerNorms, projection: nn.Module | None) -> FusedTower:
    embeddings = tower.embeddings
    weight = patch_weight(embeddings.patch_embedding)
    positions = embeddings.position_embedding.weight
    class_token = getattr(embeddings, "class_embedding", None)
    prefix = [] if class_token is None else [class_token.reshape(1, -1)]
    pools_by_attention = hasattr(tower, "head")
    if class_token is None and not pools_by_attention:
        raise NotCoveredError("it has neither a class token nor a pooling head")
    layers = tower.encoder.layers

    def head(tokens: Tensor) -> Tensor:
        if pools_by_attention:
            features: Tensor = tower.head(tower.post_layernorm(tokens))
        else:
            features = tower.post_layernorm(tokens[:, 0])
        return features if projection is None else projection(features)

    has_norm_before = hasattr(tower, "pre_layrnorm")
    return FusedTower(
        patch=tuple(embeddings.patch_embedding.kernel_size),
        patch_weight=weight,
        prefix=len(prefix),
        positions=token_sum(
            prefix,
            positions,
            embeddings.patch_embedding.bias,
            weight,
            patches=len(positions) - len(prefix),
            at_prefix=True,
        ),
        norm_before=norms.place(f"{name}pre_layrnorm") if has_norm_before else None,
        blocks=[
            _block(f"{name}encoder.layers.{number}", layer, norms) for number, layer in enumerate(layers)
        ],
        heads=same("the number of heads", [layer.self_attn.num_heads for layer in layers]),
        first_token_only=not pools_by_attention,
        head=norms.head(head, f"{name}post_layernorm", f"{name}head."),
    )


def _block(name: str, layer: Any, norms: TowerNorms) -> FusedBlock:
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    if not all(hasattr(attention, part) for part in _PROJECTIONS) or not hasattr(mlp, "activation_fn"):
        raise NotCoveredError(f"its block {name} is a {type(layer).__name__}")
    projections: list[Any] = [getattr(attention, part) for part in _PROJECTIONS]
    *qkv, out = projections
    require_linear(name, *projections, mlp.fc1, mlp.fc2)
    qkv_weight, qkv_bias = stacked(*qkv)
    return FusedBlock(
        FusedAttention(
            norm=norms.place(f"{name}.layer_norm1"),
            qkv_weight=qkv_weight,
            qkv_bias=qkv_bias,
            out_weight=out.weight,
            out_bias=out.bias,
        ),
        FusedMlp(
            norm=norms.place(f"{name}.layer_norm2"),
            fc_weight=mlp.fc1.weight,
            fc_bias=mlp.fc1.bias,
            activation=activation_kind(mlp.activation_fn),
            proj_weight=mlp.fc2.weight,
            proj_bias=mlp.fc2.bias,
        ),
    )
