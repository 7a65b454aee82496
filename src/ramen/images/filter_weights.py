"""The weights with which Pillow makes new pixels of old ones, as the whole numbers that it computes with."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
