"""Snow, fog and brightness against plain transcriptions."""

import colorsys

import numpy as np
import pytest

from ramen.data.corruptions import SEVERITIES, corrupt
from tests.data.corruptions.plain_filters import (
    as_bytes,
    assert_close,
    parameters,
    plain_motion,
    plain_zoom,
    sample_images,
)


def plain_plasma(size, decay, draw):
    """Diamond-square on a torus; ``draw(shape_of_grid)`` gives one uniform array in [-1, 1] per fill."""
    grid = np.zeros((size, size))
    step, wibble = size, 100.0
    while step >= 2:
        half, cells = step // 2, size // step
        noise = draw(cells)
        for i in range(cells):
            for j in range(cells):
                y, x = i * step, j * step
                total = sum(grid[(y + a) % size, (x + b) % size] for a in (0, step) for b in (0, step))
                grid[y + half, x + half] = total / 4 + wibble * wibble * noise[i, j]
        noise = draw(cells)
        for i in range(cells):
            for j in range(cells):
                y, x = i * step, j * step + half
                around = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                total = sum(grid[a % size, b % size] for a, b in around)
                grid[y, x] = total / 4 + wibble * wibble * noise[i, j]
        noise = draw(cells)
        for i in range(cells):
            for j in range(cells):
                y, x = i * step + half, j * step
                around = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                total = sum(grid[a % size, b % size] for a, b in around)
                grid[y, x] = total / 4 + wibble * wibble * noise[i, j]
        step, wibble = half, wibble / decay
    grid -= grid.min()
    return grid / grid.max()


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", 1), ("cifar", 4), ("imagenet", 5)])
def test_snow(recipe, severity):
    mean, deviation, zoom, threshold, radius, sigma, mix = parameters("snow", severity, recipe)
    images = sample_images(2)
    rng = np.random.default_rng(5)
    flakes = rng.normal(mean, deviation, (2, 32, 32, 1)).astype(np.float32)
    angles = rng.uniform(-135, -45, 2)
    plain = []
    for image, layer, angle in zip(images, flakes, angles, strict=True):
        layer = plain_zoom(layer, zoom)
        layer[layer < threshold] = 0
        layer = plain_motion(as_bytes(layer) / 255, radius, sigma, angle)
        x = image / 255
        grey = (0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2])[..., None]
        x = mix * x + (1 - mix) * np.maximum(x, grey * 1.5 + 0.5)
        plain.append(as_bytes(x + layer + np.rot90(layer, 2)))
    ours = corrupt(images, "snow", np.random.default_rng(5), severity, recipe)
    assert_close(ours, np.stack(plain), tolerance=2)


@pytest.mark.parametrize(
    ("recipe", "severity", "size"), [("cifar", s, 32) for s in SEVERITIES] + [("imagenet", 5, 28)]
)
def test_fog(recipe, severity, size):
    weight, decay = parameters("fog", severity, recipe)
    images = sample_images(1, size=size)
    images[0] //= 2  # so that the brightest is not white
    rng = np.random.default_rng(7)
    # the map has a side of a power of two: 256 for 224 pixels
    clouds = plain_plasma(32, decay, lambda cells: rng.uniform(-1, 1, (1, cells, cells))[0])[:size, :size]
    x = images[0] / 255
    plain = (x + weight * clouds[..., None]) * x.max() / (x.max() + weight)
    ours = corrupt(images, "fog", np.random.default_rng(7), severity, recipe)
    assert_close(ours[0], as_bytes(plain))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness(severity):
    amount = parameters("brightness", severity)
    images = sample_images(1)
    plain = np.zeros((32, 32, 3))
    for row in range(32):
        for column in range(32):
            hue, saturation, value = colorsys.rgb_to_hsv(*(images[0, row, column] / 255))
            plain[row, column] = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))
    assert_close(corrupt(images, "brightness", np.random.default_rng(0), severity)[0], as_bytes(plain))
