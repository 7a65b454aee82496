"""Frost and the four extra corruptions against plain transcriptions, one pixel at a time."""

import colorsys
import importlib.util
import math
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import RECIPES, SEVERITIES, corrupt, frost
from ramen.data.corruptions import spatter as wet


def parameters(name, severity, recipe="cifar"):
    return RECIPES[recipe].parameters[name][severity - 1]


def pictures(count=2, size=32, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    images = [np.asarray(Image.fromarray(s).resize((size, size), Image.Resampling.BICUBIC)) for s in small]
    images = np.stack(images).copy()
    images[:, 4:9, 20:27] = 0
    images[:, 15:18, 3:30] = 255
    images[:, 25:28, 3:12] = 97  # grey: no hue of its own
    return images


def as_bytes(x):
    return (np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


def assert_close(ours, plain, share=0.02):
    difference = np.abs(ours.astype(int) - plain.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < share


def reflect101(i, n):
    while not 0 <= i < n:
        i = -i if i < 0 else 2 * n - 2 - i
    return i


def clamp(i, n):
    return min(max(i, 0), n - 1)


def plain_gaussian(image, sigma):
    """Four deviations wide, the edge's pixel beyond the edge."""
    radius = int(4 * sigma + 0.5)
    weights = [math.exp(-0.5 * (s / sigma) ** 2) for s in range(-radius, radius + 1)]
    n = len(image)
    for _ in range(2):
        blurred = np.zeros_like(image, dtype=float)
        for i in range(n):
            for step, weight in zip(range(-radius, radius + 1), weights, strict=True):
                blurred[i] += weight / sum(weights) * image[clamp(i + step, n)]
        image = blurred.swapaxes(0, 1)
    return image


@pytest.mark.parametrize("severity", SEVERITIES)
def test_speckle_noise(severity):
    sigma = parameters("speckle_noise", severity)
    for level in (60, 128):
        images = np.full((40, 32, 32, 3), level, dtype=np.uint8)
        noise = corrupt(images, "speckle_noise", np.random.default_rng(0), severity) / 255 - level / 255
        assert noise.std() == pytest.approx(sigma * level / 255, rel=0.02)
        assert noise.mean() == pytest.approx(-0.5 / 255, abs=2e-3)


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 5)])
def test_gaussian_blur(recipe, severity):
    images = pictures(1)
    plain = plain_gaussian(images[0] / 255, parameters("gaussian_blur", severity, recipe))
    assert_close(
        corrupt(images, "gaussian_blur", np.random.default_rng(0), severity, recipe)[0], as_bytes(plain)
    )


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 5)])
def test_saturate(recipe, severity):
    factor, offset = parameters("saturate", severity, recipe)
    images = pictures(1)
    plain = np.zeros((32, 32, 3))
    for row in range(32):
        for column in range(32):
            hue, saturation, value = colorsys.rgb_to_hsv(*(images[0, row, column] / 255))
            saturation = min(max(saturation * factor + offset, 0), 1)
            plain[row, column] = colorsys.hsv_to_rgb(hue, saturation, value)
    assert_close(corrupt(images, "saturate", np.random.default_rng(0), severity, recipe)[0], as_bytes(plain))


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
    images = pictures(2)
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


@pytest.mark.parametrize("kind", ["drops", "noise", "stripes", "blank"])
def test_edges_and_distances(kind):
    """Images that show every branch: ties, borders, weak edges that hang on strong ones, no edge at all."""
    rng = np.random.default_rng(8)
    n = 24
    image = {
        "drops": np.where(plain_gaussian(rng.random((n, n)), 1) > 0.55, 190, 0),
        "noise": np.rint(plain_gaussian(rng.random((n, n)) * 255, 1.2)).astype(int),
        "stripes": np.add.outer(np.arange(n) * 9, np.arange(n) * 13) % 120,
        "blank": np.full((n, n), 7),
    }[kind].astype(np.int64)
    edges = wet._edges(image[None])[0]
    plain = plain_canny(image)
    assert {tuple(map(int, place)) for place in np.argwhere(edges)} == plain
    assert (kind == "blank") == (not plain)
    distance = np.minimum(wet._distance(edges[None])[0] / 10_000, 20)
    for y in range(n):
        for x in range(n):
            expected = min([plain_length(y - a, x - b) for a, b in plain] + [20])
            assert distance[y, x] == pytest.approx(expected)


def test_no_drop_leaves_the_picture():
    images = pictures(2)
    nothing = wet.spatter(
        images.astype(np.float32) / 255, (0, 0, 1, 0.7, 0.5, "water"), np.random.default_rng(0)
    )
    assert np.array_equal(as_bytes(nothing), images)


@pytest.fixture
def frost_pictures(tmp_path, monkeypatch):
    """A package with five small pictures of frost, as the real one has them; importing it fails."""
    folder = tmp_path / "imagecorruptions"
    (folder / "frost").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('heavy')\n")
    rng = np.random.default_rng(1)
    kept = []
    for number in range(1, 6):
        pixels = rng.integers(0, 256, (300 + number, 320, 3), dtype=np.uint8)
        kept.append(pixels)
        # PNG under both names: what counts is the content, and JPEG would change it
        file = folder / "frost" / f"frost{number}.{'png' if number <= 3 else 'jpg'}"
        Image.fromarray(pixels).save(file, "PNG")
    monkeypatch.syspath_prepend(str(tmp_path))
    frost.textures.cache_clear()
    yield kept, folder / "frost"
    frost.textures.cache_clear()


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 5)])
def test_frost(frost_pictures, recipe, severity):
    kept, _ = frost_pictures
    weight, frost_weight, stride = parameters("frost", severity, recipe)
    assert stride == {"cifar": 5, "imagenet": 1}[recipe]
    images = pictures(4)
    rng = np.random.default_rng(6)
    which = rng.integers(5, size=4)
    ours = corrupt(images, "frost", np.random.default_rng(6), severity, recipe)
    for image, number, result in zip(images, which, ours, strict=True):
        texture = kept[number]
        small = np.zeros((round(len(texture) / stride), round(320 / stride), 3))
        for y in range(small.shape[0]):
            for x in range(small.shape[1]):
                small[y, x] = texture[y * stride + stride // 2, x * stride + stride // 2]
        top, left = rng.integers(small.shape[0] - 32), rng.integers(small.shape[1] - 32)
        plain = weight * image + frost_weight * small[top : top + 32, left : left + 32]
        assert_close(result, as_bytes(plain / 255))


def test_photographs_are_found_without_importing_their_package(frost_pictures):
    kept, folder = frost_pictures
    found = frost.textures()
    assert all(np.array_equal(a, b) for a, b in zip(found.pictures, kept, strict=True))
    assert found.source.startswith("photographs of imagecorruptions")
    assert "imagecorruptions" not in sys.modules
    frost.textures.cache_clear()
    (folder / "frost3.png").write_bytes(b"not a picture")
    with pytest.raises(
        ValueError, match=r"frost3.png cannot be read as an image.*install imagecorruptions again"
    ):
        frost.textures()


def test_generated_frost(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    frost.textures.cache_clear()
    try:
        found = frost.textures()
    finally:
        frost.textures.cache_clear()
    assert "generated, not the published photographs" in found.source
    assert len(found.pictures) == 5
    assert all(np.array_equal(a, b) for a, b in zip(found.pictures, frost.generated(), strict=True))
    for picture, (colour, deviation) in zip(found.pictures, frost._LOOKS, strict=True):
        assert picture.dtype == np.uint8
        assert min(picture.shape[:2]) > 224 + 50  # there is room for crops
        assert picture.mean((0, 1)) == pytest.approx(colour, abs=3)
        assert picture.std((0, 1)) == pytest.approx([deviation] * 3, rel=0.15)
        # needles: neighbours differ more than in a smooth cloud of the same contrast
        assert np.abs(np.diff(picture.astype(int), axis=1)).mean() > 0.3 * deviation
    assert not np.array_equal(found.pictures[1], found.pictures[2])


def test_frost_on_pictures_larger_than_its_textures(frost_pictures):
    images = np.zeros((2, 400, 350, 3), np.uint8)
    assert corrupt(images, "frost", np.random.default_rng(0)).std() > 10


def test_corruptions_need_no_torch():
    code = "import sys, ramen.data.corruptions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
