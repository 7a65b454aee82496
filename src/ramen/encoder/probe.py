"""How an encoder handles its images, found out with two random ones.

One shape does not show whether an axis of a norm layer's input holds tokens or images (50 tokens, 50 images).
So the encoder is called with one image and with two, and the axis that doubles holds the images. The same
images show that the wrapped encoder equals the original, and that it treats each image of a batch separately.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ramen.encoder.norms import Norm, private_copy

Forward = Callable[[Tensor, Tensor], Tensor]  # images and a flat vector, or one row per image, to features


@dataclass(frozen=True)
class ProbeResult:
    """The width of the features, and the norm layers whose input does not depend on the images."""

    embed_dim: int
    blind: frozenset[str]


@torch.no_grad()
def probe(
    owner: nn.Module,
    owner_dtype: torch.dtype,
    norms: Mapping[str, Norm],
    forward: Forward,
    base: Tensor,
    image_shape: tuple[int, ...],
    tolerance: float,
) -> ProbeResult:
    """Find and set the axis of the images in every norm layer's input; raise ValueError if there is none."""
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn((2, *image_shape), generator=generator, dtype=torch.float32, device="cpu")
    with _recorded_inputs(norms) as one:
        _attempt(owner, lambda: forward(pair[:1], base), pair[:1])
    with _recorded_inputs(norms) as two:
        features = _attempt(owner, lambda: forward(pair, base), pair)
    same = {name: [x.shape for x in one[name]] == [x.shape for x in two[name]] for name in norms}
    blind = frozenset(name for name in norms if two[name] and same[name])
    if blind:
        return ProbeResult(features.shape[1], blind)
    for name, norm in norms.items():
        _set_image_axis(name, norm, one[name], two[name])
    _compare_with_original(owner, owner_dtype, norms, two, pair, features, tolerance)
    _compare_rows(owner, forward, base, pair, generator, tolerance)
    return ProbeResult(features.shape[1], blind)


@contextmanager
def _recorded_inputs(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """A block during which the inputs of every call of the named layers are collected."""
    calls: dict[str, list[Tensor]] = {name: [] for name in layers}
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, found=calls[name]: found.append(inputs[0]))
        for name, layer in layers.items()
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _attempt(owner: nn.Module, run: Callable[[], Tensor], images: Tensor) -> Tensor:
    try:
        return run()
    except (RuntimeError, AssertionError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(
            f"{type(owner).__name__} cannot take images of shape {tuple(images.shape)}: {error}"
        ) from error


def _set_image_axis(name: str, norm: Norm, one: list[Tensor], two: list[Tensor]) -> None:
    if not two:
        warnings.warn(
            f"norm layer {name!r} takes no part in the forward pass: its parameters have no effect",
            stacklevel=6,
        )
        return
    axes = {_image_axis(name, a, b) for a, b in zip(one, two, strict=True)}
    if len(axes) > 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in two)
        raise ValueError(
            f"norm layer {name!r} cannot be given parameters for each image: it is called several times, "
            f"with the images in different places of its input (shapes for two images: {shapes})"
        )
    ((norm.image_axis, norm.rows_per_image),) = axes


def _image_axis(name: str, one: Tensor, two: Tensor) -> tuple[int, int]:
    """The axis of the images, and how many of its rows belong to one image."""
    axes = [axis for axis, (n, m) in enumerate(zip(one.shape, two.shape, strict=False)) if m != n]
    if one.ndim != two.ndim or len(axes) != 1 or two.shape[axes[0]] != 2 * one.shape[axes[0]]:
        raise ValueError(
            f"norm layer {name!r} cannot be given parameters for each image: its input has shape "
            f"{tuple(one.shape)} for one image and {tuple(two.shape)} for two"
        )
    rows = one.shape[axes[0]]
    first = two.narrow(axes[0], 0, rows).float()
    if (first - one.float()).norm() > 0.1 * one.float().norm():
        raise ValueError(
            f"norm layer {name!r} cannot be given parameters for each image: along axis {axes[0]} of its "
            "input the rows of different images are interleaved or mixed"
        )
    return axes[0], rows


def _compare_with_original(
    owner: nn.Module,
    owner_dtype: torch.dtype,
    norms: Mapping[str, Norm],
    calls: Mapping[str, list[Tensor]],
    images: Tensor,
    features: Tensor,
    tolerance: float,
) -> None:
    original = private_copy(owner)
    device = next(original.parameters()).device
    with _recorded_inputs({name: original.get_submodule(name) for name in norms}) as expected_calls:
        expected = pooled(original(images.to(device, owner_dtype))).to(features.device, torch.float32)
    bypassed = [name for name in norms if len(calls[name]) != len(expected_calls[name])]
    if bypassed:
        raise ValueError(
            f"{type(owner).__name__} cannot be wrapped: it calls norm layers {', '.join(bypassed)} other "
            "than as its submodules (from a plain list, say), so that they cannot be replaced"
        )
    if not expected.isfinite().all():
        raise ValueError(f"{type(owner).__name__} cannot be wrapped: its own output is not finite")
    error = relative_error(features, expected)
    if not error <= tolerance:
        raise ValueError(
            f"{type(owner).__name__} cannot be wrapped: with its norm layers replaced its output differs "
            f"from its own by {error:.1%}. Norm layers found: {', '.join(norms)}"
        )


def _compare_rows(
    owner: nn.Module,
    forward: Forward,
    base: Tensor,
    pair: Tensor,
    generator: torch.Generator,
    tolerance: float,
) -> None:
    """Compare two images with their own parameters in one batch, and one by one."""
    noise = torch.randn((2, len(base)), generator=generator, dtype=torch.float32, device="cpu").to(base)
    rows = base + 0.05 * noise
    together = forward(pair, rows)
    alone = torch.cat([forward(pair[i : i + 1], rows[i : i + 1]) for i in range(2)])
    error = relative_error(together, alone)
    if not error <= tolerance:
        raise ValueError(
            f"{type(owner).__name__} cannot be wrapped: an image's output depends on the other images of its "
            f"batch (alone it differs by {error:.1%})"
        )


def relative_error(value: Tensor, expected: Tensor) -> float:
    """The size of the difference, divided by the size of what is expected."""
    difference = (value.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-12)
    return float(difference)


def pooled(output: object) -> Tensor:
    """The image features in an encoder's output: towers like CoCa's return them with the tokens.

    Models of transformers return an object: its image embedding if there is one, else what it pooled.
    """
    for name in ("image_embeds", "pooler_output"):
        if isinstance(found := getattr(output, name, None), Tensor):
            output = found
            break
    features = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(features, Tensor) or features.ndim != 2:
        came = tuple(features.shape) if isinstance(features, Tensor) else type(output).__name__
        raise ValueError(f"the encoder must return features of shape (images, width), got {came}")
    return features
