"""What all corruptions share: order, seed, shapes, severities, bad arguments, no torch."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, RECIPES, corrupt
from tests.data.corruptions.plain_filters import sample_images

ALL = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)


def test_order_of_the_tables():
    assert (
        *("gaussian_noise", "shot_noise", "impulse_noise"),
        *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness"),
        *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ) == CORRUPTIONS
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for recipe in RECIPES.values():
        assert tuple(recipe.parameters) == ALL
        assert all(len(values) == 5 for values in recipe.parameters.values())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ALL)
def test_the_seed_determines_the_result_and_the_input_stays(name, recipe):
    images = sample_images()
    kept = images.copy()
    first = corrupt(images, name, np.random.default_rng(0), recipe=recipe)
    assert first.shape == images.shape
    assert first.dtype == np.uint8
    assert np.array_equal(first, corrupt(images, name, np.random.default_rng(0), recipe=recipe))
    assert np.array_equal(images, kept)
    assert not np.array_equal(first, images)


@pytest.mark.parametrize("name", ALL)
def test_other_shapes(name):
    images = np.stack([np.asarray(Image.fromarray(i).resize((40, 48))) for i in sample_images()])
    assert corrupt(images, name, np.random.default_rng(0)).shape == (3, 48, 40, 3)


@pytest.mark.parametrize("name", [n for n in ALL if n not in {"elastic_transform", "saturate", "frost"}])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_higher_severity_leaves_less_of_the_image(name, recipe):
    """Not elastic transform and saturation, which change in kind, nor frost, which also darkens."""
    size = RECIPES[recipe].side
    images = sample_images(6 if size == 32 else 1, size)
    mild, strong = (
        np.abs(corrupt(images, name, np.random.default_rng(0), severity, recipe).astype(int) - images).mean()
        for severity in (1, 5)
    )
    assert strong > 1.2 * mild


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gausian_noise"}, "name must be one of .*gausian_noise"),
        ({"recipe": "svhn"}, "recipe must be one of 'cifar', 'imagenet', got 'svhn'"),
        ({"severity": 6}, "severity must be between 1 and 5, got 6"),
        ({"images": np.zeros((2, 32, 32, 3))}, "images must be a uint8 array of shape .* got float64"),
        ({"images": np.zeros((32, 32, 3), dtype=np.uint8)}, r"got uint8 \(32, 32, 3\)"),
        ({"images": [1]}, "got list"),
    ],
)
def test_bad_input(arguments, message):
    given = {"images": sample_images(1), "name": "fog", "rng": np.random.default_rng(0)} | arguments
    with pytest.raises(ValueError, match=message):
        corrupt(**given)


def test_corruptions_need_no_torch():
    code = "import sys, ramen.data.corruptions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
