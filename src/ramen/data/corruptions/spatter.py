"""Drops of water, or mud, on the lens.

There is a drop wherever blurred noise is high. Mud covers the image. Water adds its colour, more of it where
the relief of the drop rises: the distance from the nearest edge of a drop, its levels equalised, lit from one
side. Edges and distances are computed as in OpenCV, which the released files were made with.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import filters
from ramen.data.corruptions.filters import Images, Random

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Value = TypeVar("Value", np.int64, np.bool_)

_WATER = np.array([175, 238, 238], np.float32) / 255
_MUD = np.array([63, 42, 20], np.float32) / 255
_WEAK_EDGE, _STRONG_EDGE = 50, 150
_FARTHEST = 20
_LIGHT = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_ONE = 10_000  # a pixel in the unit of distances, in which the lengths of all steps are whole numbers
# Steps to a neighbour, a diagonal one, and a knight's move away.
_STEPS = tuple(
    (down, right, round(length * _ONE))
    for length, moves in (
        (1.0, ((0, 1), (1, 0), (0, -1), (-1, 0))),
        (1.4, ((1, 1), (1, -1), (-1, 1), (-1, -1))),
        (2.1969, ((1, 2), (1, -2), (-1, 2), (-1, -2), (2, 1), (2, -1), (-2, 1), (-2, -1))),
    )
    for down, right in moves
)


def spatter(x: Images, parameters: tuple[float, float, float, float, float, str], rng: Random) -> Images:
    """Water or mud; ``parameters`` are mean, deviation and blur of noise, threshold, strength, liquid."""
    mean, deviation, sigma, threshold, strength, liquid = parameters
    layer = rng.normal(mean, deviation, (*x.shape[:3], 1)).astype(np.float32)
    layer = filters.gaussian(layer, sigma, 4, filters.nearest)
    layer = np.where(layer < threshold, 0, layer)
    if liquid == "water":
        # A drop may be brighter than white before its colour is added: then the byte overflows, as published.
        drops = (layer[..., 0] * 255).astype(np.int64) % 256
        wet = (drops * _relief(drops)).astype(np.float32)
        most = wet.max((1, 2), keepdims=True)
        # Without a drop there is no water; the published code divides by zero in that case.
        share = np.divide(wet, most, out=np.zeros_like(wet), where=most > 0) * np.float32(strength)
        return np.asarray(x + share[..., None] * _WATER, np.float32)
    covered = filters.gaussian((layer > threshold).astype(np.float32), strength, 4, filters.nearest)
    covered = np.where(covered < 0.8, 0, covered)
    return np.asarray(x * (1 - covered) + covered * _MUD, np.float32)


def _relief(drops: Integers) -> Integers:
    depth = np.minimum(_distance(_edges(drops)), _FARTHEST * _ONE)
    depth = ((_sum_of_nine(depth) / _ONE) * (1 / 9)).astype(np.float32).astype(np.int64)
    lit = _correlate(_equalise(depth), _LIGHT).clip(0, 255)
    return np.asarray(np.rint(_sum_of_nine(lit) / 9), np.int64)


def _padded(images: Integers, reach: int, edge: filters.Edge) -> Integers:
    height, width = images.shape[1:]
    rows = edge(np.arange(-reach, height + reach), height)
    return images[:, rows[:, None], edge(np.arange(-reach, width + reach), width)]


def _correlate(images: Integers, kernel: NDArray[np.int_], edge: filters.Edge = filters.mirrored) -> Integers:
    height, width = images.shape[1:]
    padded = _padded(images, 1, edge)
    total = np.zeros_like(images)
    for y, x in np.argwhere(kernel):
        total += kernel[y, x] * padded[:, y : y + height, x : x + width]
    return total


def _sum_of_nine(images: Integers) -> Integers:
    return _correlate(images, np.ones((3, 3), int))


def _shifted(images: NDArray[Value], down: int, right: int, outside: int) -> NDArray[Value]:
    """The pixel ``down`` and ``right`` of each pixel; ``outside`` beyond the image."""
    height, width = images.shape[1:]
    result = np.full_like(images, outside)
    rows, columns = slice(max(0, -down), height - max(0, down)), slice(max(0, -right), width - max(0, right))
    result[:, rows, columns] = images[
        :, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)
    ]
    return result


def _edges(images: Integers) -> Mask:
    """Canny edges: crests of the gradient that are strong, or weak but connected to a strong one."""
    slope = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    across, along = (_correlate(images, kernel, filters.nearest) for kernel in (slope, slope.T))
    size = np.abs(across) + np.abs(along)
    # Directions by the tangents of 22.5 and 67.5 degrees in whole numbers, as in OpenCV.
    x, y = np.abs(across), np.abs(along) << 15
    flat, steep = y < x * 13573, y > x * 13573 + (x << 16)
    falling = (across ^ along) < 0

    def crest(down: int, right: int, ties: bool) -> Mask:
        before, after = _shifted(size, -down, -right, 0), _shifted(size, down, right, 0)
        return (size > before) & ((size >= after) if ties else (size > after))

    slanted = np.where(falling, crest(1, -1, False), crest(1, 1, False))
    thin = np.where(flat, crest(0, 1, True), np.where(steep, crest(1, 0, True), slanted))
    weak = (size > _WEAK_EDGE) & thin
    edges = weak & (size > _STRONG_EDGE)
    while True:
        near = edges
        for down, right in ((1, 0), (0, 1)):  # rows, then columns: the eight neighbours
            near = near | _shifted(near, down, right, 0) | _shifted(near, -down, -right, 0)
        grown = weak & near
        if np.array_equal(grown, edges):
            return edges
        edges = grown


def _distance(edges: Mask) -> Integers:
    """The shortest path to an edge in steps of the three kinds; a large number if there is no edge."""
    far = 2 * _FARTHEST * _ONE
    distance = np.where(edges, 0, far)
    while True:
        shorter = distance
        for down, right, length in _STEPS:
            shorter = np.minimum(shorter, _shifted(distance, down, right, far) + length)
        if np.array_equal(shorter, distance):
            return distance
        distance = shorter


def _equalise(levels: Integers) -> Integers:
    """Equalise the histogram: each level takes a range in proportion to its pixels; a single level stays."""
    total = levels.shape[1] * levels.shape[2]
    each = np.arange(_FARTHEST + 1)
    counts = np.stack([(levels == level).sum((1, 2)) for level in each], axis=1)
    lowest = (counts > 0).argmax(1)
    first = np.take_along_axis(counts, lowest[:, None], 1)
    scale = np.float32(255) / np.maximum(total - first, 1).astype(np.float32)
    above = np.where(each > lowest[:, None], counts, 0).cumsum(1).astype(np.float32)
    spread = np.rint(above * scale).astype(np.int64)
    spread = np.where(first == total, each, spread)
    return np.take_along_axis(spread, levels.reshape(len(levels), -1), 1).reshape(levels.shape)
