"""From any mode of Pillow to eight bits per channel, without the conversions that are silently wrong.

Pillow's own ``convert("RGB")`` cuts off what is above 255: an image of 16 bits becomes nearly white. It takes
floats as values up to 255: an image of floats up to 1 becomes nearly black.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
_SIXTEEN_BIT_FILES = ("PNG", "PPM")  # for which Pillow gives 16 bits as mode "I"
_STRIP_PIXELS = 2**20  # converted at a time

# tags of a TIFF file
_BITS_PER_SAMPLE = 258
_PHOTOMETRIC = 262
_WHITE_IS_ZERO = 0


def to_rgb(image: Image.Image) -> Image.Image:
    """An image in mode RGB; raises a ValueError that says why it cannot be converted.

    Modes of eight bits are converted by Pillow, which drops transparency. See ``to_eight_bits`` for others.
    """
    image = to_eight_bits(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def to_eight_bits(image: Image.Image) -> Image.Image:
    """An image in a mode of eight bits per channel: itself, or grey in mode L if its mode is a wider one.

    - 16 bits: divided by 257 and rounded, so that 65,535 becomes 255. A TIFF file of 12 bits: by 4,095 / 255.
    - Floats: all within 0 to 1 are multiplied by 255, all within 0 to 255 are kept; then they are rounded.
    - 32-bit integers: kept if all are within 0 to 255. If not, nothing says which number is white.

    All else is refused with a ValueError: numbers beyond these ranges, and those that are not finite.
    """
    tags = getattr(image, "tag_v2", {})
    if image.mode in _SIXTEEN_BITS:
        bits = tags.get(_BITS_PER_SAMPLE)
        converted = _by_strips(image, _twelve_bits if bits == (12,) else sixteen_bits)
    elif image.mode == "I":
        converted = _by_strips(
            image, sixteen_bits if image.format in _SIXTEEN_BIT_FILES else _integers(image)
        )
    elif image.mode == "F":
        converted = _by_strips(image, float_scaling(_extremes(image)))
    else:
        return image
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:  # which Pillow ignores for these modes
        return converted.point(lambda value: 255 - value)
    return converted


def sixteen_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers of 16 bits, divided by 257 and rounded.

    >>> sixteen_bits(np.array([0, 128, 129, 65535])).tolist()
    [0, 0, 1, 255]
    """
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def float_scaling(extremes: tuple[float, float]) -> Callable[[NDArray[Any]], NDArray[np.uint8]]:
    """What makes bytes of floats with this smallest and largest value; raises if neither range holds them.

    >>> float_scaling((0.0, 1.0))(np.array([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    """
    low, high = extremes
    if not np.isfinite([low, high]).all():
        raise ValueError("it has values that are not finite")
    if low < 0 or high > 255:
        raise ValueError(
            f"it has floats from {low:g} to {high:g}: expected all within 0 to 1, or all within 0 to 255"
        )
    white = 255.0 if high <= 1 else 1.0
    return lambda values: np.rint(values.astype(np.float64) * white).astype(np.uint8)


def extremes(values: NDArray[Any]) -> tuple[float, float]:
    """The smallest and the largest value; NaN if one is."""
    return float(values.min()), float(values.max())


def _twelve_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    return ((values.astype(np.uint32) * 255 + 2047) // 4095).astype(np.uint8)


def _integers(image: Image.Image) -> Callable[[NDArray[Any]], NDArray[np.uint8]]:
    low, high = _extremes(image)
    if low < 0 or high > 255:
        raise ValueError(
            f"it has 32-bit integers from {low:.0f} to {high:.0f}: nothing says which number is white unless "
            "all are within 0 to 255; save it with 8 or 16 bits"
        )
    return lambda values: values.astype(np.uint8)


def _extremes(image: Image.Image) -> tuple[float, float]:
    parts = [extremes(np.asarray(image.crop(box))) for box in _strips(image)]
    return float(np.min(parts)), float(np.max(parts))


def _by_strips(image: Image.Image, convert: Callable[[NDArray[Any]], NDArray[np.uint8]]) -> Image.Image:
    """A grey image, converted with little memory beside it."""
    converted = Image.new("L", image.size)
    for box in _strips(image):
        converted.paste(Image.fromarray(convert(np.asarray(image.crop(box)))), box)
    return converted


def _strips(image: Image.Image) -> list[tuple[int, int, int, int]]:
    rows = max(1, _STRIP_PIXELS // image.width)
    tops = range(0, image.height, rows)
    return [(0, top, image.width, min(image.height, top + rows)) for top in tops]
