"""Changes of colours: the programs equal plain torch, which tests/images compares with torchvision."""

import itertools
import random

import pytest
import torch

from ramen.kernels import colours

FACTORS = {"brightness": 1.3, "contrast": 0.7, "saturation": 1.4, "hue": -0.06, "gamma": 0.8}


def images(height: int, width: int) -> torch.Tensor:
    """Values beyond 0 and 1 as well, with black, white, grey and saturated pixels among them."""
    pixels = 1.4 * torch.rand(3, 3, height, width, generator=torch.Generator().manual_seed(0)) - 0.2
    pixels[0, :, 0] = 0
    pixels[0, :, 1] = 1
    pixels[1, :, 2] = 0.5
    pixels[2, 1:, 3] = 0
    return pixels


def check(device: str, changes: list[tuple[str, float]], height: int = 20, width: int = 70) -> None:
    pixels = images(height, width).to(device)  # by default, more than one block of 1,024
    before = pixels.clone()
    plain, fused = colours._changed_torch(pixels, changes), colours._changed_triton(pixels, changes)
    assert torch.equal(pixels, before)
    torch.testing.assert_close(fused, plain, rtol=0, atol=5e-6)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", list(FACTORS))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_single_changes_equal_torch(name: str, share: float) -> None:
    low, high = {"hue": (-0.5, 0.5)}.get(name, (0.5, 1.5))
    check("cpu", [(name, low + share * (high - low))])


@pytest.mark.interpreted
def test_every_order_equals_torch() -> None:
    orders = list(itertools.permutations(FACTORS))
    assert len(orders) == 120
    for names in random.Random(0).sample(orders, 24):
        check("cpu", [(name, FACTORS[name]) for name in names], height=5, width=9)
    check("cpu", [])  # clipped


@pytest.mark.interpreted
def test_parts_of_images_that_are_not_contiguous() -> None:
    changes = list(FACTORS.items())
    part = images(12, 40)[:, :, 3:9, ::2]
    torch.testing.assert_close(
        colours._changed_triton(part, changes), colours._changed_torch(part, changes), rtol=0, atol=5e-6
    )


@pytest.mark.gpu
def test_every_order_equals_torch_on_a_gpu() -> None:
    for names in itertools.permutations(FACTORS):
        check("cuda", [(name, FACTORS[name]) for name in names], height=224, width=224)


@pytest.mark.gpu
def test_sums_are_the_same_every_time_on_a_gpu() -> None:
    pixels, changes = images(224, 224).cuda(), list(FACTORS.items())
    first = colours.changed(pixels, changes)
    assert all(torch.equal(colours.changed(pixels, changes), first) for _ in range(20))
