"""Digital corruptions against plain transcriptions."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import (
    SEVERITIES,
    corrupt,
)
from tests.data.corruptions.plain_filters import (
    as_bytes,
    assert_close,
    parameters,
    plain_gaussian,
    plain_sample,
    reflect,
    reflect101,
    sample_images,
)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast(severity):
    images = sample_images(2)
    plain = []
    for x in images / 255:
        mean = np.array([x[..., c].mean() for c in range(3)])
        plain.append(as_bytes((x - mean) * parameters("contrast", severity) + mean))
    assert_close(corrupt(images, "contrast", np.random.default_rng(0), severity), np.stack(plain))


@pytest.mark.parametrize(
    ("recipe", "severity", "shares"),
    [
        ("cifar", 1, (0, 0, 0.08)),
        ("cifar", 2, (0.05, 0.2, 0.07)),
        ("cifar", 5, (0.1, 0.03, 0.03)),
        ("imagenet", 2, (2, 0.08, 0.2)),
        ("imagenet", 5, (0.12, 0.01, 0.02)),
    ],
)
def test_elastic_transform(recipe, severity, shares):
    alpha, sigma, jitter = ({"cifar": 32, "imagenet": 244}[recipe] * share for share in shares)
    images = sample_images(1)
    rng = np.random.default_rng(2)
    before = np.array([[26, 26], [26, 6], [6, 6]], dtype=float)  # 16 ± 32 // 3, as (x, y)
    after = before + rng.uniform(-jitter, jitter, (1, 3, 2))[0]
    # the affine map that takes each old point to its new place, and its inverse
    forward = np.linalg.solve(np.c_[before, np.ones(3)], after).T
    matrix, offset = forward[:, :2], forward[:, 2]
    columns, rows = np.meshgrid(np.arange(32.0), np.arange(32.0))
    source = np.stack([columns, rows], axis=-1) - offset
    source = source @ np.linalg.inv(matrix).T
    x = plain_sample(images[0] / 255, source[..., 1], source[..., 0], reflect101)
    if alpha > 0:
        shifts = rng.uniform(-1, 1, (1, 32, 32, 2))[0]
        shifts = alpha * plain_gaussian(shifts, sigma, 3, reflect)
        x = plain_sample(x, rows + shifts[..., 0], columns + shifts[..., 1], reflect)
    ours = corrupt(images, "elastic_transform", np.random.default_rng(2), severity, recipe)
    assert_close(ours[0], as_bytes(x))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate(severity):
    images = sample_images(2)
    side = int(32 * parameters("pixelate", severity))
    ours = corrupt(images, "pixelate", np.random.default_rng(0), severity)
    for image, result in zip(images, ours, strict=True):
        small = Image.fromarray(image).resize((side, side), Image.BOX)
        assert np.array_equal(result, np.asarray(small.resize((32, 32), Image.BOX)))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_compression(severity):
    images = sample_images(2)
    ours = corrupt(images, "jpeg_compression", np.random.default_rng(0), severity)
    for image, result in zip(images, ours, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=parameters("jpeg_compression", severity))
        assert np.array_equal(result, np.asarray(Image.open(file)))


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 5)])
def test_saturate(recipe, severity):
    factor, offset = parameters("saturate", severity, recipe)
    images = sample_images(1)
    plain = np.zeros((32, 32, 3))
    for row in range(32):
        for column in range(32):
            hue, saturation, value = colorsys.rgb_to_hsv(*(images[0, row, column] / 255))
            saturation = min(max(saturation * factor + offset, 0), 1)
            plain[row, column] = colorsys.hsv_to_rgb(hue, saturation, value)
    assert_close(corrupt(images, "saturate", np.random.default_rng(0), severity, recipe)[0], as_bytes(plain))
