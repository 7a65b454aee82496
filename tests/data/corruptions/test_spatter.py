"""Spatter against a plain transcription: Canny edges, distances, relief."""

import math
from collections import deque

import numpy as np
import pytest

from ramen.data.corruptions import SEVERITIES, corrupt
from ramen.data.corruptions import spatter as wet
from tests.data.corruptions.plain_filters import (
    as_bytes,
    assert_close,
    clamp,
    parameters,
    plain_gaussian,
    reflect101,
    sample_images,
)


def plain_gradient(image):
    n = len(image)
    across, along = np.zeros((n, n), int), np.zeros((n, n), int)

    def at(y, x):
        return int(image[clamp(y, n), clamp(x, n)])

    for y in range(n):
        for x in range(n):
            for s, weight in ((-1, 1), (0, 2), (1, 1)):
                across[y, x] += weight * (at(y + s, x + 1) - at(y + s, x - 1))
                along[y, x] += weight * (at(y + 1, x + s) - at(y - 1, x + s))
    return across, along


def is_crest(size, across, along):
    """Higher than both neighbours in the direction of the gradient; a tie goes to the second of two."""
    angle = math.degrees(math.atan2(abs(along), abs(across)))
    if angle < 22.5:
        return size(0, 0) > size(0, -1) and size(0, 0) >= size(0, 1)
    if angle > 67.5:
        return size(0, 0) > size(-1, 0) and size(0, 0) >= size(1, 0)
    s = 1 if (across < 0) == (along < 0) else -1
    return size(0, 0) > max(size(-1, -s), size(1, s))


def plain_canny(image):
    """Edges by their definition: crests of the gradient, grown from strong to weak by a walk."""
    n = len(image)
    across, along = plain_gradient(image)
    size = np.pad(np.abs(across) + np.abs(along), 1)
    weak, edges = set(), set()
    for y in range(n):
        for x in range(n):
            here = size[y + 1, x + 1]
            around = size[y : y + 3, x : x + 3]
            if here > 50 and is_crest(lambda i, j, a=around: a[i + 1, j + 1], across[y, x], along[y, x]):
                weak.add((y, x))
                if here > 150:
                    edges.add((y, x))
    waiting = deque(edges)
    while waiting:
        y, x = waiting.popleft()
        near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & weak - edges
        edges |= near
        waiting.extend(near)
    return edges


def plain_length(down, right):
    """The shortest way in steps of 1, 1.4 (diagonal) and 2.1969 (a knight's move)."""
    long, short = max(abs(down), abs(right)), min(abs(down), abs(right))
    if 2 * short <= long:
        return (long - 2 * short) * 1.0 + short * 2.1969
    return (2 * short - long) * 1.4 + (long - short) * 2.1969


def plain_relief(image):
    n = len(image)
    edges = plain_canny(image)
    depth = np.full((n, n), 20.0)
    for y in range(n):
        for x in range(n):
            depth[y, x] = min([plain_length(y - a, x - b) for a, b in edges] + [20.0])

    def around(values, weights):
        total = np.zeros((n, n))
        for y in range(n):
            for x in range(n):
                for i in (-1, 0, 1):
                    for j in (-1, 0, 1):
                        source = values[reflect101(y + i, n), reflect101(x + j, n)]
                        total[y, x] += weights[i + 1][j + 1] * source
        return total

    levels = (around(depth, [[1] * 3] * 3) / 9 + 1e-6).astype(int)
    lowest = levels.min()
    if levels.max() > lowest:
        rest = (levels > lowest).sum()
        levels = np.vectorize(lambda v: round(((levels > lowest) & (levels <= v)).sum() * 255 / rest))(levels)
    lit = around(levels, [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]).clip(0, 255)
    return np.rint(around(lit, [[1] * 3] * 3) / 9)


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 3)])
def test_spatter(recipe, severity):
    mean, deviation, sigma, threshold, strength, liquid = parameters("spatter", severity, recipe)
    assert liquid == ("water" if severity <= 3 else "mud")
    images = sample_images(2)
    layers = np.random.default_rng(4).normal(mean, deviation, (2, 32, 32, 1)).astype(np.float32)
    ours = corrupt(images, "spatter", np.random.default_rng(4), severity, recipe)
    for image, layer, result in zip(images, layers[..., 0], ours, strict=True):
        layer = plain_gaussian(layer, sigma)
        layer[layer < threshold] = 0
        x = image / 255
        if liquid == "water":
            drops = (layer * 255).astype(np.uint8)
            wet_share = drops * plain_relief(drops)
            wet_share *= strength / wet_share.max()
            x = x + wet_share[..., None] * np.array([175, 238, 238]) / 255
        else:
            mud = plain_gaussian((layer > threshold).astype(float), strength)[..., None]
            mud[mud < 0.8] = 0
            assert mud.any()
            x = x * (1 - mud) + mud * np.array([63, 42, 20]) / 255
        assert_close(result, as_bytes(x))


def test_no_drop_leaves_the_image_unchanged():
    images = sample_images(2)
    nothing = wet.spatter(
        images.astype(np.float32) / 255, (0, 0, 1, 0.7, 0.5, "water"), np.random.default_rng(0)
    )
    assert np.array_equal(as_bytes(nothing), images)
