"""Parts of towers that several readers read."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.fused.description import NotCoveredError
from ramen.encoder.fused.heads import ModuleHead
from ramen.encoder.norm_layers import BatchNorm, LayerNorm, Norm
from ramen.kernels.channel_norm import ChannelNorm
from ramen.kernels.norm import AffinePlace

_LINEAR = (nn.Linear, type(nn.MultiheadAttention(1, 1).out_proj))


class TowerNorms:
    """The norm layers of a tower, of which each must be found in its place."""

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

    def channel_norm(self, name: str, layer: object, dtype: torch.dtype) -> ChannelNorm:
        """Of a batch norm with the statistics of its training; an activation inside it is the caller's.

        Args:
            name: Its name.
            layer: The layer itself, which must be the one of that name.
            dtype: Of the encoder.
        """
        found = self._norms.get(name)
        if found is not layer or not isinstance(found, BatchNorm):
            raise NotCoveredError(f"its norm layer {name} is not a batch norm with running statistics")
        self._left.discard(name)
        place = self._places[name]
        exact = torch.promote_types(dtype, torch.float32)
        mean, variance = found.running_mean.to(exact), found.running_var.to(exact)
        return ChannelNorm(place, mean, torch.rsqrt(variance + place.eps))

    def place_unless_identity(self, name: str, layer: object) -> AffinePlace | None:
        """Of a layer norm, if ``layer`` is not the identity."""
        return None if isinstance(layer, nn.Identity) else self.place(name)

    def head(self, function: Callable[[Tensor], Tensor], *prefixes: str) -> ModuleHead:
        """What follows the blocks, computed by the module: all norm layers with these names belong to it."""
        names = [name for name in sorted(self._left) if name.startswith(prefixes)]
        self._left -= set(names)
        return ModuleHead(function, {name: self._norms[name] for name in names}, self._places)

    def require_all_used(self) -> None:
        """Raise NotCoveredError if a norm layer is in none of the places that were read."""
        if self._left:
            raise NotCoveredError(
                f"it has more norm layers than a plain transformer: {', '.join(sorted(self._left))}"
            )


def patch_weight(convolution: Any) -> Tensor:
    """The weights of a convolution that embeds patches, as the passes take them."""
    if type(convolution) is not nn.Conv2d or convolution.padding not in ((0, 0), "valid", 0):
        raise NotCoveredError("it does not embed its patches by a plain convolution")
    if convolution.stride != convolution.kernel_size:
        raise NotCoveredError("its patches overlap, or have gaps between them")
    if convolution.groups != 1 or convolution.dilation != (1, 1):
        raise NotCoveredError("it does not embed its patches by a plain convolution")
    weight = convolution.weight.flatten(1)
    return F.pad(weight, (0, -weight.shape[1] % 8))  # a multiple of eight makes products fast


def token_sum(
    prefix: list[Tensor],
    positions: Tensor | None,
    patch_bias: Tensor | None,
    like: Tensor,
    *,
    patches: int,
    at_prefix: bool,
) -> Tensor:
    """What is added to every token ``(T, D)``, in the type of ``like``.

    Args:
        prefix: The learned tokens before the patches, ``(n, D)`` each.
        positions: ``(T, D)`` or, without those of the prefix, ``(patches, D)``.
        patch_bias: Of the convolution that embeds patches.
        like: Has the type and the width.
        patches: Their number.
        at_prefix: Whether ``positions`` has those of the prefix.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    before = sum(len(tokens) for tokens in prefix)
    total = torch.zeros(before + patches, like.shape[0], dtype=wide, device=like.device)
    if prefix:
        total[:before] += torch.cat(prefix).to(wide)
    if positions is not None:
        total[0 if at_prefix else before :] += positions.to(wide)
    if patch_bias is not None:
        total[before:] += patch_bias.to(wide)
    return total.to(like.dtype)


def require_linear(name: str, *layers: object) -> None:
    """Raise NotCoveredError unless these parts of the block ``name`` are plain linear layers."""
    for layer in layers:
        if type(layer) not in _LINEAR:
            raise NotCoveredError(f"its block {name} has a {type(layer).__name__}, not a plain linear layer")


def stacked(*layers: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of linear layers with the same input, one above the other; a missing bias is zero."""
    weight = torch.cat([layer.weight for layer in layers])
    if all(layer.bias is None for layer in layers):
        return weight, None
    biases = [
        layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers
    ]
    return weight, torch.cat(biases)


def scaled(linear: Any, gamma: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a linear layer followed by a learned scale per channel, if there is one.

    A learned scale after a product is a scale of the product's weights.
    """
    if gamma is None:
        return linear.weight, linear.bias
    wide = torch.promote_types(linear.weight.dtype, torch.float32)
    weight = (linear.weight.to(wide) * gamma.to(wide)[:, None]).to(linear.weight.dtype)
    bias = None if linear.bias is None else (linear.bias.to(wide) * gamma.to(wide)).to(linear.bias.dtype)
    return weight, bias


def layer_scale(layer: Any) -> Tensor | None:
    """The learned scale of a layer scale; None of the identity."""
    if isinstance(layer, nn.Identity):
        return None
    for name in ("gamma", "lambda1"):
        gamma = getattr(layer, name, None)
        if type(layer).__name__.endswith("LayerScale") and isinstance(gamma, Tensor):
            return gamma
    raise NotCoveredError(f"a block ends in a {type(layer).__name__}")


def activation_kind(layer: object) -> str:
    """The kind of a layer's activation, as ``ramen.kernels.activation`` names it."""
    name = type(layer).__name__
    if isinstance(layer, nn.GELU):
        return "gelu_tanh" if layer.approximate == "tanh" else "gelu"
    kinds = {
        "QuickGELU": "quick_gelu",
        "QuickGELUActivation": "quick_gelu",
        "GELUActivation": "gelu",
        "GELUTanh": "gelu_tanh",
        "PytorchGELUTanh": "gelu_tanh",
    }
    if name not in kinds:
        raise NotCoveredError(f"its activation is {name}")
    return kinds[name]


def same(name: str, values: list[Any]) -> Any:
    """The value that all blocks have in common."""
    if any(value != values[0] for value in values):
        raise NotCoveredError(f"its blocks differ in {name}")
    return values[0]
