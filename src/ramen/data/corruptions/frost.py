"""Frost textures: the published photographs if they are installed, otherwise generated ones.

The package ``imagecorruptions`` contains the photographs that the released sets were made with: the first
five of its six. Without it, needles of ice are generated with the mean colours and contrasts of those
photographs. A set that is made with them has frost of the published strength but not of the published shape:
its accuracies under frost are not comparable with published ones.
"""

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen.data.corruptions import filters

_PACKAGE = "imagecorruptions"
_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")

# Mean red, green and blue, and standard deviation, of each photograph.
_LOOKS = (
    ((78, 149, 166), 20),
    ((201, 205, 214), 22),
    ((201, 205, 214), 22),
    ((138, 153, 165), 29),
    ((112, 123, 135), 43),
)
_HEIGHT, _WIDTH, _SEED = 320, 480, 20190501
_DIRECTIONS, _LENGTH = 9, 24  # of the needles; the length in pixels


@dataclass(frozen=True)
class Textures:
    """Images of frost, and where they come from."""

    images: tuple[NDArray[np.uint8], ...]  # each (height, width, 3)
    source: str


@lru_cache(maxsize=1)
def textures() -> Textures:
    """The photographs if ``imagecorruptions`` is installed, generated textures otherwise."""
    folder = _installed()
    if folder is None:
        return Textures(generated(), f"generated, not the published photographs (those come with {_PACKAGE})")
    images = []
    for name in _FILES:
        try:
            with Image.open(folder / name) as image:
                images.append(np.asarray(image.convert("RGB")))
        except Exception as error:  # decoders may raise anything
            raise ValueError(
                f"{folder / name} cannot be read as an image: {error}; install {_PACKAGE} again, "
                "or remove it to use generated frost"
            ) from error
    try:
        version = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return Textures(tuple(images), f"photographs of {_PACKAGE} {version}")


def _installed() -> Path | None:
    """The folder of the photographs; the package is not imported, because of its many dependencies."""
    found = importlib.util.find_spec(_PACKAGE)
    for place in (found.submodule_search_locations if found else None) or ():
        if (Path(place) / "frost").is_dir():
            return Path(place) / "frost"
    return None


def generated() -> tuple[NDArray[np.uint8], ...]:
    """Generate needles of ice in many directions over soft patches, always the same ones."""
    images = []
    for number, (colour, deviation) in enumerate(_LOOKS):
        rng = np.random.default_rng((_SEED, number))
        shape = (_DIRECTIONS, _HEIGHT, _WIDTH, 1)
        seeds = (rng.random(shape) < 0.02) * rng.standard_exponential(shape)
        angles = np.linspace(0, 360, _DIRECTIONS, endpoint=False) + rng.uniform(0, 40)
        needles = filters.motion(seeds.astype(np.float32), _LENGTH // 2, _LENGTH / 3, angles).sum(0)
        patches = filters.gaussian(
            rng.standard_normal((1, _HEIGHT, _WIDTH, 1)).astype(np.float32), 25, 3, filters.symmetric
        )[0]
        ice = needles / needles.std() + patches / patches.std()
        ice = (ice - ice.mean()) / ice.std()
        images.append(np.clip(np.array(colour) + deviation * ice, 0, 255).astype(np.uint8))
    return tuple(images)
