"""AugMix against Pillow's operations, one image and one change at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import ramen
from ramen import testing
from ramen.images import augmix
from ramen.images.augmix import CHAINS, CHANGES, DRAWS, LONGEST, Mixture
from ramen.utils.numerics import row_keys
from tests.helpers.embedding_streams import tower_features
from tests.oracles.pillow_augmix import augmix_with_pillow, changed_with_pillow, views_with_pillow
from tests.oracles.torchvision_views import views_with_torchvision

SIZES = [(32, 32), (24, 37), (17, 9)]


def photos(number: int, size: tuple[int, int], seed: int = 0) -> Tensor:
    """Whole numbers with structure: smooth, noisy, of one colour, of few values, by turns."""
    generator = np.random.default_rng(seed)
    height, width = size
    images = []
    for index in range(number):
        slope = np.linspace(20, 230, height * width).reshape(1, height, width)
        noise = generator.integers(0, 256, (3, height, width))
        flat = np.full((3, height, width), generator.integers(0, 256))
        few = generator.choice([3, 90, 200], (3, height, width))
        images.append([slope + 0.1 * noise, noise, flat, few][index % 4].clip(0, 255).round())
    return torch.from_numpy(np.stack(images)).double()


def with_pillow(image: Tensor, change: str, level: float, sign: float) -> Tensor:
    pixels = image.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    found = changed_with_pillow(Image.fromarray(pixels), change, level, sign)
    return torch.from_numpy(np.array(found)).permute(2, 0, 1).double()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_pillows(change: str, size: tuple[int, int]) -> None:
    images = photos(12, size)
    numbers = torch.full((12,), CHANGES.index(change))
    levels = torch.linspace(0.1, 9.99, 12, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0] * 4, dtype=torch.float64)
    found = augmix.changed(images, numbers, levels, signs)
    expected = torch.stack(
        [
            with_pillow(image, change, float(level), float(sign))
            for image, level, sign in zip(images, levels, signs, strict=True)
        ]
    )
    assert torch.equal(found, expected)
    too_small = change == "equalize" and size[0] * size[1] < 255  # then no value has its share of pixels
    assert torch.equal(found, images) == too_small
    # in fp32 an interpolated value may be rounded to the one beside it
    single = augmix.changed(images.float(), numbers, levels, signs)
    assert (single - expected).abs().max() <= 1
    assert (single != expected).float().mean() < 0.01


@pytest.mark.parametrize("severity", [1, 3, 10])
def test_equals_pillow_with_all_that_is_drawn(severity: int) -> None:
    images = photos(16, (32, 32)) / 255
    uniform = torch.rand(16, DRAWS, generator=torch.Generator().manual_seed(severity), dtype=torch.float64)
    drawn = augmix.draw(uniform, severity)
    assert set(drawn.lengths.unique().tolist()) == {1, 2, 3}
    assert set(drawn.changes.unique().tolist()) == set(range(len(CHANGES)))
    found = augmix.mix(images * 255, drawn) / 255
    for image, numbers, mixed in zip(images, uniform.tolist(), found, strict=True):
        expected = augmix_with_pillow(image, numbers, severity)
        torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-9)


def test_views_draw_by_key_and_seed() -> None:
    views = torch.stack([photos(5, (16, 16), seed) for seed in range(2)]) / 255
    keys = torch.tensor([11, -(2**60)])
    found = augmix.mixed_views(views, keys, 3, seed=7)
    for image in range(2):
        expected = views_with_pillow(views[image], keys[image], 3, 7)
        torch.testing.assert_close(found[image], expected, rtol=0, atol=1e-9)
        alone = augmix.mixed_views(views[image : image + 1], keys[image : image + 1], 3, seed=7)
        torch.testing.assert_close(alone[0], found[image], rtol=0, atol=1e-12)
    assert torch.equal(found, augmix.mixed_views(views, keys, 3, seed=7))
    assert not torch.equal(found, augmix.mixed_views(views, keys, 3, seed=8))
    assert not torch.equal(found, augmix.mixed_views(views, keys + 1, 3, seed=7))


def test_results_stay_images_and_stronger_ones_are_further_away() -> None:
    views = photos(40, (24, 24))[None] / 255
    keys = torch.tensor([5])
    distances = []
    for severity in (0.1, 3, 10):
        found = augmix.mixed_views(views, keys, severity)
        assert found.min() >= 0
        assert found.max() <= 1
        distances.append(float((found - views).abs().mean()))
    assert distances == sorted(distances)
    assert distances[2] > 1.2 * distances[0]
    beyond = augmix.mixed_views(views * 3 - 1, keys, 3)
    assert torch.equal(beyond, augmix.mixed_views((views * 3 - 1).clamp(0, 1), keys, 3))


def test_mixtures_of_one_part() -> None:
    """Nothing but the image itself, or nothing but one chain of one change."""
    images = photos(3, (16, 16))
    steps = torch.full((3, CHAINS, LONGEST), CHANGES.index("rotate"))
    steps[:, 1, 0] = CHANGES.index("solarize")
    drawn = Mixture(
        changes=steps,
        levels=torch.full(steps.shape, 6.0, dtype=torch.float64),
        signs=torch.ones(steps.shape, dtype=torch.float64),
        lengths=torch.ones(3, CHAINS, dtype=torch.int64),
        weights=torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64).expand(3, -1),
        share=torch.zeros(3, dtype=torch.float64),
    )
    expected = torch.where(images < 256 - 153, images, 255 - images)
    assert torch.equal(augmix.mix(images, drawn), expected)
    whole = Mixture(**{**vars(drawn), "share": torch.ones(3, dtype=torch.float64)})
    assert torch.equal(augmix.mix(images, whole), images)


def test_weights_are_those_of_a_dirichlet_distribution_with_ones() -> None:
    uniform = torch.rand(20_000, DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    uniform[0] = 0
    drawn = augmix.draw(uniform, 1)
    assert drawn.weights.isfinite().all()
    torch.testing.assert_close(drawn.weights.sum(1), torch.ones(20_000, dtype=torch.float64))
    # mean 1/3, variance (1/3)(2/3)/4, and each uniform given the sum of the other two
    torch.testing.assert_close(drawn.weights.mean(0), torch.full((3,), 1 / 3).double(), rtol=0, atol=0.01)
    torch.testing.assert_close(drawn.weights.var(0), torch.full((3,), 1 / 18).double(), rtol=0, atol=0.002)
    assert drawn.levels.min() >= 0.1
    assert drawn.levels.max() <= 1


@pytest.mark.parametrize("views_at_once", [4, 64])
def test_methods_encode_mixed_views(views_at_once: int) -> None:
    """Views that torchvision crops and Pillow mixes; the first is the image itself."""
    clf = testing.small_classifier(dtype="float64")
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    method = ramen.create("zero", clf, views=6, augmix=3, seed=4, views_at_once=views_at_once)
    mean, std = (torch.tensor(part).double().view(3, 1, 1) for part in clf.pixel_statistics)
    for image, found in zip(images, method._view_embeddings(images), strict=True):
        crops = views_with_torchvision(image, 6, seed=4)
        key = row_keys(image[None].float())[0]
        mixed = (views_with_pillow(crops[1:] * std + mean, key, 3, 4) - mean) / std
        expected = tower_features("vit", torch.cat([image[None], mixed]))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    plain = ramen.create("zero", clf, views=6, seed=4)._view_embeddings(images)
    assert torch.equal(plain[:, 0], method._view_embeddings(images)[:, 0])
    assert (plain - method._view_embeddings(images))[:, 1:].abs().amax((1, 2)).min() > 0.01


def test_methods_must_know_how_images_were_normalised() -> None:
    clf = ramen.ZeroShotClassifier(testing.small_tower(), torch.randn(3, 16))
    ramen.create("mta", clf)
    with pytest.raises(ValueError, match="'mta' augments images in"):
        ramen.create("mta", clf, augmix=1)
