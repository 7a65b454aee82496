"""Ramen's stream with images that are not finite, constant, blank or enormous, drawn at random.

The contract (``ramen.testing``) has each such image once, for every method. Here they come by the hundreds,
in every mixture, and the memory is looked at.
"""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.slow_tests import RUN_SLOW_TESTS

IMAGES = 10_000 if RUN_SLOW_TESTS else 600
BATCH = 20
SIZE = (3, 32, 32)


def not_finite(generator: torch.Generator) -> Tensor:
    """An image of which one pixel, some or all are NaN or infinite."""
    image = torch.randn(SIZE, generator=generator)
    values = torch.tensor([torch.nan, torch.inf, -torch.inf])
    value = values[torch.randint(3, (), generator=generator)]
    match int(torch.randint(3, (), generator=generator)):
        case 0:
            image.view(-1)[torch.randint(image.numel(), (), generator=generator)] = value
        case 1:
            image[torch.rand(SIZE, generator=generator) < 0.3] = value
        case _:
            image[:] = value
    return image


def finite(generator: torch.Generator) -> Tensor:
    """An ordinary image, or one that is constant, blank, tiny or large in its numbers."""
    image = torch.randn(SIZE, generator=generator)
    match int(torch.randint(6, (), generator=generator)):
        case 0:
            return torch.full(SIZE, image[0, 0, 0].item())
        case 1:
            return torch.zeros(SIZE)
        case 2:
            return image * 1e-40  # below the normal numbers
        case 3:
            return image * 1e4
        case _:
            return image


def overflowing(generator: torch.Generator) -> Tensor:
    """Finite numbers whose sums are not."""
    return torch.randn(SIZE, generator=generator).sign() * 3e38


@pytest.mark.parametrize("parameters", [{}, {"codec": "sign", "visibility": "causal"}], ids=str)
def test_hostile_images_leave_no_trace(parameters: dict) -> None:
    generator = torch.Generator().manual_seed(0)
    method = ramen.create("ramen", testing.small_classifier(), capacity=20, topk=3, **parameters)
    injected, refused_tags = 0, set()
    for start in range(0, IMAGES, BATCH):
        kinds = torch.randint(10, (BATCH,), generator=generator)
        makers = [not_finite if k < 2 else overflowing if k == 2 else finite for k in kinds.tolist()]
        images = torch.stack([make(generator) for make in makers])
        tags = torch.arange(start, start + BATCH)
        out = method.predict(images, tags=tags, return_support=True)
        assert out.logits.isfinite().all()
        assert out.zero_shot_logits.isfinite().all()
        must, may = kinds < 2, kinds <= 2
        assert out.fallback[must].all(), "an image that is not finite was taken"
        assert not out.fallback[~may].any(), "a finite image was refused"
        injected += int(out.fallback.sum())
        refused_tags |= set(tags[out.fallback].tolist())
        used = out.support.tags[out.support.valid & (out.support.weights != 0)]
        assert refused_tags.isdisjoint(used.tolist()), "a refused image was retrieved"
        assert out.support.weights.isfinite().all()
    assert injected > 0.15 * IMAGES
    assert method.images_refused == injected == len(refused_tags)
    assert method.images_seen == IMAGES
    stored = {name: tensor for name, tensor in method.state.content().items() if tensor.is_floating_point()}
    assert stored
    assert all(tensor.isfinite().all() for tensor in stored.values())
