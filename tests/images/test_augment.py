"""RoTTA's augmentation and ROID's against torchvision's operations."""

import dataclasses

import pytest
import torch
import torchvision.transforms.functional as TF
from torch import Tensor

from ramen.images.augment import Draw, augment, augment_without_noise, draw, hue, moved
from tests.oracles.torchvision_augment import (
    augment_with_torchvision,
    augment_without_noise_with_torchvision,
)

PLAIN = Draw(
    order=("gamma", "hue", "saturation", "contrast", "brightness"),
    brightness=1.0,
    contrast=1.0,
    saturation=1.0,
    hue=0.0,
    gamma=1.0,
    angle=0.0,
    scale=1.0,
    sigma=0.001,
    shift=(0, 0),
    flip=False,
    noise_seed=0,
)


def random_images(height: int = 20, width: int = 20, seed: int = 0) -> Tensor:
    """Random pixels, with black, white, grey and saturated ones among them."""
    images = torch.rand(
        4, 3, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    images[0, :, 0] = 0
    images[0, :, 1] = 1
    images[1, :, 2] = 0.5
    images[2, 1:, 3] = 0
    images[3] = (images[3] * 3).round() / 3
    return images


@pytest.mark.parametrize("turn", [-0.06, -0.5, 0.03, 0.4])
def test_hue_equals_torchvisions(turn: float) -> None:
    torch.testing.assert_close(
        hue(random_images(), turn), TF.adjust_hue(random_images(), turn), rtol=0, atol=2e-6
    )


def test_hue_by_hand() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    torch.testing.assert_close(hue(red, 1 / 3).flatten(), torch.tensor([0.0, 1.0, 0.0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(hue(red, -1 / 3).flatten(), torch.tensor([0.0, 0.0, 1.0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(hue(red, 1 / 6).flatten(), torch.tensor([1.0, 1.0, 0.0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(20, 20), (21, 21), (16, 25)])
@pytest.mark.parametrize("angle", [-15.0, 7.3])
@pytest.mark.parametrize("scale", [0.9, 1.1])
def test_moving_equals_pad_affine_and_crop(size: tuple[int, int], angle: float, scale: float) -> None:
    height, width = size
    images = random_images(height, width)
    shift = (width // 8, -(height // 8))  # the largest that is ever drawn
    padded = TF.pad(images, [width // 2, height // 2], padding_mode="edge")
    turned = TF.affine(
        padded, angle, list(shift), scale, [0.0, 0.0], interpolation=TF.InterpolationMode.BILINEAR
    )
    expected = TF.center_crop(turned, [height, width])
    torch.testing.assert_close(moved(images, angle, shift, scale), expected, rtol=0, atol=1e-12)


def test_moving_by_hand() -> None:
    image = torch.arange(9, dtype=torch.float64).view(1, 1, 3, 3).expand(1, 3, 3, 3)
    right = moved(image, 0.0, (1, 0), 1.0)[0, 0]
    torch.testing.assert_close(right, torch.tensor([[0.0, 0, 1], [3, 3, 4], [6, 6, 7]]).double())
    down = moved(image, 0.0, (0, 1), 1.0)[0, 0]
    torch.testing.assert_close(down, torch.tensor([[0.0, 1, 2], [0, 1, 2], [3, 4, 5]]).double())
    quarter = moved(image, 90.0, (0, 0), 1.0)[0, 0]  # clockwise
    torch.testing.assert_close(quarter, torch.tensor([[6.0, 3, 0], [7, 4, 1], [8, 5, 2]]).double())


def test_mirroring_by_hand() -> None:
    """At the centres of the outer pixels, so that these do not appear twice."""
    image = torch.arange(9, dtype=torch.float64).view(1, 1, 3, 3).expand(1, 3, 3, 3)
    right = moved(image, 0.0, (1, 0), 1.0, mirror=True)[0, 0]
    torch.testing.assert_close(right, torch.tensor([[1.0, 0, 1], [4, 3, 4], [7, 6, 7]]).double())


@pytest.mark.parametrize("size", [(32, 32), (24, 33)])
def test_the_whole_equals_torchvisions_composition(size: tuple[int, int]) -> None:
    images = 3 * random_images(*size) - 1  # some of it has to be clipped
    generator = torch.Generator().manual_seed(3)
    flips = set()
    for _ in range(15):
        drawn = draw(size, generator)
        flips.add(drawn.flip)
        expected = augment_with_torchvision(images, drawn)
        torch.testing.assert_close(augment(images, drawn), expected, rtol=0, atol=1e-11)
    assert flips == {True, False}


@pytest.mark.parametrize("size", [(32, 32), (24, 33)])
def test_the_whole_without_noise_equals_torchvisions_composition(size: tuple[int, int]) -> None:
    images = 3 * random_images(*size) - 1
    generator = torch.Generator().manual_seed(3)
    for _ in range(15):
        drawn = draw(size, generator)
        expected = augment_without_noise_with_torchvision(images, drawn)
        torch.testing.assert_close(augment_without_noise(images, drawn), expected, rtol=0, atol=1e-11)
    plain = augment_without_noise(images, PLAIN)
    torch.testing.assert_close(plain, images.clamp(1e-8, 1), rtol=0, atol=1e-11)


def test_the_order_of_colours_matters_and_is_followed() -> None:
    images = random_images()
    drawn = dataclasses.replace(PLAIN, brightness=1.4, gamma=0.7, contrast=1.3)
    other = dataclasses.replace(drawn, order=drawn.order[::-1])
    assert (augment(images, drawn) - augment(images, other)).abs().max() > 0.05


def test_without_changes_only_noise_is_left() -> None:
    images = random_images(64, 64).float()
    inner = (images > 0.05) & (images < 0.95)
    difference = (augment(images, PLAIN) - images)[inner]
    assert 0.0045 < difference.std() < 0.0055
    assert difference.mean().abs() < 2e-4
    noise = (augment(images, PLAIN) - images)[:2][:, :, 4:]
    assert not torch.equal(noise[0], noise[1])  # drawn per image


def test_draws_fill_their_ranges() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [draw((224, 224), generator) for _ in range(2000)]
    ranges = {
        "brightness": (0.6, 1.4),
        "contrast": (0.7, 1.3),
        "saturation": (0.5, 1.5),
        "hue": (-0.06, 0.06),
        "gamma": (0.7, 1.3),
        "angle": (-15, 15),
        "scale": (0.9, 1.1),
        "sigma": (0.001, 0.5),
    }
    for name, (low, high) in ranges.items():
        values = torch.tensor([getattr(d, name) for d in draws])
        assert low <= values.min() < low + 0.01 * (high - low), name
        assert high >= values.max() > high - 0.01 * (high - low), name
        assert abs(values.mean() - (low + high) / 2) < 0.03 * (high - low), name
    for axis in (0, 1):
        shifts = {d.shift[axis] for d in draws}
        assert (min(shifts), max(shifts)) == (-28, 28)  # a sixteenth of 448
    assert 0.45 < sum(d.flip for d in draws) / 2000 < 0.55
    assert len({d.order for d in draws}) == 120
    assert len({d.noise_seed for d in draws}) == 2000


def test_shifts_depend_on_each_side() -> None:
    generator = torch.Generator().manual_seed(0)
    shifts = [draw((64, 320), generator).shift for _ in range(2000)]
    assert max(x for x, _ in shifts) == 40
    assert max(y for _, y in shifts) == 8


def test_the_generator_decides() -> None:
    a, b, c = (draw((32, 32), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert a == b != c
    images = random_images(32, 32)
    assert torch.equal(augment(images, a), augment(images, b))
    state = torch.get_rng_state()
    augment(images, c)
    assert torch.equal(state, torch.get_rng_state())
