"""The parameters of each corruption, and the function that applies one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import effects
from ramen.data.corruptions.filters import Images, Random, as_bytes, as_floats
from ramen.data.corruptions.spatter import spatter
from ramen.utils import checks

SEVERITIES = (1, 2, 3, 4, 5)

_Corruption = Callable[[Images, Any, Random], Images]


def _by_name(*functions: _Corruption) -> dict[str, _Corruption]:
    return {function.__name__: function for function in functions}


# In the order of all tables.
_MAIN = _by_name(
    *(effects.gaussian_noise, effects.shot_noise, effects.impulse_noise),
    *(effects.defocus_blur, effects.glass_blur, effects.motion_blur, effects.zoom_blur),
    *(effects.snow, effects.frost, effects.fog, effects.brightness),
    *(effects.contrast, effects.elastic_transform, effects.pixelate, effects.jpeg_compression),
)
_EXTRA = _by_name(effects.speckle_noise, effects.gaussian_blur, spatter, effects.saturate)
_FUNCTIONS = _MAIN | _EXTRA
CORRUPTIONS = tuple(_MAIN)
EXTRA_CORRUPTIONS = tuple(_EXTRA)

Triples = tuple[tuple[float, float, float], ...]


def _times(side: int, shares: Triples) -> Triples:
    return tuple((side * a, side * b, side * c) for a, b, c in shares)


@dataclass(frozen=True)
class Recipe:
    """The parameters of one published set."""

    name: str
    side: int  # of the images that the parameters are for, in pixels
    parameters: Mapping[str, tuple[Any, ...]]  # of each corruption, at severities 1 to 5


_CIFAR = Recipe(
    "cifar",
    32,
    {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "frost": ((1, 0.2, 5), (1, 0.3, 5), (0.9, 0.4, 5), (0.85, 0.4, 5), (0.75, 0.45, 5)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "elastic_transform": _times(
            32, ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
        ),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg_compression": (80, 65, 58, 50, 40),
        "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
        "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
        "spatter": (
            (0.62, 0.1, 0.7, 0.7, 0.5, "water"),
            (0.65, 0.1, 0.8, 0.7, 0.5, "water"),
            (0.65, 0.3, 1, 0.69, 0.5, "water"),
            (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
            (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
        ),
        "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    },
)

_IMAGENET = Recipe(
    "imagenet",
    224,
    {
        "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot_noise": (60, 25, 12, 5, 3),
        "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
        "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        # 244, not 224: as published
        "elastic_transform": _times(
            244, ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
        ),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg_compression": (25, 18, 15, 10, 7),
        "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
        "gaussian_blur": (1, 2, 3, 4, 6),
        "spatter": (
            (0.65, 0.3, 4, 0.69, 0.6, "water"),
            (0.65, 0.3, 3, 0.68, 0.6, "water"),
            (0.65, 0.3, 2, 0.68, 0.5, "water"),
            (0.65, 0.3, 1, 0.65, 1.5, "mud"),
            (0.67, 0.4, 1, 0.65, 1.5, "mud"),
        ),
        "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
)

RECIPES = {recipe.name: recipe for recipe in (_CIFAR, _IMAGENET)}


def corrupt(
    images: NDArray[np.uint8], name: str, rng: Random, severity: int = 5, recipe: str = "cifar"
) -> NDArray[np.uint8]:
    """Apply a corruption to a batch of images.

    Args:
        images: Bytes ``(N, H, W, 3)``. The parameters are in pixels: images of another size than that of the
            recipe work, but look different.
        name: One of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
        rng: Determines everything random.
        severity: 1 to 5.
        recipe: ``"cifar"`` for 32 x 32 pixels, ``"imagenet"`` for 224 x 224.

    >>> images = np.full((2, 32, 32, 3), 128, dtype=np.uint8)
    >>> corrupt(images, "brightness", np.random.default_rng(0), severity=5)[0, 0, 0].tolist()
    [204, 204, 204]
    """
    checks.choice("name", name, _FUNCTIONS)
    checks.integer("severity", severity, SEVERITIES[0], SEVERITIES[-1])
    checks.choice("recipe", recipe, RECIPES)
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.ndim != 4
        or images.shape[-1] != 3
    ):
        given = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise ValueError(f"images must be a uint8 array of shape (N, H, W, 3), got {given}")
    parameters = RECIPES[recipe].parameters[name][severity - 1]
    return as_bytes(_FUNCTIONS[name](as_floats(images), parameters, rng))
