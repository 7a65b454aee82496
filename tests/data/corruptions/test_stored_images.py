"""Corruptions against stored images of the same recipe: similar pixels, and equally hard for a model.

The measuring model classifies 1,000 images under each corruption at severity 5: those stored next to the
checkout, and those made here from the same clean images. Without a GPU that takes minutes; then, unless
RAMEN_SLOW_TESTS is set, only corruptions without randomness are tested, on the 60 images that differ most.

Both sides are one random draw. The accuracy on one draw has a standard deviation of about 0.9 points, so two
draws differ by about 1.3; the limit is 2 points. The means over four seeds differ by at most one point.
"""

import os

import numpy as np
import pytest
import torch

from ramen.data.arrays import CIFAR10
from ramen.data.corruptions import CORRUPTIONS, corrupt
from ramen.data.corruptions.frost import textures
from ramen.models.names import load_model
from tests.helpers.shared_files import MEASURING_MODEL

pytestmark = pytest.mark.testbed

TESTBED = MEASURING_MODEL.path
LIMIT = 2.0  # points
DRAWN = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform"),
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL_IMAGES = DEVICE == "cuda" or bool(os.environ.get("RAMEN_SLOW_TESTS"))


@pytest.fixture(scope="module")
def classifier():
    return load_model(f"stored:{TESTBED}", CIFAR10, device=DEVICE)


@pytest.fixture(scope="module")
def stored():
    with np.load(TESTBED / "cifar10c_s5_1000.npz") as arrays:
        return dict(arrays)


@torch.no_grad()
def count_correct(classifier, pixels, labels) -> int:
    images = classifier.preprocess(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    parts = [
        classifier.logits(classifier.encode(part.to(DEVICE))).argmax(1).cpu() for part in images.split(250)
    ]
    return int((torch.cat(parts).numpy() == labels).sum())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_pixels(name, stored) -> None:
    ours = corrupt(stored["clean"], name, np.random.default_rng(0)).astype(float)
    theirs = stored[name].astype(float)
    if name not in DRAWN:
        assert np.abs(ours - theirs).mean() < 0.01
    assert ours.mean() == pytest.approx(theirs.mean(), abs=1)
    assert ours.std() == pytest.approx(theirs.std(), abs=0.3)
    roughness = [np.abs(np.diff(x, axis=2)).mean() for x in (ours, theirs)]
    assert roughness[0] == pytest.approx(roughness[1], rel=0.03 if name == "frost" else 0.02)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_zero_shot_accuracy(name, classifier, stored) -> None:
    if name in DRAWN and not ALL_IMAGES:
        pytest.skip("slow; RAMEN_SLOW_TESTS=1 runs them")
    if name == "frost" and textures().source.startswith("generated"):
        pytest.skip("need the published photographs of frost; pip install imagecorruptions")
    ours, theirs = corrupt(stored["clean"], name, np.random.default_rng(0)), stored[name]
    if name not in DRAWN:
        assert np.abs(ours.astype(int) - theirs).max() <= 1
    differing = (ours != theirs).sum((1, 2, 3))
    chosen = np.argsort(-differing, kind="stable")[: np.count_nonzero(differing)]
    chosen = chosen if ALL_IMAGES else chosen[:60]
    if len(chosen):
        labels = stored["labels"][chosen]
        here, there = (count_correct(classifier, pixels[chosen], labels) for pixels in (ours, theirs))
        assert abs(here - there) <= LIMIT / 100 * (len(theirs) if ALL_IMAGES else len(chosen))
