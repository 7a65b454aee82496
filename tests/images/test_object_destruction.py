"""Transforms that destroy objects, against loops over tiles and pixels."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from ramen.images.views import occlude_centre, shuffle_patches, shuffle_pixels


def images(height: int, width: int, count: int = 3) -> Tensor:
    return torch.randn(count, 3, height, width, dtype=torch.float64)


def orders(count: int, places: int) -> Tensor:
    return torch.stack([torch.randperm(places) for _ in range(count)])


def shuffled_by_loops(image: Tensor, order: list[int], tiles: int) -> Tensor:
    height, width = (side // tiles for side in image.shape[1:])
    found = torch.full_like(image, torch.nan)
    for place, source in enumerate(order):
        (row, column), (from_row, from_column) = divmod(place, tiles), divmod(source, tiles)
        found[:, row * height : (row + 1) * height, column * width : (column + 1) * width] = image[
            :,
            from_row * height : (from_row + 1) * height,
            from_column * width : (from_column + 1) * width,
        ]
    return found


@pytest.mark.parametrize(
    ("size", "tiles"), [((8, 8), 4), ((8, 12), 4), ((6, 6), 3), ((5, 5), 1), ((4, 4), 4)]
)
def test_patches_change_places(size: tuple[int, int], tiles: int) -> None:
    given, permutations = images(*size), orders(3, tiles * tiles)
    found = shuffle_patches(given, permutations, tiles)
    for image, order, expected in zip(given, permutations.tolist(), found, strict=True):
        assert torch.equal(shuffled_by_loops(image, order, tiles), expected)


def test_a_size_that_is_no_multiple_is_resized_and_back() -> None:
    given, permutations = images(11, 14), orders(3, 16)
    found = shuffle_patches(given, permutations, 4)
    smaller = v2.functional.resize(given, [8, 12], antialias=True)
    moved = [shuffled_by_loops(x, y, 4) for x, y in zip(smaller, permutations.tolist(), strict=True)]
    expected = v2.functional.resize(torch.stack(moved), [11, 14], antialias=True)
    torch.testing.assert_close(found, expected)
    assert shuffle_patches(given.bfloat16(), permutations, 4).dtype == torch.bfloat16


def test_no_images_at_all() -> None:
    """As for a process of a group whose part of the batch is empty."""
    orders = torch.zeros(0, 16, dtype=torch.int64)
    assert shuffle_patches(torch.zeros(0, 3, 32, 32), orders, 4).shape == (0, 3, 32, 32)


def test_more_patches_than_pixels() -> None:
    with pytest.raises(ValueError, match="tiles"):
        shuffle_patches(images(5, 8), orders(3, 36), 6)


def test_pixels_change_places_in_all_images_alike() -> None:
    given, order = images(4, 5), torch.randperm(20)
    found = shuffle_pixels(given, order)
    for place, source in enumerate(order.tolist()):
        assert torch.equal(found[:, :, place // 5, place % 5], given[:, :, source // 5, source % 5])


@pytest.mark.parametrize(("height", "width"), [(224, 224), (8, 12), (7, 5)])
def test_the_middle_gets_the_mean_colour(height: int, width: int) -> None:
    given = images(height, width, 2)
    expected = given.clone()
    for image in expected:
        for channel in image:
            top, left = height // 4, width // 4
            channel[top : top + height // 2, left : left + width // 2] = channel.mean().clone()
    torch.testing.assert_close(occlude_centre(given), expected)


@pytest.mark.parametrize("size", [(8, 8), (9, 7)])
def test_a_batch_without_images(size: tuple[int, int]) -> None:
    """As a process of a group may have one."""
    images = torch.zeros(0, 3, *size)
    assert shuffle_patches(images, torch.zeros(0, 4, dtype=torch.int64), 2).shape == images.shape
    assert shuffle_pixels(images, torch.arange(size[0] * size[1])).shape == images.shape
    assert occlude_centre(images).shape == images.shape
