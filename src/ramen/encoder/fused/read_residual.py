"""Residual networks with batch norm: open_clip's ``ModifiedResNet``, torchvision's and timm's ``ResNet``."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ramen.encoder.fused.residual import (
    Convolution,
    FusedNetwork,
    NormedConvolution,
    Pair,
    Pool,
    ResidualBlock,
    Step,
)
from ramen.encoder.fused.tower import NotCoveredError, TowerNorms
from ramen.encoder.norms import BatchNorm

Named = tuple[str, Any]  # a layer and its name

# The layers of a block in the order of its forward pass, up to the addition; those that are not there are
# passed over. A ReLU follows the addition.
_BLOCKS: dict[str, dict[str, tuple[str, ...]]] = {
    "open_clip.modified_resnet": {
        "Bottleneck": ("conv1", "bn1", "act1", "conv2", "bn2", "act2", "avgpool", "conv3", "bn3"),
    },
    "torchvision.models.resnet": {
        "Bottleneck": ("conv1", "bn1", "relu", "conv2", "bn2", "relu", "conv3", "bn3"),
        "BasicBlock": ("conv1", "bn1", "relu", "conv2", "bn2"),
    },
    "timm.models.resnet": {
        "Bottleneck": ("conv1", "bn1", "act1", "conv2", "bn2", "drop_block", "act2", "aa", "conv3", "bn3"),
        "BasicBlock": ("conv1", "bn1", "drop_block", "act1", "aa", "conv2", "bn2"),
    },
}
_LAST_ACTIVATIONS = {
    "open_clip.modified_resnet": {"Bottleneck": "act3"},
    "torchvision.models.resnet": {"Bottleneck": "relu", "BasicBlock": "relu"},
    "timm.models.resnet": {"Bottleneck": "act3", "BasicBlock": "act2"},
}
_STEMS = {
    ("ModifiedResNet", "open_clip.modified_resnet"): (
        *("conv1", "bn1", "act1", "conv2", "bn2", "act2", "conv3", "bn3", "act3", "avgpool"),
    ),
    ("ResNet", "torchvision.models.resnet"): ("conv1", "bn1", "relu", "maxpool"),
    ("ResNet", "timm.models.resnet"): ("conv1", "bn1", "act1", "maxpool"),
}


def read(module: Any, norms: TowerNorms) -> FusedNetwork | None:
    """The description of ``module``; None if it is something else."""
    if type(module).__name__ == "TimmModel" and _library(module.trunk) is not None:
        return _network(module.trunk, "trunk.", norms, lambda x: module.head(module.trunk.forward_head(x)))
    if _library(module) is None:
        return None
    return _network(module, "", norms, lambda x: _own_head(module, x))


def _library(module: object) -> str | None:
    kind = type(module).__name__, type(module).__module__
    return kind[1] if kind in _STEMS else None


def _own_head(module: Any, x: Tensor) -> Tensor:
    library = _library(module)
    if library == "open_clip.modified_resnet":
        features: Tensor = module.attnpool(x)
    elif library == "timm.models.resnet":
        features = module.forward_head(x)
    else:
        features = module.fc(torch.flatten(module.avgpool(x), 1))
    return features


def _network(network: Any, name: str, norms: TowerNorms, head: Any) -> FusedNetwork:
    library = _library(network)
    assert library is not None
    stem = _steps(_named(network, name, _STEMS[type(network).__name__, library]), norms)
    if not stem or not isinstance(stem[0], NormedConvolution):
        raise NotCoveredError("it does not begin with a convolution and its norm")
    outputs, inputs = stem[0].convolution.weight.shape[:2]
    if outputs == inputs:  # its output could not be told from images
        raise NotCoveredError(f"its first convolution makes as many channels as images have, {inputs}")
    blocks = [
        _block(f"{name}{layer}.{number}", block, library, norms)
        for layer in ("layer1", "layer2", "layer3", "layer4")
        for number, block in enumerate(getattr(network, layer))
    ]
    return FusedNetwork(stem, blocks, norms.head(head))


def _block(name: str, block: Any, library: str, norms: TowerNorms) -> ResidualBlock:
    kind = type(block).__name__
    if type(block).__module__ != library or kind not in _BLOCKS[library]:
        raise NotCoveredError(f"its block {name} is a {kind}")
    for part in ("se", "drop_path"):
        if getattr(block, part, None) is not None:
            raise NotCoveredError(f"its block {name} has a part {part}")
    activation = getattr(block, _LAST_ACTIVATIONS[library][kind])
    if type(activation) is not nn.ReLU:
        raise NotCoveredError(f"its block {name} ends with a {type(activation).__name__}")
    main = _steps(_named(block, f"{name}.", _BLOCKS[library][kind]), norms)
    if not main or not isinstance(main[-1], NormedConvolution) or main[-1].relu:
        raise NotCoveredError(f"its block {name} does not end with a norm")
    shortcut = block.downsample
    return ResidualBlock(main, [] if shortcut is None else _steps([(f"{name}.downsample", shortcut)], norms))


def _named(parent: Any, prefix: str, names: Sequence[str]) -> list[Named]:
    return [(f"{prefix}{name}", getattr(parent, name)) for name in names if hasattr(parent, name)]


def _layers(named: Sequence[Named]) -> Iterator[Named]:
    """All layers in their order, those inside a sequence too, without those that do nothing."""
    for name, layer in named:
        if type(layer) is nn.Sequential:
            yield from _layers([(f"{name}.{own}", child) for own, child in layer.named_children()])
        elif not isinstance(layer, nn.Identity):
            yield name, layer


def _steps(named: Sequence[Named], norms: TowerNorms) -> list[Step]:
    """Convolutions with their norm and ReLU, and pools."""
    steps: list[Step] = []
    convolution: Convolution | None = None  # that still has no norm
    for name, layer in _layers(named):
        if convolution is not None and isinstance(layer, BatchNorm):
            inside = layer.activation
            if not (inside is None or type(inside) in (nn.ReLU, nn.Identity)):
                raise NotCoveredError(f"its norm layer {name} has a {type(inside).__name__} inside")
            norm = norms.channel_norm(name, layer, convolution.weight.dtype)
            steps.append(NormedConvolution(convolution, norm, relu=type(inside) is nn.ReLU))
            convolution = None
        elif convolution is not None:
            raise NotCoveredError(f"a {type(layer).__name__}, {name}, follows a convolution")
        elif type(layer) is nn.Conv2d:
            convolution = _convolution(name, layer)
        elif type(layer) is nn.ReLU:
            last = steps[-1] if steps else None
            if not isinstance(last, NormedConvolution):
                raise NotCoveredError(f"its activation {name} does not follow a norm")
            steps[-1] = NormedConvolution(last.convolution, last.norm, relu=True)
        elif (pool := _pool(layer)) is not None:
            steps += [pool] if pool != Pool((1, 1), (1, 1), (0, 0)) else []
        else:
            raise NotCoveredError(f"its part {name} is a {type(layer).__name__}")
    if convolution is not None:
        raise NotCoveredError("one of its convolutions has no norm")
    return steps


def _convolution(name: str, layer: nn.Conv2d) -> Convolution:
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        raise NotCoveredError(f"its convolution {name} pads by {layer.padding!r}, {layer.padding_mode}")
    weight = layer.weight.detach().contiguous(memory_format=torch.channels_last)
    bias = None if layer.bias is None else layer.bias.detach()
    return Convolution(
        weight, bias, _pair(layer.stride), _pair(layer.padding), _pair(layer.dilation), layer.groups
    )


def _pool(layer: Any) -> Pool | None:
    if type(layer) is nn.MaxPool2d and _pair(layer.dilation) == (1, 1) and not layer.return_indices:
        sizes = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
        return Pool(*sizes, ceil_mode=layer.ceil_mode, largest=True)
    if type(layer) is nn.AvgPool2d and layer.divisor_override is None:
        sizes = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)
        # how padding counts makes a difference only if there is some
        counts = layer.count_include_pad if sizes[2] != (0, 0) or layer.ceil_mode else True
        single = sizes[:2] == ((1, 1), (1, 1))
        return Pool(*sizes, ceil_mode=layer.ceil_mode and not single, counts_padding=counts or single)
    return None


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
