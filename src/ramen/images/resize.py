"""Pillow's resizing of 8-bit images as matrix products: the same pixels, on any device.

Pillow resizes an image along one axis and then the other. A new pixel is a weighted sum of old ones, rounded
half up and clamped to 0..255 after each axis; the weights are multiples of 2**-22. As a matrix product in
float32 such a sum would lose bits: it needs 31 of them. So each weight is written as signed digits of at most
11 bits, each digit is multiplied separately, and the sums are combined from the lowest digit up, each
carrying over to the next. Every product and every sum is then a whole number below 2**24 of its digit's
units: exact in float32 in any order of addition, and also in TF32, which keeps 11 bits of a factor. The
pixels do not depend on whether TF32 is switched on.

The order of the axes changes some pixels, and it depends on Pillow's version: older ones always begin with
the width, from 13 on with the height if that shrinks much more. The installed Pillow decides: once for each
pair of sizes it resizes some noise, and every pixel has to agree. If the resized image would be enormous,
the noise is a shorter one.

Only the pixels that are kept are computed, which also makes it the way to resize an image of 20,000 x 10
pixels: Pillow would enlarge all of it before most is cut off.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ramen.utils.numerics import plain_numerics

Numbers = NDArray[np.float64]

UNIT_BITS = 22  # a weight is a multiple of 2**-22
_STEPS = 2**16  # of the nearest filter that are added at a time


@dataclass(frozen=True)
class Span:
    """One axis: ``old`` pixels become ``new``, of which those from ``start`` to ``stop`` are kept."""

    old: int
    new: int
    start: int
    stop: int


def used_pixels(span: Span, interpolation: str) -> tuple[int, int]:
    """The first old pixel that the kept ones are made of, and the one after the last."""
    if span.old == span.new:
        return span.start, span.stop
    if interpolation == "nearest":
        places = _nearest(span)
        return int(places[0]), int(places[-1]) + 1
    scale = span.old / span.new
    reach = _CURVES[interpolation][1] * max(scale, 1.0)
    first, last = (span.start + 0.5) * scale, (span.stop - 0.5) * scale
    return max(0, int(first - reach)), min(span.old, int(last + reach + 0.5) + 1)


def fixed_point_weights(span: Span, interpolation: str, first: int, stop: int) -> NDArray[np.int64]:
    """Pillow's weights ``(kept, stop - first)`` of old pixels in units of 2**-22, one row per kept pixel."""
    if interpolation == "nearest":
        chosen: NDArray[np.int64] = _nearest(span)[:, None] == np.arange(first, stop)
        return chosen.astype(np.int64) << UNIT_BITS
    curve, reach = _CURVES[interpolation]
    scale = span.old / span.new
    stretch = max(scale, 1.0)  # shrinking averages over more pixels
    reach *= stretch
    centres = (np.arange(span.start, span.stop)[:, None] + 0.5) * scale
    places = np.arange(first, stop)
    inside = (places >= np.trunc(centres - reach + 0.5)) & (places < np.trunc(centres + reach + 0.5))
    weights = np.where(inside, curve((places - centres + 0.5) * (1.0 / stretch)), 0.0)
    weights /= np.cumsum(weights, axis=1)[:, -1:]  # in order, as Pillow adds them
    rounded: Numbers = np.trunc(weights * 2**UNIT_BITS + np.copysign(0.5, weights))
    return rounded.astype(np.int64)


def _nearest(span: Span) -> NDArray[np.int64]:
    """The old pixel that each kept one is a copy of."""
    step = span.old / span.new
    # Pillow adds step after step, with the rounding of each addition
    position, kept = 0.5 * step, []
    for start in range(0, span.stop, _STEPS):
        count = min(_STEPS, span.stop - start)
        positions = np.cumsum(np.concatenate([[position], np.full(count, step)]))
        kept.append(positions[max(0, span.start - start) : count])
        position = positions[count]
    return np.concatenate(kept).astype(np.int64)


def _triangle(x: Numbers) -> Numbers:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _cubic(x: Numbers) -> Numbers:
    x, a = np.abs(x), -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _lanczos(x: Numbers) -> Numbers:
    return np.where((x >= -3.0) & (x < 3.0), _sinc(x) * _sinc(x / 3.0), 0.0)


def _sinc(x: Numbers) -> Numbers:
    angle = np.where(x == 0.0, 1.0, x * math.pi)
    return np.where(x == 0.0, 1.0, np.sin(angle) / angle)


_CURVES: dict[str, tuple[Callable[[Numbers], Numbers], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}


FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

# Modes whose channels Pillow resizes one by one, with the mode that it does so in.
_CHANNELS = {mode: mode for mode in ("L", "RGB", "RGBX", "CMYK", "YCbCr", "HSV")} | {
    "LA": "La",
    "RGBA": "RGBa",
}
_ALWAYS_NEAREST = ("1", "P")  # modes for which Pillow ignores the filter

_DIGIT_BITS = (12, 8, 4)  # a signed digit of 12 bits is at most 2**11; fewer bits allow sums of more pixels
_LARGEST_SUM = 2**23  # of one digit; as much again is left for the carry from the lower digits
_COMPARED_PIXELS = 1024  # of resized noise on which Pillow must agree, at least
_NOISE_PIXELS = 2**20  # at most, if that is more than one image
_RESIZED_NOISE = 2**22  # pixels that Pillow resizes noise to, at most

# Bytes in use at a time; an image that needs more is resized alone.
_WORKSPACE = {"cpu": 2**22}
_DEVICE_WORKSPACE = 2**29

_ROWS, _COLUMNS = 2, 3  # dimensions of a batch


@dataclass(frozen=True)
class Plan:
    """How the height (``rows``) and the width (``columns``) of images are resized, and with which filter."""

    rows: Span
    columns: Span
    interpolation: str

    @property
    def kept(self) -> tuple[slice, slice]:
        """The rows and columns of the resized image that are kept."""
        return slice(self.rows.start, self.rows.stop), slice(self.columns.start, self.columns.stop)


@plain_numerics()
def resize(images: Tensor, plan: Plan) -> Tensor:
    """Resize a uint8 batch ``(B, 3, H, W)`` on its device; only for plans that ``agrees_with_pillow``."""
    return _resize(images, plan, rows_first=_rows_first(plan) or False, dtype=torch.float32)


@plain_numerics()
def resize_kept(image: Image.Image, plan: Plan) -> Image.Image | None:
    """What ``plan`` keeps of an image that Pillow would resize and then convert to RGB.

    None if the same pixels cannot be promised: for some modes, and for plans that Pillow does not agree with.
    """
    if image.mode in _ALWAYS_NEAREST:
        plan, mode = replace(plan, interpolation="nearest"), "RGB"
    elif image.mode in _CHANNELS:
        # Pillow only copies an image that has its size already.
        is_copied = plan.rows.old == plan.rows.new and plan.columns.old == plan.columns.new
        mode = image.mode if is_copied or plan.interpolation == "nearest" else _CHANNELS[image.mode]
    else:
        return None
    if not agrees_with_pillow(plan):
        return None
    (top, bottom), (left, right) = (
        used_pixels(span, plan.interpolation) for span in (plan.rows, plan.columns)
    )
    part = image.crop((left, top, right, bottom)).convert(mode)
    pixels = np.array(part).reshape(bottom - top, right - left, -1).transpose(2, 0, 1)
    batch = torch.from_numpy(pixels)[None]
    kept = _resize(batch, plan, _rows_first(plan) or False, torch.float32, origin=(top, left))[0]
    content = kept.permute(1, 2, 0).contiguous().numpy().tobytes()
    resized = Image.frombytes(mode, (kept.shape[2], kept.shape[1]), content)
    return (resized if mode == "RGB" else resized.convert(image.mode)).convert("RGB")


def agrees_with_pillow(plan: Plan) -> bool:
    """Whether ``resize`` gives the pixels of the installed Pillow.

    It does for all known versions, up to thousands of old pixels per new pixel.
    """
    return _rows_first(plan) is not None


@lru_cache(maxsize=256)
@plain_numerics()
def _rows_first(plan: Plan) -> bool | None:
    """Whether the installed Pillow begins with the height; None if neither order gives its pixels."""
    rows, columns = _shortened(plan)
    plan = Plan(_widened(rows), _widened(columns), plan.interpolation)
    height, width = plan.rows.stop - plan.rows.start, plan.columns.stop - plan.columns.start
    count = max(
        1, min(_COMPARED_PIXELS // (height * width), _NOISE_PIXELS // (plan.rows.old * plan.columns.old))
    )
    shape = (count, plan.rows.old, plan.columns.old, 3)
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    size = plan.columns.new, plan.rows.new
    theirs = np.stack(
        [np.asarray(Image.fromarray(n).resize(size, FILTERS[plan.interpolation]))[plan.kept] for n in noise]
    )
    images = torch.from_numpy(noise).permute(0, 3, 1, 2)
    with contextlib.suppress(OverflowError):
        for rows_first in (False, True):
            ours = _resize(images, plan, rows_first, torch.float64)  # exact, whatever is switched on
            if np.array_equal(ours.permute(0, 2, 3, 1).numpy(), theirs):
                return rows_first
    return None


def _shortened(plan: Plan) -> tuple[Span, Span]:
    """Rows and columns; if there are very many pixels, with fewer on the longer axis, of the same scale."""
    rows, columns = plan.rows, plan.columns
    factor = rows.new * columns.new / _RESIZED_NOISE
    if factor <= 1:
        return rows, columns
    longer = max(rows, columns, key=lambda span: span.new)
    old, new = max(1, round(longer.old / factor)), max(1, round(longer.new / factor))
    shorter = Span(old, new, new // 2, new // 2 + 1)
    return (shorter, columns) if longer is rows else (rows, shorter)


def _widened(span: Span) -> Span:
    """With enough pixels to distinguish one order of the axes from the other."""
    least = min(32, span.new)
    start = max(0, min(span.start, span.stop - least))
    return Span(span.old, span.new, start, max(span.stop, start + least))


def _resize(
    images: Tensor, plan: Plan, rows_first: bool, dtype: torch.dtype, origin: tuple[int, int] = (0, 0)
) -> Tensor:
    """Resize; ``origin`` is the row and the column of the old image at which ``images`` begins."""
    rows, columns = (
        _matrix(span, plan.interpolation, images.device, dtype) for span in (plan.rows, plan.columns)
    )
    used_rows, used_columns = (
        slice(matrix.first - start, matrix.stop - start)
        for matrix, start in zip((rows, columns), origin, strict=True)
    )
    images = images[:, :, used_rows, used_columns]
    passes = [(columns, _COLUMNS), (rows, _ROWS)]
    if rows_first:
        passes.reverse()
    workspace = _WORKSPACE.get(images.device.type, _DEVICE_WORKSPACE)
    pieces = images.split(max(1, workspace // _bytes_per_image(images, passes)))
    resized = [_multiply(piece, passes) for piece in pieces]
    return resized[0] if len(resized) == 1 else torch.cat(resized)


@dataclass(frozen=True)
class _Matrix:
    """The weights of one axis by digits, lowest first, for the old pixels from ``first`` to ``stop``.

    The weights of a digit are divided by the value of the next digit's unit, those of the highest digit give
    pixels: that saves multiplications. ``stacked`` is None if this axis is not resized.
    """

    first: int
    stop: int
    kept: int
    scales: tuple[float, ...] = ()  # one per digit
    stacked: Tensor | None = None  # (digits * kept, stop - first)


def _bytes_per_image(images: Tensor, passes: list[tuple[_Matrix, int]]) -> int:
    shape, most = list(images.shape), 1
    for matrix, dim in passes:
        read = math.prod(shape[1:])
        shape[dim] = matrix.kept
        most = max(most, 4 * (read + len(matrix.scales) * math.prod(shape[1:])))
    return most


def _multiply(images: Tensor, passes: list[tuple[_Matrix, int]]) -> Tensor:
    for matrix, dim in passes:
        if matrix.stacked is None:
            continue
        pixels = images.to(matrix.stacked.dtype)
        if dim == _COLUMNS:
            sums = pixels @ matrix.stacked.T
        else:
            planes = pixels.flatten(0, 1)
            sums = torch.bmm(matrix.stacked.expand(len(planes), -1, -1), planes)
            sums = sums.unflatten(0, images.shape[:2])
        images = _combined(sums.chunk(len(matrix.scales), dim), matrix.scales)
    return images


def _combined(sums: tuple[Tensor, ...], scales: tuple[float, ...]) -> Tensor:
    total = sums[0]
    for higher, scale in zip(sums[1:], scales[1:], strict=True):
        total = higher.add_(total.floor_(), alpha=scale)
    return total.add_(0.5).clamp_(0, 255).to(torch.uint8)  # drops the fraction


@lru_cache(maxsize=64)
def _matrix(span: Span, interpolation: str, device: torch.device, dtype: torch.dtype) -> _Matrix:
    kept = span.stop - span.start
    if span.old == span.new:
        return _Matrix(span.start, span.stop, kept)
    first, stop = used_pixels(span, interpolation)
    bits, digits = _digits(fixed_point_weights(span, interpolation, first, stop), span)
    scales = (2.0**-bits,) * (len(digits) - 1) + (2.0 ** (bits * (len(digits) - 1) - UNIT_BITS),)
    scaled = np.concatenate([digit * scale for digit, scale in zip(digits, scales, strict=True)])
    stacked = torch.from_numpy(scaled).to(dtype).to(device)  # waits, as another stream may use it next
    return _Matrix(first, stop, kept, scales, stacked)


def _digits(weights: NDArray[np.int64], span: Span) -> tuple[int, list[NDArray[np.int64]]]:
    """The number of bits per digit, and the digits of the weights, lowest first."""
    for bits in _DIGIT_BITS:
        half = 1 << (bits - 1)
        digits, higher = [], weights
        for _ in range(-(-UNIT_BITS // bits) - 1):
            digits.append(((higher + half) & (2 * half - 1)) - half)
            higher = (higher - digits[-1]) >> bits
        digits.append(higher)
        if all(255 * np.abs(digit).sum(1).max() <= _LARGEST_SUM for digit in digits):
            return bits, digits
    raise OverflowError(f"{span.old} pixels are too many to be resized exactly to {span.new}")
