"""A memory of images, with a policy that does as it is told."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from ramen.memory.images import ImageMemory
from ramen.memory.policies import SlotPolicy


@dataclass
class AsTold(SlotPolicy):
    """The slot that an image takes is a fact about it."""

    columns: ClassVar = {"labels": torch.int64}
    capacity: int = 3
    classes: int = 1
    labels: list[int] = field(default_factory=list, init=False)

    def insert(self, slot: int) -> int:
        if slot == len(self.labels):
            self.labels.append(0)
        return slot


def memory(size: tuple[int, int] | None = None, dtype: torch.dtype = torch.float32) -> ImageMemory[AsTold]:
    return ImageMemory(AsTold(), 3, dtype, torch.device("cpu"), size)


def put(kept: ImageMemory[AsTold], images: torch.Tensor, placed: dict[int, int]) -> None:
    for slot, index in placed.items():
        kept.offer(images, index, slot)


def test_images_lie_in_their_slots() -> None:
    kept, images = memory(), torch.randn(4, 3, 5, 6)
    assert kept.images.shape == (0, 3, 0, 0)
    for placed, expected in (
        ({0: 2, 1: 0}, [2, 0]),
        ({1: 3, 2: 1}, [2, 3, 1]),
        ({0: 0}, [0, 3, 1]),
        ({}, [0, 3, 1]),
    ):
        put(kept, images, placed)
        assert torch.equal(kept.images, images[expected])
    kept.clear()
    assert len(kept) == 0
    put(kept, torch.zeros(1, 3, 8, 8), {0: 0})  # another size is fine after clear
    assert kept.images.shape == (1, 3, 8, 8)


def test_the_first_images_or_the_encoder_decide_the_size() -> None:
    kept, other = memory(), torch.zeros(1, 3, 9, 9)
    assert kept.storable(other).all()
    empty = kept.most_bytes()
    put(kept, torch.zeros(1, 3, 5, 6), {0: 0})
    assert kept.images.shape[2:] == (5, 6)
    assert kept.most_bytes() == empty + 3 * 3 * 5 * 6 * 4
    with pytest.raises(ValueError, match="images"):
        kept.storable(other)
    assert memory((5, 6), dtype=torch.float16).most_bytes() == empty + 3 * 3 * 5 * 6 * 2


def test_storable_looks_at_the_type_of_the_memory() -> None:
    images = torch.tensor([1.0, 1e5]).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    assert memory().storable(images).tolist() == [True, True]
    assert memory(dtype=torch.float16).storable(images).tolist() == [True, False]


@pytest.mark.parametrize("size", [None, (5, 6)])
def test_a_state_continues_and_a_damaged_one_changes_nothing(size: tuple[int, int] | None) -> None:
    kept, again, images = memory(size), memory(size), torch.randn(2, 3, 5, 6)
    put(kept, images, {0: 0, 1: 1})
    again.restore(kept.state())
    assert torch.equal(again.images, images)
    assert again.most_bytes() == kept.most_bytes()
    for damaged in (
        torch.zeros(4, 3, 5, 6),
        torch.zeros(2, 1, 5, 6),
        torch.zeros(2, 3, 5, 6).half(),
        torch.zeros(3),
        torch.full((2, 3, 5, 6), torch.nan),
        [1],
        *([torch.zeros(2, 3, 5, 7)] if size else []),
    ):
        with pytest.raises(ValueError, match="images"):
            again.restore({**kept.state(), "images": damaged})
    assert torch.equal(again.images, images)
    again.restore(memory(size).state())
    assert len(again) == 0
