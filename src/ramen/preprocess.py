"""From pictures to the tensors an encoder takes: decode, resize, crop, normalise.

This is the exact CPU path: Pillow's own resizing, in the order and with the roundings of open_clip's
evaluation transform, so that both give the same numbers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ramen import checks

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MAX_PIXELS = 89_478_485  # Pillow's own threshold of suspicion; there it only warns

Picture = Image.Image | str | os.PathLike[str] | Tensor

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_RESIZE_MODES = ("shortest", "longest", "squash")


def open_image(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read an image file completely; the error of a missing, damaged or enormous one names it."""
    name = os.fspath(path)
    try:
        image = Image.open(name)
    except FileNotFoundError:
        raise FileNotFoundError(f"no image file at {name}") from None
    except Exception as error:
        raise ValueError(f"{name} cannot be read as an image: {error}") from error
    with image:
        width, height = image.size
        if width * height > max_pixels:
            raise ValueError(f"{name} has {width} x {height} pixels, more than {max_pixels}")
        try:
            image.load()
        except Exception as error:  # decoders raise all kinds
            raise ValueError(f"{name} cannot be read as an image: {error}") from error
        return image


@dataclass(frozen=True)
class Preprocess:
    """open_clip's evaluation transform of a model, for PIL images, paths and uint8 tensors.

    Args:
        size: Height and width that the encoder takes, or one number for both.
        mean: Subtracted from each channel, of values in [0, 1].
        std: Each channel is divided by it.
        interpolation: Pillow's filter.
        resize_mode: ``"shortest"`` fits the short side and crops the long one, ``"longest"`` fits the long
            side and pads the short one, ``"squash"`` fits both.
        fill_color: What is padded with.

    >>> Preprocess((32, 32))(torch.zeros(4, 3, 48, 64, dtype=torch.uint8)).shape
    torch.Size([4, 3, 32, 32])
    """

    size: tuple[int, int]  # as given, one number is enough
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    def __post_init__(self) -> None:
        checks.choice("interpolation", self.interpolation, _FILTERS)
        checks.choice("resize_mode", self.resize_mode, _RESIZE_MODES)
        object.__setattr__(self, "size", _check_size(self.size))
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(
                f"mean and std must be three numbers, std above 0, got {self.mean!r}, {self.std!r}"
            )

    @classmethod
    def from_open_clip(cls, config: Mapping[str, Any]) -> "Preprocess":
        """The settings that open_clip attaches to a model as ``visual.preprocess_cfg``."""
        size, mean, std = config["size"], config["mean"], config["std"]
        return cls(
            size=size,
            mean=tuple(mean) if isinstance(mean, list | tuple) else (mean,) * 3,
            std=tuple(std) if isinstance(std, list | tuple) else (std,) * 3,
            # "random" is a training augmentation; open_clip evaluates such models with bicubic
            interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
            resize_mode=config["resize_mode"],
            fill_color=config["fill_color"],
        )

    def __call__(self, images: Picture | Sequence[Picture]) -> Tensor:
        """One picture, a list of them or a uint8 batch, as a float tensor ``(B, 3, H, W)``."""
        if isinstance(images, Tensor) and images.ndim == 4:
            images = list(images)
        elif isinstance(images, Image.Image | str | os.PathLike | Tensor):
            images = [images]
        elif not isinstance(images, Sequence):
            raise TypeError(f"images must be PIL images, paths or uint8 tensors, got {type(images).__name__}")
        if len(images) == 0:
            raise ValueError("images must hold at least one image, got none")
        pixels = np.stack([self._pixels(_as_pil(image), _name(image, i)) for i, image in enumerate(images)])
        scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32).div(255)
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device="cpu").view(3, 1, 1)
            for values in (self.mean, self.std)
        )
        return scaled.sub(mean).div(std).contiguous()

    def _pixels(self, image: Image.Image, name: str) -> np.ndarray:
        # open_clip resizes first and converts to RGB afterwards; for palette images the order matters
        if min(image.size) < 1:
            raise ValueError(f"images: {name} has no pixels ({image.width} x {image.height})")
        width, height = self._resized(image.size)
        if width < 1 or height < 1 or width * height > MAX_PIXELS:
            raise ValueError(
                f"images: {name} of {image.width} x {image.height} pixels is too elongated for "
                f"{self.size[1]} x {self.size[0]}: it would be resized to {width} x {height}"
            )
        resized = image.resize((width, height), _FILTERS[self._filter()])
        if self.resize_mode != "squash":
            resized = _centre(resized, self.size, self.fill_color)
        return np.asarray(resized.convert("RGB"))

    def _filter(self) -> str:
        # a quirk kept on purpose: for a target that is not square, open_clip forgets the chosen filter
        if self.resize_mode == "shortest" and self.size[0] != self.size[1]:
            return "bicubic"
        return self.interpolation

    def _resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height to resize to, before cropping or padding."""
        width, height = size
        target_height, target_width = self.size
        if self.resize_mode == "squash":
            return target_width, target_height
        if self.resize_mode == "shortest" and target_height == target_width:
            long_side = int(target_height * max(size) / min(size))
            return (target_width, long_side) if width <= height else (long_side, target_height)
        ratios = (height / target_height, width / target_width)
        ratio = max(ratios) if self.resize_mode == "longest" else min(ratios)
        return round(width / ratio), round(height / ratio)


def _check_size(size: object) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"size must be a height and a width, or one number for both, got {size!r}")
    return checks.integer("size", pair[0], 1), checks.integer("size", pair[1], 1)


def _name(image: Picture, index: int) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {index}"


def _as_pil(image: Picture) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | os.PathLike):
        return open_image(image)
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
            raise ValueError(
                f"images: a tensor must be uint8 of shape (3, H, W), got {image.dtype} {tuple(image.shape)}"
            )
        return Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    raise TypeError(f"images must be PIL images, paths or uint8 tensors, got {type(image).__name__}")


def _centre(image: Image.Image, size: tuple[int, int], fill: int) -> Image.Image:
    """The centre of ``image``, padded where it is smaller than ``size``."""
    height, width = size
    missing = max(0, width - image.width), max(0, height - image.height)
    if any(missing):
        border = (missing[0] // 2, missing[1] // 2, (missing[0] + 1) // 2, (missing[1] + 1) // 2)
        bands = len(image.getbands())
        image = ImageOps.expand(image, border, fill if bands == 1 else (fill,) * bands)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))
