"""Random views against torchvision's operations, one view at a time."""

import pytest
import torch
import torchvision.transforms as T

from ramen.images.views import SMALLEST_CROP, crop_places, draw_crops, random_views, views_at
from ramen.utils.numerics import pair_scores
from tests.oracles.torchvision_views import SHAPES, views_with_torchvision


def images(count: int = 3, height: int = 20, width: int = 20, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("height", "width"), [(20, 20), (32, 24), (7, 40), (40, 7), (3, 3), (1, 1)])
@pytest.mark.parametrize("smallest", [0.08, 0.5, 1.0])
def test_views_equal_torchvisions(height: int, width: int, smallest: float) -> None:
    batch = images(2, height, width)
    views = random_views(batch, 24, smallest, seed=3)
    assert views.shape == (2, 24, 3, height, width)
    for found, image in zip(views, batch, strict=True):
        expected = views_with_torchvision(image, 24, smallest, seed=3)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
        assert torch.equal(found[0], image)


def test_single_precision_is_enough() -> None:
    batch = images(2, 224, 224).float()
    torch.testing.assert_close(
        random_views(batch, 4).double(), random_views(batch.double(), 4), rtol=0, atol=5e-4
    )
    for found, image in zip(random_views(batch, 4), batch, strict=True):
        # pixels of normal noise: neighbours differ by as much as they are large
        torch.testing.assert_close(found, views_with_torchvision(image, 4), rtol=0, atol=5e-4)


def test_shapes_that_do_not_fit() -> None:
    """A very tall image has no crop of its own area that is at most a third taller than wide."""
    uniform = pair_scores(0, torch.arange(50), torch.arange(23))
    boxes, _ = draw_crops(uniform, (40, 7), smallest_crop=1.0)
    assert torch.equal(boxes, torch.tensor([15.0, 0.0, 9.0, 7.0]).double().expand(50, 4))
    boxes, _ = draw_crops(uniform, (7, 40), smallest_crop=1.0)
    assert torch.equal(boxes, torch.tensor([0.0, 15.0, 7.0, 9.0]).double().expand(50, 4))


def test_crops_are_distributed_as_torchvisions() -> None:
    """Moments of area, shape, place and mirroring of 4,000 crops each."""
    count, side = 4000, 224
    boxes, mirrored = draw_crops(
        pair_scores(0, torch.arange(count), torch.arange(23)), (side, side), SMALLEST_CROP
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [
            T.RandomResizedCrop.get_params(torch.empty(3, side, side), [SMALLEST_CROP, 1.0], list(SHAPES))
            for _ in range(count)
        ]
    expected = torch.tensor(drawn).double()

    def facts(crops: torch.Tensor) -> torch.Tensor:
        top, left, height, width = crops.unbind(1)
        area, shape = height * width / side**2, (width / height).log()
        middle = torch.stack([(top + height / 2) / side, (left + width / 2) / side])
        numbers = torch.stack([area, shape, *middle])
        return torch.cat([numbers.mean(1), numbers.std(1), numbers.amin(1), numbers.amax(1)])

    torch.testing.assert_close(facts(boxes), facts(expected), rtol=0, atol=0.03)
    assert 0.47 < mirrored.double().mean() < 0.53


def test_a_crop_by_hand() -> None:
    """Columns 1 and 2 of four, drawn out to four and mirrored: nothing comes from columns 0 and 3."""
    image = torch.tensor([100.0, 0.0, 8.0, 100.0]).expand(1, 3, 4, 4).double()
    boxes = torch.tensor([[[0.0, 1.0, 4.0, 2.0], [0.0, 1.0, 4.0, 2.0]]]).double()
    _, plain, mirrored = views_at(image, *crop_places(image, boxes, torch.tensor([[False, True]])))[0]
    torch.testing.assert_close(plain, torch.tensor([0.0, 2.0, 6.0, 8.0]).double().expand(3, 4, 4))
    torch.testing.assert_close(mirrored, torch.tensor([8.0, 6.0, 2.0, 0.0]).double().expand(3, 4, 4))


def test_draws_depend_on_the_seed_and_the_image_alone() -> None:
    batch = images(5)
    views = random_views(batch, 6, seed=1)
    for place in range(5):
        assert torch.equal(random_views(batch[place : place + 1], 6, seed=1)[0], views[place])
    assert torch.equal(random_views(batch.flip(0), 6, seed=1), views.flip(0))
    assert torch.equal(random_views(batch, 3, seed=1), views[:, :3])  # more views change nothing in the first
    other_seed, other_image = random_views(batch, 6, seed=2), batch.clone()
    other_image[0, 2, 19, 19] += 1e-3
    moved = random_views(other_image, 6, seed=1)
    assert not torch.allclose(other_seed[:, 1], views[:, 1])
    assert not torch.allclose(moved[0, 1], views[0, 1])
    assert torch.equal(moved[1:], views[1:])


def test_one_view_is_the_image() -> None:
    batch = images()
    assert torch.equal(random_views(batch, 1), batch[:, None])


def test_normalising_before_and_after_is_the_same() -> None:
    """The crops differ, as draws depend on pixels; what is done with a crop does not."""
    batch = images()
    boxes, mirrored = draw_crops(pair_scores(0, torch.arange(3)[:, None], torch.arange(23)), (20, 20), 0.08)
    places = crop_places(batch, boxes, mirrored)
    found = views_at((batch - 0.4) / 0.2, *places)
    torch.testing.assert_close(found, (views_at(batch, *places) - 0.4) / 0.2)
