"""Pillow's resizing of 8-bit pictures as matrix products: the same pixels, on any device.

Pillow resizes a picture along one axis and then the other. A new pixel is a weighted sum of old ones, rounded
half up and clamped to 0..255 after each axis; the weights are whole numbers of units of 2**-22. As a matrix
product in float32 such a sum would lose bits: it needs 31 of them. So each weight is written as signed digits
of at most 11 bits, the digits are multiplied apart, and their sums are joined from the lowest digit up, each
handing what it has above its place to the next. Every product and every sum is then a whole number below
2**24 of its digit's units: exact in float32 in whatever order a device adds, and in TF32 as well, which keeps
11 bits of a factor. The pixels do not depend on whether that is switched on.

Which axis comes first shows in some pixels, and Pillow's versions differ in it: in older ones it is always
the width, from 13 on the height where that shrinks much more. The installed Pillow is asked, once for each
pair of sizes, and has to agree in every pixel of some noise.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ramen.utils.numerics import plain_numerics

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

Numbers = NDArray[np.float64]

_UNIT_BITS = 22  # of Pillow's weights
_DIGIT_BITS = (12, 8, 4)  # a signed digit of 12 bits is at most 2**11; fewer bits leave room for more pixels
_EXACT = 2**23  # what a sum of one digit may come to; as much again is left for what the lower digits hand on
_PROBED = 1024  # resized pixels of noise that Pillow must agree on, at least
_NOISE = 2**20  # pixels of noise at most, where that is more than one picture

# Bytes that may be in work at a time; a picture that needs more goes by itself.
_WORKSPACE = {"cpu": 2**22}
_DEVICE_WORKSPACE = 2**29

_ROWS, _COLUMNS = 2, 3  # dimensions of a batch


@dataclass(frozen=True)
class Span:
    """One axis: ``old`` pixels become ``new``, of which those from ``start`` to ``stop`` are wanted."""

    old: int
    new: int
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """What becomes of the height (``rows``) and the width (``columns``) of pictures, with a filter."""

    rows: Span
    columns: Span
    interpolation: str

    @property
    def wanted(self) -> tuple[slice, slice]:
        """Rows and columns of the resized picture."""
        return slice(self.rows.start, self.rows.stop), slice(self.columns.start, self.columns.stop)


@plain_numerics()
def resize(images: Tensor, plan: Plan) -> Tensor:
    """Resize a uint8 batch ``(B, 3, H, W)`` where it lies; only for plans that ``agrees_with_pillow``."""
    return _resize(images, plan, rows_first=_rows_first(plan) or False, dtype=torch.float32)


def agrees_with_pillow(plan: Plan) -> bool:
    """Whether ``resize`` gives the pixels of the installed Pillow.

    It does with the versions known, up to thousands of old pixels for a new one.
    """
    return _rows_first(plan) is not None


@lru_cache(maxsize=256)
@plain_numerics()
def _rows_first(plan: Plan) -> bool | None:
    """Whether the installed Pillow begins with the height; None if neither order gives its pixels."""
    plan = Plan(_widened(plan.rows), _widened(plan.columns), plan.interpolation)
    height, width = plan.rows.stop - plan.rows.start, plan.columns.stop - plan.columns.start
    count = max(1, min(_PROBED // (height * width), _NOISE // (plan.rows.old * plan.columns.old)))
    shape = (count, plan.rows.old, plan.columns.old, 3)
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    size = plan.columns.new, plan.rows.new
    theirs = np.stack(
        [np.asarray(Image.fromarray(n).resize(size, FILTERS[plan.interpolation]))[plan.wanted] for n in noise]
    )
    images = torch.from_numpy(noise).permute(0, 3, 1, 2)
    with contextlib.suppress(OverflowError):
        for rows_first in (False, True):
            ours = _resize(images, plan, rows_first, torch.float64)  # which no switch makes less exact
            if np.array_equal(ours.permute(0, 2, 3, 1).numpy(), theirs):
                return rows_first
    return None


def _widened(span: Span) -> Span:
    """With enough wanted pixels to tell one order from the other."""
    least = min(32, span.new)
    start = max(0, min(span.start, span.stop - least))
    return Span(span.old, span.new, start, max(span.stop, start + least))


def _resize(images: Tensor, plan: Plan, rows_first: bool, dtype: torch.dtype) -> Tensor:
    rows, columns = (
        _matrix(span, plan.interpolation, images.device, dtype) for span in (plan.rows, plan.columns)
    )
    images = images[:, :, rows.first : rows.last, columns.first : columns.last]
    passes = [(columns, _COLUMNS), (rows, _ROWS)]
    if rows_first:
        passes.reverse()
    workspace = _WORKSPACE.get(images.device.type, _DEVICE_WORKSPACE)
    pieces = images.split(max(1, workspace // _bytes_in_work(images, passes)))
    done = [_multiply(piece, passes) for piece in pieces]
    return done[0] if len(done) == 1 else torch.cat(done)


@dataclass(frozen=True)
class _Matrix:
    """The weights of one axis by digits, lowest first; of the old pixels, those from ``first`` to ``last``.

    The sums of a digit come out divided by the value of the next digit's unit, those of the highest digit as
    pixels: that spares multiplications. ``stacked`` is None where nothing is resized.
    """

    first: int
    last: int
    wanted: int
    scales: tuple[float, ...] = ()  # one a digit
    stacked: Tensor | None = None  # (digits * wanted, last - first)


def _bytes_in_work(images: Tensor, passes: list[tuple[_Matrix, int]]) -> int:
    """What one image of a batch needs at most."""
    shape, most = list(images.shape), 1
    for matrix, dim in passes:
        read = math.prod(shape[1:])
        shape[dim] = matrix.wanted
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
        images = _joined(sums.chunk(len(matrix.scales), dim), matrix.scales)
    return images


def _joined(sums: tuple[Tensor, ...], scales: tuple[float, ...]) -> Tensor:
    """The pixels, of the sums by digits."""
    total = sums[0]
    for higher, scale in zip(sums[1:], scales[1:], strict=True):
        total = higher.add_(total.floor_(), alpha=scale)
    return total.add_(0.5).clamp_(0, 255).to(torch.uint8)  # which drops the fraction


@lru_cache(maxsize=64)
def _matrix(span: Span, interpolation: str, device: torch.device, dtype: torch.dtype) -> _Matrix:
    wanted = span.stop - span.start
    if span.old == span.new:
        return _Matrix(span.start, span.stop, wanted)
    weights = fixed_point_weights(span, interpolation)
    used = np.flatnonzero(weights.any(0))
    first, last = int(used[0]), int(used[-1]) + 1
    bits, digits = _digits(weights[:, first:last], span)
    scales = (2.0**-bits,) * (len(digits) - 1) + (2.0 ** (bits * (len(digits) - 1) - _UNIT_BITS),)
    scaled = np.concatenate([digit * scale for digit, scale in zip(digits, scales, strict=True)])
    stacked = torch.from_numpy(scaled).to(dtype).to(device)  # waits: another stream may use it next
    return _Matrix(first, last, wanted, scales, stacked)


def _digits(weights: NDArray[np.int64], span: Span) -> tuple[int, list[NDArray[np.int64]]]:
    """Bits of a digit, and the digits of the weights, lowest first."""
    for bits in _DIGIT_BITS:
        half = 1 << (bits - 1)
        digits, rest = [], weights
        for _ in range(-(-_UNIT_BITS // bits) - 1):
            digits.append(((rest + half) & (2 * half - 1)) - half)
            rest = (rest - digits[-1]) >> bits
        digits.append(rest)
        if all(255 * np.abs(digit).sum(1).max() <= _EXACT for digit in digits):
            return bits, digits
    raise OverflowError(f"{span.old} pixels in a row are too many to be resized exactly to {span.new}")


def fixed_point_weights(span: Span, interpolation: str) -> NDArray[np.int64]:
    """Pillow's weights ``(wanted, old)`` in units of 2**-22, a row for each of the wanted pixels."""
    if interpolation == "nearest":
        return _nearest(span)
    curve, reach = _CURVES[interpolation]
    scale = span.old / span.new
    stretch = max(scale, 1.0)  # a picture that shrinks is averaged over
    reach *= stretch
    centres = (np.arange(span.start, span.stop)[:, None] + 0.5) * scale
    places = np.arange(span.old)
    inside = (places >= np.trunc(centres - reach + 0.5)) & (places < np.trunc(centres + reach + 0.5))
    weights = np.where(inside, curve((places - centres + 0.5) * (1.0 / stretch)), 0.0)
    weights /= np.cumsum(weights, axis=1)[:, -1:]  # one after the other, as Pillow adds them
    rounded: Numbers = np.trunc(weights * 2**_UNIT_BITS + np.copysign(0.5, weights))
    return rounded.astype(np.int64)


def _nearest(span: Span) -> NDArray[np.int64]:
    step = span.old / span.new
    # Pillow walks along the row and adds up, roundings included
    walked = np.cumsum(np.concatenate([[0.5 * step], np.full(span.stop - 1, step)]))[span.start :]
    weights = np.zeros((span.stop - span.start, span.old), dtype=np.int64)
    weights[np.arange(len(weights)), walked.astype(np.int64)] = 1 << _UNIT_BITS
    return weights


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
