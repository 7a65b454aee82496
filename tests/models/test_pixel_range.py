"""Pixels of 0 to 255 in place of normalised images are noticed, and nothing else is."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.models.classifier import PixelRangeCheck
from tests.helpers.device_waits import no_waiting

CLIP = ramen.Preprocess(32)


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


@pytest.mark.parametrize("name", ["ramen", "tent", "clip"])
def test_no_method_takes_pixels_for_normalised_images(name: str) -> None:
    method = ramen.create(name, testing.small_classifier())
    images = pixels(4, 3, 32, 32).float()
    with pytest.raises(ValueError, match="images"):
        method.predict(images)
    assert method.images_seen == 0
    fresh = ramen.create(name, testing.small_classifier())
    normalised = method.classifier.preprocess(images.to(torch.uint8))
    assert torch.equal(method.predict(normalised).logits, fresh.predict(normalised).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="images"):
        PixelRangeCheck(CLIP.mean, CLIP.std)(pixels(2, 3, 8, 8).to(dtype))


def bright(value: float) -> Tensor:
    images = torch.zeros(2, 3, 8, 8)
    images[1, 2, 3, 4] = value
    return images


@pytest.mark.parametrize(
    "images",
    [
        CLIP(pixels(3, 3, 40, 40)),
        CLIP(torch.full((1, 3, 40, 40), 255, dtype=torch.uint8)),  # white: no negative number
        CLIP(torch.zeros(1, 3, 40, 40, dtype=torch.uint8)),
        pixels(2, 3, 8, 8) / 255,
        torch.zeros(2, 3, 8, 8),
        bright(8.0),  # beyond what normalising gives, but not by far
        bright(256.0),
        bright(1e30),
        pixels(2, 3, 8, 8).float() - 1,
        torch.full((2, 3, 8, 8), torch.nan),
        torch.full((2, 3, 8, 8), torch.inf),
        torch.full((2, 3, 8, 8), -torch.inf),
        torch.empty(2, 3, 8, 8, device="meta"),
    ],
    ids=lambda images: str(images.shape),
)
def test_what_is_accepted(images: Tensor) -> None:
    PixelRangeCheck(CLIP.mean, CLIP.std)(images)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_image_that_is_not_finite_hides_nothing(bad: float) -> None:
    images = pixels(2, 3, 8, 8).float()
    images[0, 0, 0, 0] = bad
    with pytest.raises(ValueError, match="images"):
        PixelRangeCheck(CLIP.mean, CLIP.std)(images)


def test_a_model_that_takes_pixels_as_they_are() -> None:
    PixelRangeCheck((0.0,) * 3, (1 / 255,) * 3)(pixels(2, 3, 8, 8).float())


def test_a_classifier_without_preprocessing_takes_anything() -> None:
    clf = ramen.ZeroShotClassifier(testing.small_tower(), torch.eye(5, 16))
    clf.check_images(pixels(2, 3, 32, 32).float())


class OnAGpu:
    """A batch that says that it is on a GPU, and counts how often it is looked at."""

    device = torch.device("cuda")

    def __init__(self, images: Tensor) -> None:
        self.images, self.looks = images, 0

    def detach(self) -> Tensor:
        self.looks += 1
        return self.images


BLANK = torch.full((1, 3, 8, 8), torch.nan)
NORMALISED = CLIP(pixels(1, 3, 40, 40))
NOT_NORMALISED = pixels(1, 3, 8, 8).float()


def test_a_gpu_is_looked_at_until_images_are_normalised() -> None:
    """Blank batches, as for warming up, decide nothing."""
    check = PixelRangeCheck(CLIP.mean, CLIP.std)
    for images in (BLANK, NORMALISED):
        with pytest.raises(ValueError, match="images"):
            check(OnAGpu(NOT_NORMALISED))
        check(OnAGpu(images))
    for images in (NOT_NORMALISED, BLANK, NORMALISED):
        check(given := OnAGpu(images))
        assert given.looks == 0
    with pytest.raises(ValueError, match="images"):
        check(NOT_NORMALISED)  # on the CPU it costs next to nothing


def test_a_gpu_is_not_looked_at_for_ever() -> None:
    """Some models take images without negative numbers."""
    check, batches = (
        PixelRangeCheck((0.0,) * 3, (1.0,) * 3),
        [OnAGpu(torch.rand(1, 3, 8, 8)) for _ in range(20)],
    )
    for batch in batches:
        check(batch)
    assert 0 < sum(batch.looks for batch in batches) < 10


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    check = PixelRangeCheck(CLIP.mean, CLIP.std)
    with pytest.raises(ValueError, match="images"):
        check(NOT_NORMALISED.cuda())
    check(NORMALISED.cuda())
    bad = NOT_NORMALISED.cuda()
    with no_waiting():
        check(bad)
