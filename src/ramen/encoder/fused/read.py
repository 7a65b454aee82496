"""Reads vision transformers of open_clip, timm and transformers: a table of names for each, one reader.

A table says where a library keeps the parts of its towers. What they do is not looked at: the encoder
compares the passes that are made of them with the module's own, features and gradients. Only what such a
comparison could miss is refused by name: hooks, parametrizations, and linear layers that add something small.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ramen.encoder.fused import read_residual
from ramen.encoder.fused.residual import FusedResidual
from ramen.encoder.fused.tower import (
    FusedAttention,
    FusedBlock,
    FusedMlp,
    FusedPasses,
    FusedTower,
    HeadFunction,
    NotCoveredError,
    Rotation,
    TowerNorms,
    open_clip_head,
    timm_head,
    transformers_head,
)
from ramen.encoder.fused.transformer import FusedTransformer
from ramen.encoder.norms import Norm
from ramen.kernels import activation
from ramen.kernels.norm import AffinePlace

_LINEAR = (nn.Linear, type(nn.MultiheadAttention(1, 1).out_proj))
_DIFFERENT = 1e-6  # activations that are farther apart are not the same


@dataclass(frozen=True)
class Library:
    """Where a library's towers have their parts. Of several alternatives, the first that is there counts."""

    patches: str  # the convolution that embeds patches
    prefix: tuple[str, ...]  # learned tokens before the patches
    positions: str  # what is added to every token
    norm_before: str  # the norm before the blocks
    blocks: str  # the list of blocks; what follows is within a block
    norm1: str  # before the attention
    # alternatives of linear layers, or one attention of torch, for queries, keys and values
    qkv: tuple[tuple[str, ...], ...]
    out: str  # the last product of the attention
    scale1: tuple[str, ...]  # the learned scale after it
    norm2: str  # before the MLP
    # alternatives of linear layers before the activation; with a gate twice as wide
    fc: tuple[tuple[str, ...], ...]
    act: str  # the activation
    proj: str  # the linear layer after it
    scale2: tuple[str, ...]  # the learned scale after that
    heads: str  # the number of heads
    # for a tower and what contains it: the features of the tokens after the last block, and whether these
    # need the first token alone
    head: "Callable[[Any, Any], tuple[HeadFunction, bool]]"
    patch_count: str = ""  # their number, if it does not follow from the positions
    # norms of queries, of keys, between the heads and ``out``, and before ``proj``
    inner: tuple[str, str, str, str] = ("", "", "", "")


LIBRARIES = {
    "open_clip": Library(
        patches="conv1",
        prefix=("class_embedding",),
        positions="positional_embedding",
        norm_before="ln_pre",
        blocks="transformer.resblocks",
        norm1="ln_1",
        qkv=(("attn",),),
        out="attn.out_proj",
        scale1=("ls_1.gamma",),
        norm2="ln_2",
        fc=(("mlp.c_fc",),),
        act="mlp.gelu",
        proj="mlp.c_proj",
        scale2=("ls_2.gamma",),
        heads="attn.num_heads",
        head=open_clip_head,
    ),
    "timm": Library(
        patches="patch_embed.proj",
        patch_count="patch_embed.num_patches",
        prefix=("cls_token", "reg_token"),
        positions="pos_embed",
        norm_before="norm_pre",
        blocks="blocks",
        norm1="norm1",
        qkv=(("attn.qkv",), ("attn.q_proj", "attn.k_proj", "attn.v_proj")),
        out="attn.proj",
        scale1=("ls1.gamma", "gamma_1"),
        norm2="norm2",
        fc=(("mlp.fc1",), ("mlp.fc1_g", "mlp.fc1_x")),
        act="mlp.act",
        proj="mlp.fc2",
        scale2=("ls2.gamma", "gamma_2"),
        heads="attn.num_heads",
        head=timm_head,
        inner=("attn.q_norm", "attn.k_norm", "attn.norm", "mlp.norm"),
    ),
    "transformers": Library(
        patches="embeddings.patch_embedding",
        prefix=("embeddings.class_embedding",),
        positions="embeddings.position_embedding.weight",
        norm_before="pre_layrnorm",
        blocks="encoder.layers",
        norm1="layer_norm1",
        qkv=(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),),
        out="self_attn.out_proj",
        scale1=(),
        norm2="layer_norm2",
        fc=(("mlp.fc1",),),
        act="mlp.activation_fn",
        proj="mlp.fc2",
        scale2=(),
        heads="self_attn.num_heads",
        head=transformers_head,
    ),
}


# -- the reader -------------------------------------------------------------------------------------


def read_passes(
    module: nn.Module, norms: Mapping[str, Norm], places: Mapping[str, AffinePlace]
) -> FusedPasses:
    """The fused passes of a tower whose norm layers are replaced, still to be compared with the module's own.

    NotCoveredError if the tower has a part that they do not cover.
    """
    for name, part in module.named_modules():
        # the fused passes would not call them
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) or is_parametrized(part):
            raise NotCoveredError(f"its part {name!r} has hooks, a parametrization or a forward of its own")
    tower_norms = TowerNorms(norms, places)
    passes: FusedPasses
    if (network := read_residual.read(module, tower_norms)) is not None:
        passes = FusedResidual(network)
    else:
        passes = FusedTransformer(_read(module, tower_norms))
    tower_norms.require_all_used()
    return passes


def _read(module: nn.Module, norms: TowerNorms) -> FusedTower:
    for name, tower in module.named_modules():
        for library in LIBRARIES.values():
            if _find(tower, library.patches) is not None and _find(tower, library.blocks) is not None:
                parent = module.get_submodule(name.rpartition(".")[0]) if name else None
                return _tower(library, parent, tower, f"{name}." if name else "", norms)
    raise NotCoveredError(
        f"it is a {type(module).__name__}; covered are transformers of open_clip, timm and transformers, and "
        "ResNets of open_clip, torchvision and timm"
    )


def _tower(library: Library, parent: Any, tower: Any, name: str, norms: TowerNorms) -> FusedTower:
    convolution: Any = _part(tower, library.patches)
    weight = _patch_weight(convolution)
    found = [_find(tower, part) for part in library.prefix]
    prefix = [token.reshape(-1, len(weight)) for token in found if token is not None]
    before = sum(map(len, prefix))
    blocks = list(_part(tower, library.blocks))
    heads = {_part(block, library.heads) for block in blocks}
    if len(heads) != 1:
        raise NotCoveredError("its blocks differ in the number of heads")
    described = [
        _block(library, block, f"{name}{library.blocks}.{number}", norms)
        for number, block in enumerate(blocks)
    ]
    norm_before = norms.place_if_there(f"{name}{library.norm_before}")
    head, first_token_only = library.head(parent, tower)
    return FusedTower(
        patch=tuple(convolution.kernel_size),
        patch_weight=weight,
        prefix=before,
        positions=_token_sum(prefix, _positions(library, tower, before, weight), convolution.bias, weight),
        norm_before=norm_before,
        blocks=described,
        heads=heads.pop(),
        first_token_only=first_token_only,
        rotation=_rotation(tower, blocks, weight),
        head=norms.head(head),
    )


def _block(library: Library, block: Any, name: str, norms: TowerNorms) -> FusedBlock:
    qkv_weight, qkv_bias = _products(block, name, library.qkv)
    out_weight, out_bias = _scaled(_products(block, name, ((library.out,),)), block, library.scale1)
    fc_weight, fc_bias = _products(block, name, library.fc)
    proj_weight, proj_bias = _scaled(_products(block, name, ((library.proj,),)), block, library.scale2)
    if qkv_weight.shape != (3 * len(out_weight), len(out_weight)):
        raise NotCoveredError(f"its block {name} has heads of a width of their own")
    gated = len(fc_weight) == 2 * proj_weight.shape[1]
    query, key, attended, hidden = (
        norms.place_if_there(f"{name}.{part}") if part else None for part in library.inner
    )
    return FusedBlock(
        FusedAttention(
            norm=norms.place(f"{name}.{library.norm1}"),
            qkv_weight=qkv_weight,
            qkv_bias=qkv_bias,
            out_weight=out_weight,
            out_bias=out_bias,
            query_norm=query,
            key_norm=key,
            inner_norm=attended,
        ),
        FusedMlp(
            norm=norms.place(f"{name}.{library.norm2}"),
            fc_weight=fc_weight,
            fc_bias=fc_bias,
            activation="swiglu" if gated else _activation(_part(block, library.act), proj_weight.device),
            proj_weight=proj_weight,
            proj_bias=proj_bias,
            inner_norm=hidden,
        ),
    )


# -- parts ------------------------------------------------------------------------------------------


def _find(module: Any, path: str) -> Any:
    """What is at a dotted path; None if nothing is."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _part(module: Any, path: str) -> Any:
    found = _find(module, path)
    if found is None:
        raise NotCoveredError(f"its {type(module).__name__} has no part {path}")
    return found


def _products(
    block: Any, name: str, alternatives: tuple[tuple[str, ...], ...]
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of linear layers with the same input, one above the other; a missing bias is zero."""
    there = [names for names in alternatives if all(_find(block, part) is not None for part in names)]
    if not there:
        raise NotCoveredError(f"its block {name}, a {type(block).__name__}, has no part {alternatives[0][0]}")
    parts = [_find(block, part) for part in there[0]]
    if type(parts[0]) is nn.MultiheadAttention and parts[0].in_proj_weight is not None:
        return parts[0].in_proj_weight, parts[0].in_proj_bias
    for part in parts:
        if type(part) not in _LINEAR:
            raise NotCoveredError(f"its block {name} has a {type(part).__name__}, not a plain linear layer")
    weight = torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight
    own = [_find(block, f"attn.{kind}_bias") for kind in "qkv"]  # of timm's EVA, beside the layer
    biases = own if own[0] is not None and parts[0].bias is None else [part.bias for part in parts]
    if all(bias is None for bias in biases):
        return weight, None
    width = len(weight) // len(biases)
    return weight, torch.cat([weight.new_zeros(width) if bias is None else bias for bias in biases])


def _scaled(
    product: tuple[Tensor, Tensor | None], block: Any, names: tuple[str, ...]
) -> tuple[Tensor, Tensor | None]:
    """A learned scale after a product is a scale of the product's weights."""
    weight, bias = product
    gamma = next((found for name in names if (found := _find(block, name)) is not None), None)
    if gamma is None:
        return product
    wide = gamma.to(torch.promote_types(weight.dtype, torch.float32))
    scaled = (weight.to(wide) * wide[:, None]).to(weight.dtype)
    return scaled, None if bias is None else (bias.to(wide) * wide).to(bias.dtype)


def _activation(layer: Any, device: torch.device) -> str:
    """The kind that has the same values."""
    x = torch.linspace(-8, 8, 65, dtype=torch.float64, device=device)
    values = layer(x)
    for kind in activation.KINDS:
        if float((activation.forward(x, kind) - values).abs().max()) < _DIFFERENT:
            return kind
    raise NotCoveredError(f"its activation is {type(layer).__name__}")


def _patch_weight(convolution: Any) -> Tensor:
    """The weights of a convolution that embeds patches, as the passes take them."""
    if type(convolution) is not nn.Conv2d or convolution.stride != convolution.kernel_size:
        raise NotCoveredError("it does not embed its patches by a plain convolution of separate patches")
    weight = convolution.weight.flatten(1)
    return F.pad(weight, (0, -weight.shape[1] % 8))  # a multiple of eight makes products fast


def _positions(library: Library, tower: Any, prefix: int, like: Tensor) -> Tensor:
    """What is added to every token beside itself, ``(T, D)``."""
    found = _find(tower, library.positions)
    known = None if found is None else found.reshape(-1, len(like))
    if library.patch_count:
        patches = int(_part(tower, library.patch_count))
    elif known is not None:
        patches = len(known) - prefix
    else:
        raise NotCoveredError("it does not say how many patches it takes")
    if known is None:
        return like.new_zeros(prefix + patches, len(like))
    return F.pad(known, (0, 0, prefix, 0)) if len(known) == patches else known


def _token_sum(prefix: list[Tensor], positions: Tensor, patch_bias: Tensor | None, like: Tensor) -> Tensor:
    """What is added to every token ``(T, D)``: itself, its position, and the bias of patches."""
    total = positions.to(torch.promote_types(like.dtype, torch.float32)).clone()
    before = sum(map(len, prefix))
    if prefix:
        total[:before] += torch.cat(prefix).to(total)
    if patch_bias is not None:
        total[before:] += patch_bias.to(total)
    return total.to(like.dtype)


def _rotation(tower: Any, blocks: list[Any], like: Tensor) -> Rotation | None:
    """Rotary positions, as timm's EVA and DINOv3 have them."""
    rope = getattr(tower, "rope", None)
    if rope is None:
        return None
    shape = tower.patch_embed.grid_size
    angles = rope.get_embed(shape=shape) if tower.dynamic_img_size else rope.get_embed()
    if getattr(angles, "ndim", 0) != 2:
        raise NotCoveredError("its rotary positions differ from block to block or from head to head")
    attention = blocks[0].attn
    sin, cos = angles.to(torch.promote_types(like.dtype, torch.float32)).to(like.device).chunk(2, -1)
    neighbours = not getattr(attention, "rotate_half", False)
    return Rotation(cos.contiguous(), sin.contiguous(), neighbours, attention.num_prefix_tokens)
