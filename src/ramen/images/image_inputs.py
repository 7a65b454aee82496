"""The images that ``Preprocess`` takes, one or many: files of data sets, PIL images, uint8 tensors."""

import os
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from ramen.images.decoding import MissingImageError, UnreadableImageError
from ramen.images.pillow_warnings import no_pillow_warnings
from ramen.images.rgb import to_rgb

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
