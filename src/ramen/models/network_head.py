"""A classification network as an image encoder with class embeddings: its last linear layer gives them.

A network's logits are products ``w f + b`` of features, which are not of unit length. Its features are
extended by a constant 1 and its class vectors by their bias, so that a logit is one product. An embedding is
the extended features divided by their length; as they ended with 1, its last number is the inverse of that
length. So the unit embeddings, which are compared with each other, hold all that the network's own logits
need: a logit is the product of embedding and class vector, divided by the embedding's last number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.norm_layers import private_copy
from ramen.encoder.whole_models import image_tower

_SEED = 0


@dataclass(frozen=True)
class NetworkParts:
    """What a classifier is made of.

    Attributes:
        features: The network without its last layer; features end with a constant 1.
        class_embeddings: Unit vectors ``(C, d + 1)``.
        class_lengths: The lengths that the vectors had.
        logit_scale: What logits are, on average over the classes, times the cosine: for methods that work
            with cosines. Measured with random images.
        classes: Names, if the network knows them.
    """

    features: nn.Module
    class_embeddings: Tensor
    class_lengths: Tensor
    logit_scale: float
    classes: tuple[str, ...] | None


class AppendOne(nn.Module):
    """In place of the last layer: features ``(B, d)`` with a constant 1 behind them."""

    def forward(self, features: Tensor) -> Tensor:
        """``(B, d + 1)``."""
        return torch.cat([features, torch.ones_like(features[:, :1])], dim=1)


class LogitsOf(nn.Module):
    """A network of transformers, whose output is an object with logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """What is in the place of the logits."""
        logits: Tensor = self.network(images).logits
        return logits


@torch.no_grad()
def take_head(model: Any, image_size: tuple[int, int]) -> NetworkParts:
    """The parts of a network that ends with a linear layer.

    Args:
        model: Maps images ``(B, 3, H, W)`` to logits ``(B, C)``, or to an object with such ``logits``. It is
            not changed.
        image_size: Height and width of its images.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    network = private_copy(image_tower(model))
    images = _noise(network, image_size)
    name, head, features = _last_layer(network, images)
    vectors = head.weight.detach()
    bias = vectors.new_zeros(len(vectors)) if head.bias is None else head.bias.detach()
    vectors = torch.cat([vectors, bias[:, None]], dim=1).to(torch.promote_types(vectors.dtype, torch.float32))
    lengths = vectors.norm(dim=1)
    if (lengths == 0).any():
        raise ValueError(f"model: the last layer {name!r} has no weights for some classes: they are all zero")
    typical = AppendOne()(features).float().norm(dim=1).mean()
    if name:
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, AppendOne())
    else:
        raise ValueError("model must have layers before its last linear layer, got a linear layer alone")
    returns_tensor = isinstance(network(images), Tensor)
    return NetworkParts(
        network if returns_tensor else LogitsOf(network),
        F.normalize(vectors, dim=1),
        lengths,
        float(lengths.mean() * typical),
        _names(model, len(vectors)),
    )


def _noise(network: nn.Module, image_size: tuple[int, int]) -> Tensor:
    weight = next((p for p in network.parameters() if p.is_floating_point()), None)
    if weight is None:
        raise ValueError("model must have floating-point parameters, got none")
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(2, 3, *image_size, generator=generator).to(weight.device, weight.dtype)


def _last_layer(network: nn.Module, images: Tensor) -> tuple[str, nn.Linear, Tensor]:
    """Name, layer and input of the linear layer whose output is the network's."""
    calls: list[tuple[str, nn.Linear, Tensor, Tensor]] = []

    def note(name: str) -> Any:
        def hook(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            calls.append((name, layer, inputs[0], output))

        return hook

    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        output = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        came = tuple(logits.shape) if isinstance(logits, Tensor) else type(output).__name__
        raise ValueError(f"model must return logits of shape (images, classes), got {came}")
    for name, layer, given, found in calls:
        if given.ndim == 2 and found.shape == logits.shape and torch.equal(found, logits):
            if sum(called == name for called, *_ in calls) > 1:
                raise ValueError(f"model must call its last layer {name!r} once per image")
            return name, layer, given
    kinds = f"its last linear layer is {calls[-1][0]!r}" if calls else "it has no linear layer"
    raise ValueError(
        f"model must end with a linear layer whose output is its own: that of {type(network).__name__} is "
        f"not the output of one ({kinds}). Wrap it by hand: ZeroShotClassifier(encoder, class_embeddings)"
    )


def _names(model: Any, count: int) -> tuple[str, ...] | None:
    """Those that a configuration of transformers has."""
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, dict) or sorted(labels) != list(range(count)):
        return None
    names: Sequence[str] = [str(labels[number]) for number in range(count)]
    invented = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return None if invented else tuple(names)
