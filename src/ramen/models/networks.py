"""Ordinary classification networks: loading, head, preprocessing; class embeddings from labelled images."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from ramen.encoder.norms import private_copy
from ramen.encoder.towers import image_tower
from ramen.images.preprocess import Preprocess
from ramen.models.checkpoints import find_hub_file, read_weights
from ramen.utils.checks import integer, nearest, one_line

_FILES = ("model.safetensors", "pytorch_model.bin")


def load_timm(
    name: str,
    pretrained: bool | str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None,
    *,
    keep_head: bool,
    **options: Any,
) -> nn.Module:
    """A model of timm in eval mode; without its head it ends with its pooled features.

    ``pretrained`` is True for the tag's own weights, False for random ones, or a checkpoint file; ``options``
    are those of ``timm.create_model``.
    """
    import timm

    if not isinstance(name, str):
        raise TypeError(f"name must be the name of a model of timm, got {type(name).__name__}")
    if not timm.is_model(name):
        raise ValueError(f"name: timm has no model {name!r}{nearest(name, timm.list_models())}")
    if not keep_head:
        options["num_classes"] = 0
    if pretrained is False:
        random: nn.Module = timm.create_model(name, pretrained=False, **options)
        return random.eval()
    weights = _weights(name, pretrained, cache_dir)
    try:
        # timm renames the weights of other codes, and drops those of the head if it is not kept
        model: nn.Module = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay={"state_dict": weights}, **options
        )
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"pretrained: the weights do not fit {name}: {one_line(error)}") from error
    return model.eval()


def _weights(
    name: str, pretrained: bool | str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None
) -> dict[str, Tensor]:
    import timm

    if not isinstance(pretrained, bool):
        return read_weights(Path(os.fspath(pretrained)).expanduser())
    config = timm.models.get_pretrained_cfg(name)
    repository = getattr(config, "hf_hub_id", None)
    if not repository:
        raise ValueError(
            f"pretrained: timm knows no weights of {name} on the Hub: name a tag ({name}.TAG), or give a file"
        )
    file = getattr(config, "hf_hub_filename", None)
    return read_weights(find_hub_file(repository, (file,) if file else _FILES, cache_dir))


_SEED = 0


@dataclass(frozen=True)
class NetworkParts:
    """What a classifier is made of."""

    features: nn.Module  # the network without its last layer; features end with a constant 1
    class_embeddings: Tensor  # unit vectors ``(C, d + 1)``
    class_lengths: Tensor  # the lengths that the vectors had
    # what logits are, on average over the classes, times the cosine: for methods that work with cosines.
    # Measured with random images
    logit_scale: float
    classes: tuple[str, ...] | None  # names, if the network knows them


class AppendOne(nn.Module):
    """In place of the last layer: features ``(B, d)`` with a constant 1 behind them."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features, torch.ones_like(features[:, :1])], dim=1)


class LogitsOf(nn.Module):
    """A network of transformers, whose output is an object with logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
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
    returns_tensor, names = isinstance(network(images), Tensor), known_names(model)
    return NetworkParts(
        network if returns_tensor else LogitsOf(network),
        F.normalize(vectors, dim=1),
        lengths,
        float(lengths.mean() * typical),
        names if names is not None and len(names) == len(vectors) else None,
    )


def _noise(network: nn.Module, image_size: tuple[int, int]) -> Tensor:
    weight = next((p for p in network.parameters() if p.is_floating_point()), None)
    if weight is None:
        raise ValueError("model must have floating-point parameters, got none")
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(2, 3, *image_size, generator=generator).to(weight.device, weight.dtype)


def _last_layer(network: nn.Module, images: Tensor) -> tuple[str, nn.Linear, Tensor]:
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


def known_names(model: Any) -> tuple[str, ...] | None:
    """The class names that a configuration of transformers has."""
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, dict) or sorted(labels) != list(range(len(labels))):
        return None
    names: Sequence[str] = [str(labels[number]) for number in range(len(labels))]
    invented = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return None if invented else tuple(names)


def as_preprocess(given: Any, model: Any) -> Preprocess | None:
    """A ``Preprocess``, also from transforms of torchvision or an image processor of transformers.

    If none is given, what timm says of a network of its own; None for others.
    """
    if given is None:
        config = getattr(model, "pretrained_cfg", None)
        return _of_timm(model) if isinstance(config, dict) and "input_size" in config else None
    if isinstance(given, Preprocess):
        return given
    if type(given).__module__.startswith("torchvision.") and hasattr(given, "resize_size"):
        return _of_torchvision(given)
    if hasattr(given, "image_mean") and hasattr(given, "do_resize"):
        from ramen.models.transformers import image_preprocess

        return image_preprocess(given)
    raise TypeError(
        "preprocess must be a ramen.Preprocess, the transforms() of torchvision's weights or an image "
        f"processor of transformers, got {type(given).__name__}"
    )


def _of_torchvision(given: Any) -> Preprocess:
    (size,), (resize_to,) = given.crop_size, given.resize_size
    return Preprocess(
        size,
        tuple(given.mean),
        tuple(given.std),
        interpolation=str(given.interpolation.value),
        resize_to=resize_to,
    )


def _of_timm(model: Any) -> Preprocess:
    from timm.data.config import resolve_model_data_config

    config = resolve_model_data_config(model)
    _, height, width = config["input_size"]
    mode, share = config["crop_mode"], config["crop_pct"]
    if mode == "squash" and share == 1:
        return _timm_preprocess(config, (height, width), resize_mode="squash")
    if mode != "center" or height != width:
        raise ValueError(
            f"preprocess must be given: timm crops images of this model by {mode!r} at {share:g}, to "
            f"{height} x {width}"
        )
    return _timm_preprocess(config, (height, width), resize_to=math.floor(height / share))


def _timm_preprocess(config: dict[str, Any], size: tuple[int, int], **options: Any) -> Preprocess:
    return Preprocess(
        size, tuple(config["mean"]), tuple(config["std"]), interpolation=config["interpolation"], **options
    )


DEFAULT_SCALE = 100.0
_SCALES = tuple(float(2 ** (step / 4)) for step in range(0, 33))  # 1 to 256


@torch.no_grad()
def class_means(
    encoder: AffineEncoder,
    images: Any,
    labels: Tensor | Sequence[int],
    preprocess: Preprocess | None,
    batch_size: int,
) -> tuple[Tensor, float]:
    """The unit mean of each class's unit embeddings, and the logit scale that suits these vectors.

    See ``ZeroShotClassifier.from_prototypes``.
    """
    integer("batch_size", batch_size, 1)
    embeddings = _embeddings(encoder, images, preprocess, batch_size)
    numbers = _check_labels(labels, len(embeddings))
    if not embeddings.isfinite().all():
        raise ValueError("images must have finite embeddings, got some that are not")
    count = int(numbers.max()) + 1
    members = F.one_hot(numbers, count).to(embeddings)  # (N, C)
    sums = members.T @ embeddings
    if (sums.norm(dim=1) < 1e-6 * members.sum(0)).any():
        raise ValueError("images: the embeddings of a class must not cancel each other")
    return F.normalize(sums, dim=1), _best_scale(embeddings, members, sums, numbers)


def _embeddings(
    encoder: AffineEncoder, images: Any, preprocess: Preprocess | None, batch_size: int
) -> Tensor:
    if isinstance(images, Tensor) and images.is_floating_point():
        parts = [encoder(part).cpu() for part in images.split(batch_size)]
    elif preprocess is None:
        raise ValueError(
            "preprocess must be given if images are not a float tensor (N, 3, H, W) that is preprocessed, "
            f"got {type(images).__name__}"
        )
    else:
        sources = list(images)
        starts = range(0, len(sources), batch_size)
        parts = [encoder(preprocess(sources[i : i + batch_size])).cpu() for i in starts]
    if not parts or not len(parts[0]):
        raise ValueError("images must hold at least one image, got none")
    return torch.cat(parts)


def _check_labels(labels: Tensor | Sequence[int], count: int) -> Tensor:
    numbers = torch.as_tensor(labels).cpu()
    if numbers.shape != (count,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise ValueError(
            f"labels must be a class number of each of the {count} images, got {numbers.dtype} of shape "
            f"{tuple(numbers.shape)}"
        )
    if int(numbers.min()) < 0:
        raise ValueError(f"labels must be at least 0, got {int(numbers.min())}")
    missing = sorted(set(range(int(numbers.max()) + 1)) - set(numbers.tolist()))
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ValueError(f"labels must name every class up to the largest number, got none of {listed}")
    return numbers.long()


def _best_scale(embeddings: Tensor, members: Tensor, sums: Tensor, labels: Tensor) -> float:
    """The scale with the lowest cross entropy of images whose own classes' means do without them."""
    several = members.sum(0)[labels] > 1
    if not several.any() or sums.shape[0] == 1:
        return DEFAULT_SCALE
    cosines = embeddings @ F.normalize(sums, dim=1).T
    without = F.normalize(sums[labels] - embeddings, dim=1)
    own = (embeddings * without).sum(1)
    cosines[torch.arange(len(labels)), labels] = own
    losses = [float(F.cross_entropy(scale * cosines[several], labels[several])) for scale in _SCALES]
    return _SCALES[losses.index(min(losses))]
