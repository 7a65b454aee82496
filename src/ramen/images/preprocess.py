"""From images to the tensors that an encoder takes: decode, resize, crop, normalise.

The numbers are those of open_clip's evaluation transform, bit for bit, on every device: on the CPU Pillow
resizes, elsewhere ``ramen.images.resize`` does, to the same pixels.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ramen.images import resize
from ramen.utils import checks
from ramen.utils.devices import parse_device, parse_dtype, upload
from ramen.utils.numerics import plain_numerics

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MAX_PIXELS = 89_478_485  # from which on Pillow warns of a decompression bomb

ImageInput = Image.Image | str | os.PathLike[str] | Tensor

_RESIZE_MODES = ("shortest", "longest", "squash")
_CPU_IMAGES = 4  # that a CPU normalises at a time, so that they stay in its cache


def open_image(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read an image file completely; if it is missing, damaged or enormous, the error names it."""
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
        except Exception as error:  # decoders raise errors of all kinds
            raise ValueError(f"{name} cannot be read as an image: {error}") from error
        return image


@dataclass(frozen=True)
class Preprocess:
    """The evaluation transform of an open_clip model, for PIL images, paths and uint8 tensors.

    Args:
        size: Height and width that the encoder takes, or one number for both.
        mean: Subtracted from each channel, of values in [0, 1].
        std: Each channel is then divided by it.
        interpolation: Pillow's filter.
        resize_mode: ``"shortest"`` fits the short side and crops the long one, ``"longest"`` fits the long
            side and pads the short one, ``"squash"`` fits both.
        fill_color: Of the padding.
        device: Where results are, unless a call says otherwise; by default on the device of the images, which
            is the CPU for all but tensors. It is not a setting: objects that differ in it alone are equal.

    >>> Preprocess((32, 32))(torch.zeros(4, 3, 48, 64, dtype=torch.uint8)).shape
    torch.Size([4, 3, 32, 32])
    """

    size: tuple[int, int]  # as given, one number is enough
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0
    device: torch.device | None = field(default=None, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.choice("interpolation", self.interpolation, resize.FILTERS)
        checks.choice("resize_mode", self.resize_mode, _RESIZE_MODES)
        checks.integer("fill_color", self.fill_color, 0, 255)
        object.__setattr__(self, "size", _check_size(self.size))
        if self.device is not None:
            object.__setattr__(self, "device", parse_device(self.device))
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

    def to(self, device: str | torch.device) -> "Preprocess":
        """A copy whose results are on ``device``."""
        return replace(self, device=parse_device(device))

    def settings(self) -> dict[str, Any]:
        """The arguments that decide the numbers, by name: all but ``device``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.compare}

    def __call__(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = torch.float32,
    ) -> Tensor:
        """One image, a list of them or a uint8 batch, as a float tensor ``(B, 3, H, W)``.

        Args:
            images: PIL images, paths, uint8 tensors ``(3, H, W)``, or a uint8 batch ``(B, 3, H, W)``.
            device: Of the result; by default that of this object. Tensors of one size are also resized there.
                The numbers are the same on every device.
            dtype: Of the result, which is rounded to it at the end.
        """
        dtype = parse_dtype(dtype)
        return self.normalise(self.pixels(images, device=device), dtype=dtype)

    @plain_numerics()
    def pixels(
        self, images: ImageInput | Sequence[ImageInput], *, device: str | torch.device | None = None
    ) -> Tensor:
        """Images resized and cropped, but not normalised: a uint8 tensor ``(B, 3, H, W)``."""
        sources = _as_sequence(images)
        batch = _as_batch(sources)
        device = self._result_device(sources) if device is None else parse_device(device)
        if batch is not None and device.type != "cpu":
            plan = self._plan(tuple(batch.shape[2:]))
            if resize.agrees_with_pillow(plan):
                return self._padded(resize.resize(upload(batch, device), plan))
            warnings.warn(
                f"resizing on {device} would not give the installed Pillow's pixels: Pillow is used "
                f"instead for {plan}",
                stacklevel=2,
            )
        pixels = np.empty((len(sources), 3, *self.size), dtype=np.uint8)
        for index, source in enumerate(sources):
            pixels[index] = self._resize(_as_pil(source), _name(source, index)).transpose(2, 0, 1)
        return upload(torch.from_numpy(pixels), device)

    @plain_numerics()
    def normalise(self, pixels: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """A result of ``pixels`` as the encoder takes it, on the same device."""
        result = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
        white, mean, std = _constants(tuple(self.mean), tuple(self.std), pixels.device)
        count = _CPU_IMAGES if pixels.device.type == "cpu" else len(pixels)
        for part, out in zip(pixels.split(count), result.split(count), strict=True):
            # divided by a tensor: a GPU would multiply by the reciprocal of a number
            torch.div(part.to(torch.float32).div_(white).sub_(mean), std, out=out)
        return result

    def _result_device(self, sources: Tensor | Sequence[ImageInput]) -> torch.device:
        if self.device is not None:
            return self.device
        return sources[0].device if isinstance(sources[0], Tensor) else torch.device("cpu")

    def _resize(self, image: Image.Image, name: str) -> np.ndarray:
        # open_clip resizes first and converts to RGB afterwards; for palette images the order matters
        width, height = self._target(image.size, name)
        resized = image.resize((width, height), resize.FILTERS[self._filter()])
        if self.resize_mode != "squash":
            resized = _centre(resized, self.size, self.fill_color)
        return np.asarray(resized.convert("RGB"))

    def _plan(self, size: tuple[int, ...]) -> resize.Plan:
        """How a batch of that height and width is resized, and what is left of it after cropping."""
        width, height = self._target((size[1], size[0]), "image 0")
        rows, columns = (
            resize.Span(old, new, start := _centring(new, target)[2], start + min(new, target))
            for old, new, target in zip(size, (height, width), self.size, strict=True)
        )
        return resize.Plan(rows, columns, self._filter())

    def _padded(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if (height, width) == self.size:
            return images
        padded = images.new_full((len(images), 3, *self.size), self.fill_color)
        top, left = _centring(height, self.size[0])[0], _centring(width, self.size[1])[0]
        padded[:, :, top : top + height, left : left + width] = images
        return padded

    def _filter(self) -> str:
        # on purpose: for a target that is not square, open_clip ignores the chosen filter
        if self.resize_mode == "shortest" and self.size[0] != self.size[1]:
            return "bicubic"
        return self.interpolation

    def _target(self, size: tuple[int, int], name: str) -> tuple[int, int]:
        """Width and height to resize to, before cropping or padding; raises if these are enormous."""
        if min(size) < 1:
            raise ValueError(f"images: {name} has no pixels ({size[0]} x {size[1]})")
        width, height = self._resized(size)
        if width < 1 or height < 1 or width * height > MAX_PIXELS:
            raise ValueError(
                f"images: {name} of {size[0]} x {size[1]} pixels is too elongated for "
                f"{self.size[1]} x {self.size[0]}: it would be resized to {width} x {height}"
            )
        return width, height

    def _resized(self, size: tuple[int, int]) -> tuple[int, int]:
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


@lru_cache(maxsize=16)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """White, mean and standard deviation on a device."""
    white, *channels = (
        torch.tensor(values, dtype=torch.float32, device="cpu").to(device) for values in (255.0, mean, std)
    )
    return white, channels[0].view(3, 1, 1), channels[1].view(3, 1, 1)


def _as_sequence(images: ImageInput | Sequence[ImageInput]) -> Tensor | Sequence[ImageInput]:
    """The images one by one; checks that there are any."""
    if isinstance(images, Image.Image | str | os.PathLike) or (
        isinstance(images, Tensor) and images.ndim < 4
    ):
        images = [images]
    elif not isinstance(images, Tensor | Sequence):
        raise TypeError(f"images must be PIL images, paths or uint8 tensors, got {type(images).__name__}")
    if len(images) == 0:
        raise ValueError("images must hold at least one image, got none")
    return images


def _as_batch(sources: Tensor | Sequence[ImageInput]) -> Tensor | None:
    """Tensors of one size and device as a batch; None for other images."""
    if isinstance(sources, Tensor):
        _check_tensor(sources[0])
        return sources
    tensors = [_check_tensor(source) for source in sources if isinstance(source, Tensor)]
    are_alike = len(tensors) == len(sources) and len({(t.shape, t.device) for t in tensors}) == 1
    return torch.stack(tensors) if are_alike else None


def _check_tensor(image: Tensor) -> Tensor:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(
            f"images: a tensor must be uint8 of shape (3, H, W), got {image.dtype} {tuple(image.shape)}"
        )
    return image


def _name(source: ImageInput, index: int) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {index}"


def _as_pil(source: ImageInput) -> Image.Image:
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, str | os.PathLike):
        return open_image(source)
    if isinstance(source, Tensor):
        return Image.fromarray(_check_tensor(source).permute(1, 2, 0).contiguous().cpu().numpy())
    raise TypeError(f"images must be PIL images, paths or uint8 tensors, got {type(source).__name__}")


def _centre(image: Image.Image, size: tuple[int, int], fill: int) -> Image.Image:
    """The centre of ``image``, padded if it is smaller than ``size``."""
    height, width = size
    above, below, top = _centring(image.height, height)
    before, after, left = _centring(image.width, width)
    if above or below or before or after:
        bands = len(image.getbands())
        colour = fill if bands == 1 else (fill,) * bands
        image = ImageOps.expand(image, (before, above, after, below), colour)
    return image.crop((left, top, left + width, top + height))


def _centring(length: int, target: int) -> tuple[int, int, int]:
    """Along one axis: pixels to add before and after, and then where the ``target`` central pixels start."""
    missing = max(0, target - length)
    return missing // 2, (missing + 1) // 2, round((length + missing - target) / 2)
