"""What all corruptions share: order, seed, shapes, severities, bad arguments, no torch."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, RECIPES, corrupt
from tests.data.corruptions.plain_filters import sample_images

ALL = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)


def test_every_recipe_has_every_corruption_at_five_severities():
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
    "wrong",
    [
        {"name": "gausian_noise"},
        {"recipe": "svhn"},
        {"severity": 6},
        {"images": np.zeros((2, 32, 32, 3))},
        {"images": np.zeros((32, 32, 3), dtype=np.uint8)},
        {"images": [1]},
    ],
)
def test_bad_input(wrong):
    given = {"images": sample_images(1), "name": "fog", "rng": np.random.default_rng(0)} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        corrupt(**given)


def test_corruptions_need_no_torch():
    code = "import sys, ramen.data.corruptions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
