"""Every blur against a plain transcription of its definition."""

import math

import numpy as np
import pytest

from ramen.data.corruptions import SEVERITIES, corrupt, effects
from tests.data.corruptions.plain_filters import (
    as_bytes,
    assert_close,
    clamp,
    parameters,
    plain_gaussian,
    plain_motion,
    plain_zoom,
    reflect101,
    sample_images,
)


@pytest.mark.parametrize(
    ("recipe", "severity"),
    [("cifar", s) for s in SEVERITIES] + [("imagenet", 2), ("imagenet", 4), ("imagenet", 5)],
)
def test_defocus_blur(recipe, severity):
    radius, sigma = parameters("defocus_blur", severity, recipe)
    # the grid and the softening filter grow with a large disk
    reach, half = (8, 1) if radius <= 8 else (radius, 2)
    side = 2 * reach + 1
    grid = range(-reach, reach + 1)
    disk = np.array([[float(x * x + y * y <= radius**2) for x in grid] for y in grid])
    disk /= disk.sum()
    soft = np.zeros_like(disk)
    taps = [math.exp(-0.5 * (s / sigma) ** 2) for s in range(-half, half + 1)]
    for y in range(side):
        for x in range(side):
            for i in range(-half, half + 1):
                for j in range(-half, half + 1):
                    weight = taps[i + half] * taps[j + half] / sum(taps) ** 2
                    soft[y, x] += disk[reflect101(y + i, side), reflect101(x + j, side)] * weight
    assert effects.disk(radius, sigma) == pytest.approx(soft, abs=1e-9)
    images = sample_images(1)
    x = images[0] / 255
    blurred = np.zeros_like(x)
    rows = np.array([reflect101(i, 32) for i in range(-reach, 32 + reach)])
    padded = x[rows[:, None], rows]
    for row in range(32):
        for column in range(32):
            window = padded[row : row + side, column : column + side]
            blurred[row, column] = (soft[..., None] * window).sum((0, 1))
    ours = corrupt(images, "defocus_blur", np.random.default_rng(0), severity, recipe)
    assert_close(ours[0], as_bytes(blurred))


@pytest.mark.parametrize(
    ("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 3), ("imagenet", 5)]
)
def test_glass_blur(recipe, severity):
    sigma, reach, rounds = parameters("glass_blur", severity, recipe)
    images = sample_images(2)
    rng = np.random.default_rng(3)
    shifts = [rng.integers(-reach, reach, (2, 2, 32, 32)) for _ in range(rounds)]
    plain = []
    for number, image in enumerate(images):
        x = as_bytes(plain_gaussian(image / 255, sigma, 4, clamp))
        for down, right in shifts:
            for h in range(32 - reach, reach, -1):
                for w in range(32 - reach, reach, -1):
                    x[h, w] = x[h + down[number, h, w], w + right[number, h, w]]
        plain.append(as_bytes(plain_gaussian(x / 255, sigma, 4, clamp)))
    ours = corrupt(images, "glass_blur", np.random.default_rng(3), severity, recipe)
    # A byte that is truncated differently before the exchange may be copied to other pixels.
    assert_close(ours, np.stack(plain), tolerance=2, share=0.05)


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", 1), ("cifar", 5), ("imagenet", 5)])
def test_motion_blur(recipe, severity):
    radius, sigma = parameters("motion_blur", severity, recipe)
    images = sample_images(3)
    angles = np.random.default_rng(1).uniform(-45, 45, 3)
    plain = [plain_motion(i / 255, radius, sigma, a) for i, a in zip(images, angles, strict=True)]
    ours = corrupt(images, "motion_blur", np.random.default_rng(1), severity, recipe)
    assert_close(ours, as_bytes(np.stack(plain)))


@pytest.mark.parametrize(
    ("recipe", "severity", "limit", "step"),
    [
        ("cifar", 1, 1.06, 0.01),
        ("cifar", 3, 1.16, 0.01),
        ("imagenet", 4, 1.26, 0.02),
        ("imagenet", 5, 1.31, 0.03),
    ],
)
def test_zoom_blur(recipe, severity, limit, step):
    images = sample_images(1)
    x = images[0] / 255
    factors = np.arange(1, limit, step)
    plain = (x + sum(plain_zoom(x, factor) for factor in factors)) / (len(factors) + 1)
    ours = corrupt(images, "zoom_blur", np.random.default_rng(0), severity, recipe)
    assert_close(ours[0], as_bytes(plain))


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 5)])
def test_gaussian_blur(recipe, severity):
    images = sample_images(1)
    plain = plain_gaussian(images[0] / 255, parameters("gaussian_blur", severity, recipe))
    assert_close(
        corrupt(images, "gaussian_blur", np.random.default_rng(0), severity, recipe)[0], as_bytes(plain)
    )
