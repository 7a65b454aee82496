"""Frost: photographs if they are installed, otherwise generated textures."""

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import SEVERITIES, corrupt, frost
from tests.data.corruptions.plain_filters import (
    as_bytes,
    assert_close,
    parameters,
    sample_images,
)


@pytest.fixture
def frost_package(tmp_path, monkeypatch):
    """A package with five small images of frost, like the real one; importing it fails."""
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
def test_frost(frost_package, recipe, severity):
    kept, _ = frost_package
    weight, frost_weight, stride = parameters("frost", severity, recipe)
    assert stride == {"cifar": 5, "imagenet": 1}[recipe]
    images = sample_images(4)
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


def test_photographs_are_found_without_importing_their_package(frost_package):
    kept, folder = frost_package
    found = frost.textures()
    assert all(np.array_equal(a, b) for a, b in zip(found.images, kept, strict=True))
    assert found.source.startswith("photographs of imagecorruptions")
    assert "imagecorruptions" not in sys.modules
    frost.textures.cache_clear()
    (folder / "frost3.png").write_bytes(b"not an image")
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
    assert len(found.images) == 5
    assert all(np.array_equal(a, b) for a, b in zip(found.images, frost.generated(), strict=True))
    for image, (colour, deviation) in zip(found.images, frost._LOOKS, strict=True):
        assert image.dtype == np.uint8
        assert min(image.shape[:2]) > 224 + 50  # there is room for crops
        assert image.mean((0, 1)) == pytest.approx(colour, abs=3)
        assert image.std((0, 1)) == pytest.approx([deviation] * 3, rel=0.15)
        # needles: neighbours differ more than in a smooth cloud of the same contrast
        assert np.abs(np.diff(image.astype(int), axis=1)).mean() > 0.3 * deviation
    assert not np.array_equal(found.images[1], found.images[2])


def test_frost_on_images_larger_than_its_textures(frost_package):
    images = np.zeros((2, 400, 350, 3), np.uint8)
    assert corrupt(images, "frost", np.random.default_rng(0)).std() > 10
