"""Batches that are joined on their way to a device."""

import pytest
import torch
from torch import Tensor

from ramen.serve.engine.staging import Staging


def batch(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 4, 5, 3), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batches_are_joined_and_stay_as_they_are(device: str) -> None:
    """Also while later ones are copied, through the same memory."""
    staging = Staging((8, 4, 5, 3), torch.device(device))
    sizes = [(1, 2), (8,), (3, 1, 4), (2, 2), (1,), (5, 3), (4, 4)]
    given = [[batch(count, 10 * n + m) for m, count in enumerate(each)] for n, each in enumerate(sizes)]
    found = [staging.copy(each) for each in given]
    for each, copied in zip(given, found, strict=True):
        assert copied.device.type == device
        assert torch.equal(copied.cpu(), torch.cat(each))


def test_more_images_than_there_is_memory_for() -> None:
    staging = Staging((4, 4, 5, 3), torch.device("cpu"))
    given = [batch(3, 0), batch(2, 1)]
    assert torch.equal(staging.copy(given), torch.cat(given))


@pytest.mark.gpu
def test_no_memory_is_pinned_for_a_batch() -> None:
    staging = Staging((8, 4, 5, 3), torch.device("cuda"))
    before = torch.cuda.host_memory_stats()["num_host_alloc"]
    for count in range(1, 9):
        staging.copy([batch(count, 0)])
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == before
