"""From images to the tensors that an encoder takes: decode, resize, crop, normalise.

The numbers are those of open_clip's evaluation transform, bit for bit, on every device: on the CPU Pillow
resizes, elsewhere ``ramen.images.resize`` does, to the same pixels.
"""

import itertools
import os
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from ramen.images import resize
from ramen.images.decoding import MissingImageError, UnreadableImageError
from ramen.images.file_checks import no_pillow_warnings
from ramen.images.resize import Span
from ramen.images.rgb import to_eight_bits, to_rgb
from ramen.utils import checks
from ramen.utils.devices import parse_device, parse_dtype, upload
from ramen.utils.numerics import plain_numerics

MAX_PIXELS = 89_478_485  # of a file that its user chose; Pillow warns of larger ones

ImageInput = Image.Image | str | os.PathLike[str] | Tensor


def open_image(path: str | os.PathLike[str], max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read an image file of a data set completely, as it is stored: EXIF orientation is ignored.

    An ``UnreadableImageError`` names a file that is missing, damaged or enormous. For files of strangers, and
    to have photographs turned, see ``ramen.images.decoding``.
    """
    name = os.fspath(path)
    with no_pillow_warnings():
        try:
            image = Image.open(name)
        except FileNotFoundError:
            raise MissingImageError(f"no image file at {name}") from None
        except Exception as error:
            raise UnreadableImageError(f"{name} cannot be read as an image: {error}") from error
        with image:
            width, height = image.size
            if width * height > max_pixels:
                raise UnreadableImageError(f"{name} has {width} x {height} pixels, more than {max_pixels}")
            if image.format == "EPS":  # a program, which Pillow would run
                raise UnreadableImageError(f"{name} cannot be read as an image: it is a PostScript file")
            try:
                image.load()
            except Exception as error:  # decoders raise errors of all kinds
                raise UnreadableImageError(f"{name} cannot be read as an image: {error}") from error
            return image


def open_rgb(path: str | os.PathLike[str]) -> Image.Image:
    """``open_image`` in mode RGB; a file whose numbers cannot be converted is unreadable too."""
    image = open_image(path)
    with no_pillow_warnings():
        try:
            return to_rgb(image)
        except ValueError as error:
            raise UnreadableImageError(f"{os.fspath(path)} cannot be read as an image: {error}") from error


def as_sequence(images: ImageInput | Sequence[ImageInput]) -> Tensor | Sequence[ImageInput]:
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


def as_batch(sources: Tensor | Sequence[ImageInput]) -> Tensor | None:
    """Tensors of one size and device as a batch; None for other images."""
    if isinstance(sources, Tensor):
        check_tensor(sources[0])
        return sources
    tensors = [check_tensor(source) for source in sources if isinstance(source, Tensor)]
    are_alike = len(tensors) == len(sources) and len({(t.shape, t.device) for t in tensors}) == 1
    return torch.stack(tensors) if are_alike else None


def check_tensor(image: Tensor) -> Tensor:
    """``image``, if it is one of uint8."""
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(
            f"images: a tensor must be uint8 of shape (3, H, W), got {image.dtype} {tuple(image.shape)}"
        )
    return image


def name_of(source: ImageInput, index: int) -> str:
    """What errors call an image: its path, or its place among the others."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else f"image {index}"


RESIZE_MODES = ("shortest", "longest", "squash")
CROPS = ("nearest", "floor")


def fitted_size(size: tuple[int, int], target: tuple[int, int], resize_mode: str) -> tuple[int, int]:
    """Width and height to resize to, given the image's width and height and the target's height and width."""
    width, height = size
    target_height, target_width = target
    if resize_mode == "squash":
        return target_width, target_height
    if resize_mode == "shortest" and target_height == target_width:
        long_side = int(target_height * max(size) / min(size))
        return (target_width, long_side) if width <= height else (long_side, target_height)
    ratios = (height / target_height, width / target_width)
    ratio = max(ratios) if resize_mode == "longest" else min(ratios)
    return round(width / ratio), round(height / ratio)


def centre(image: Image.Image, size: tuple[int, int], fill: int, crop: str = "nearest") -> Image.Image:
    """The centre of ``image``, padded if it is smaller than the height and width ``size``."""
    height, width = size
    above, below, top = centring(image.height, height, crop)
    before, after, left = centring(image.width, width, crop)
    if above or below or before or after:
        bands = len(image.getbands())
        colour = fill if bands == 1 else (fill,) * bands
        image = ImageOps.expand(image, (before, above, after, below), colour)
    return image.crop((left, top, left + width, top + height))


def centring(length: int, target: int, crop: str = "nearest") -> tuple[int, int, int]:
    """Along one axis: pixels to add before and after, and then where the ``target`` central pixels start.

    If an odd number of pixels is to be cut off, ``crop`` says where: ``"nearest"`` rounds half a pixel to an
    even number, as torchvision does, ``"floor"`` rounds it down, as transformers does.
    """
    missing = max(0, target - length)
    left_over = length + missing - target
    start = left_over // 2 if crop == "floor" else round(left_over / 2)
    return missing // 2, (missing + 1) // 2, start


CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_LARGE = 2**22  # pixels of a resized image from which on only those that are kept are computed
_REASONS_IN_A_WARNING = 5
_CPU_IMAGES = 4  # that a CPU normalises at a time, so that they stay in its cache


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
        resize_to: With ``"shortest"``, what the short side is resized to before the centre of ``size`` is cut
            out: models of torchvision and timm see less than the whole short side. ``size`` if not given.
        crop: Where the centre is if an odd number of pixels is cut off: ``"nearest"`` rounds as torchvision
            and open_clip do, ``"floor"`` as transformers does.
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
    resize_to: int | None = None
    crop: str = "nearest"
    device: torch.device | None = field(default=None, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.choice("interpolation", self.interpolation, resize.FILTERS)
        checks.choice("resize_mode", self.resize_mode, RESIZE_MODES)
        checks.integer("fill_color", self.fill_color, 0, 255)
        checks.choice("crop", self.crop, CROPS)
        if self.resize_to is not None:
            checks.integer("resize_to", self.resize_to, 1)
            if self.resize_mode != "shortest":
                raise ValueError(f"resize_to belongs to resize_mode='shortest', got {self.resize_mode!r}")
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
        on_error: str = "raise",
        skipped: MutableMapping[int, str] | None = None,
    ) -> Tensor:
        """One image, a list of them or a uint8 batch, as a float tensor ``(B, 3, H, W)``.

            skipped: dict[int, str] = {}
            images = clf.preprocess(files, on_error="skip", skipped=skipped)
            kept = [file for index, file in enumerate(files) if index not in skipped]

        Args:
            images: PIL images, paths, uint8 tensors ``(3, H, W)``, or a uint8 batch ``(B, 3, H, W)``.
            device: Of the result; by default that of this object. Tensors of one size are also resized there.
                The numbers are the same on every device.
            dtype: Of the result, which is rounded to it at the end.
            on_error: What happens to an image that cannot be read or resized: ``"raise"`` an
                ``UnreadableImageError``, or ``"skip"`` it, so that the result holds the others, in their
                order. What is no image at all is an error in any case.
            skipped: With ``on_error="skip"``, receives the reason for each image that is left out, by its
                index in ``images``. If it is not given, a warning has the reasons.
        """
        dtype = parse_dtype(dtype)
        pixels, reasons = self._pixels(images, device, on_error)
        _report(reasons, skipped)
        return self.normalise(pixels, dtype=dtype)

    def pixels(
        self,
        images: ImageInput | Sequence[ImageInput],
        *,
        device: str | torch.device | None = None,
        on_error: str = "raise",
        skipped: MutableMapping[int, str] | None = None,
    ) -> Tensor:
        """Images resized and cropped, but not normalised: a uint8 tensor ``(B, 3, H, W)``."""
        pixels, reasons = self._pixels(images, device, on_error)
        _report(reasons, skipped)
        return pixels

    def resized(self, image: Image.Image) -> NDArray[np.uint8]:
        """One PIL image resized and cropped by Pillow: the same pixels, in Pillow's order ``(H, W, 3)``."""
        return self._resize(image, name_of(image, 0))

    def resizes_on_devices(self, size: tuple[int, int]) -> bool:
        """Whether batches of this height and width are resized on other devices than the CPU, too.

        To the pixels of Pillow; for sizes for which these cannot be promised, Pillow does it everywhere.
        """
        try:
            return resize.agrees_with_pillow(self._plan(size))
        except UnreadableImageError:
            return False

    @plain_numerics()
    def _pixels(
        self,
        images: ImageInput | Sequence[ImageInput],
        device: str | torch.device | None,
        on_error: str,
    ) -> tuple[Tensor, dict[int, str]]:
        """The pixels of all images that can be read, and why each of the others cannot."""
        checks.choice("on_error", on_error, ("raise", "skip"))
        sources = as_sequence(images)
        batch = as_batch(sources)
        device = self._result_device(sources) if device is None else parse_device(device)
        if batch is not None and device.type != "cpu" and self._resizes_alike(batch, device):
            plan = self._plan(tuple(batch.shape[2:]))
            return self._padded(resize.resize(upload(batch, device), plan)), {}
        pixels = np.empty((len(sources), 3, *self.size), dtype=np.uint8)
        reasons: dict[int, str] = {}
        for index, source in enumerate(sources):
            try:
                image = self._resize(source, name_of(source, index))
            except UnreadableImageError as error:
                if on_error == "raise":
                    raise
                reasons[index] = str(error)
            else:
                pixels[index - len(reasons)] = image.transpose(2, 0, 1)
        return upload(torch.from_numpy(pixels[: len(pixels) - len(reasons)]), device), reasons

    def _resizes_alike(self, batch: Tensor, device: torch.device) -> bool:
        """Whether a batch can be resized on ``device``, to the pixels of Pillow."""
        try:
            plan = self._plan(tuple(batch.shape[2:]))
        except UnreadableImageError:
            return False
        if resize.agrees_with_pillow(plan):
            return True
        warnings.warn(
            f"resizing on {device} would not give the installed Pillow's pixels: Pillow is used "
            f"instead for {plan}",
            stacklevel=5,
        )
        return False

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

    def _resize(self, source: ImageInput, name: str) -> NDArray[np.uint8]:
        image = _as_pil(source, name)
        plan = self._plan((image.height, image.width), name)
        try:
            image = to_eight_bits(image)
            return np.asarray(self._enlarged_centre(image, plan) or self._resized_by_pillow(image, plan))
        except (ValueError, OSError, MemoryError) as error:
            raise UnreadableImageError(f"{name} cannot be read as an image: {error}") from error

    def _enlarged_centre(self, image: Image.Image, plan: resize.Plan) -> Image.Image | None:
        """An elongated image, of which no more is enlarged than is kept; None if it is not that large."""
        width, height = plan.columns.new, plan.rows.new
        if width * height <= max(_LARGE, 4 * self.size[0] * self.size[1]):
            return None
        kept = resize.resize_kept(image, plan)
        if kept is None and width * height > MAX_PIXELS:
            raise ValueError(f"it is too elongated: it would be resized to {width} x {height}")
        return kept

    def _resized_by_pillow(self, image: Image.Image, plan: resize.Plan) -> Image.Image:
        # open_clip resizes first and converts to RGB afterwards; for palette images the order matters
        resized = image.resize((plan.columns.new, plan.rows.new), resize.FILTERS[self._filter()])
        if self.resize_mode != "squash":
            resized = centre(resized, self.size, self.fill_color, self.crop)
        if resized.mode == "RGB":
            return resized
        with no_pillow_warnings():
            return resized.convert("RGB")

    def _plan(self, size: tuple[int, ...], name: str = "image 0") -> resize.Plan:
        """How images of that height and width are resized, and what is left of them after cropping."""
        width, height = self._target((size[1], size[0]), name)
        rows, columns = (
            Span(old, new, start := centring(new, target, self.crop)[2], start + min(new, target))
            for old, new, target in zip(size, (height, width), self.size, strict=True)
        )
        return resize.Plan(rows, columns, self._filter())

    def _padded(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if (height, width) == self.size:
            return images
        padded = images.new_full((len(images), 3, *self.size), self.fill_color)
        top, left = centring(height, self.size[0])[0], centring(width, self.size[1])[0]
        padded[:, :, top : top + height, left : left + width] = images
        return padded

    def _filter(self) -> str:
        # on purpose: for a target that is not square, open_clip ignores the chosen filter
        not_square = self.size[0] != self.size[1] and self.resize_to is None
        if self.resize_mode == "shortest" and not_square:
            return "bicubic"
        return self.interpolation

    def _target(self, size: tuple[int, int], name: str) -> tuple[int, int]:
        """Width and height to resize to, before cropping or padding; raises if these are enormous."""
        if min(size) < 1:
            raise UnreadableImageError(f"images: {name} has no pixels ({size[0]} x {size[1]})")
        target = self.size if self.resize_to is None else (self.resize_to, self.resize_to)
        width, height = fitted_size(size, target, self.resize_mode)
        if min(width, height) < 1 or max(width, height) > MAX_PIXELS:
            raise UnreadableImageError(
                f"images: {name} of {size[0]} x {size[1]} pixels is too elongated for "
                f"{self.size[1]} x {self.size[0]}: it would be resized to {width} x {height}"
            )
        return width, height


def _check_size(size: object) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ValueError(f"size must be a height and a width, or one number for both, got {size!r}")
    return checks.integer("size", pair[0], 1), checks.integer("size", pair[1], 1)


@lru_cache(maxsize=16)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    white, *channels = (
        torch.tensor(values, dtype=torch.float32, device="cpu").to(device) for values in (255.0, mean, std)
    )
    return white, channels[0].view(3, 1, 1), channels[1].view(3, 1, 1)


def _as_pil(source: ImageInput, name: str) -> Image.Image:
    if isinstance(source, str | os.PathLike):
        return open_image(source)
    if isinstance(source, Tensor):
        return Image.fromarray(check_tensor(source).permute(1, 2, 0).contiguous().cpu().numpy())
    if not isinstance(source, Image.Image):
        raise TypeError(f"images must be PIL images, paths or uint8 tensors, got {type(source).__name__}")
    try:
        source.load()  # one that was opened and not read yet
    except Exception as error:
        raise UnreadableImageError(f"{name} cannot be read as an image: {error}") from error
    return source


def _report(reasons: dict[int, str], skipped: MutableMapping[int, str] | None) -> None:
    if skipped is not None:
        skipped.update(reasons)
    elif reasons:
        listed = "; ".join(itertools.islice(reasons.values(), _REASONS_IN_A_WARNING))
        more = "; ..." if len(reasons) > _REASONS_IN_A_WARNING else ""
        warnings.warn(f"{len(reasons)} images were skipped: {listed}{more}", stacklevel=3)
