import pytest
import torch

from ramen.memory.images import ImageStore


def store(size: tuple[int, int] | None = None, dtype: torch.dtype = torch.float32) -> ImageStore:
    return ImageStore(3, dtype, torch.device("cpu"), size)


def test_images_lie_in_their_slots() -> None:
    kept, images = store(), torch.randn(4, 3, 5, 6)
    assert kept.images.shape == (0, 3, 0, 0)
    kept.put(images, {0: 2, 1: 0})
    assert len(kept) == 2
    assert torch.equal(kept.images, images[[2, 0]])
    kept.put(images, {1: 3, 2: 1})
    assert torch.equal(kept.images, images[[2, 3, 1]])
    kept.put(images, {0: 0})
    assert torch.equal(kept.images, images[[0, 3, 1]])
    kept.put(images, {})
    assert len(kept) == 3
    kept.clear()
    assert len(kept) == 0
    kept.put(torch.zeros(1, 3, 8, 8), {0: 0})  # another size is fine after clear
    assert kept.images.shape == (1, 3, 8, 8)


def test_the_first_images_or_the_encoder_decide_the_size() -> None:
    kept = store()
    kept.check(torch.zeros(1, 3, 9, 9))
    assert kept.max_bytes() == 0
    kept.put(torch.zeros(1, 3, 5, 6), {0: 0})
    assert kept.max_bytes() == 3 * 3 * 5 * 6 * 4
    with pytest.raises(ValueError, match="images"):
        kept.check(torch.zeros(1, 3, 9, 9))
    assert store((5, 6), dtype=torch.float16).max_bytes() == 3 * 3 * 5 * 6 * 2


def test_storable_looks_at_the_type_of_the_store() -> None:
    images = torch.tensor([1.0, 1e5]).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    assert store().storable(images).tolist() == [True, True]
    assert store(dtype=torch.float16).storable(images).tolist() == [True, False]


@pytest.mark.parametrize("size", [None, (5, 6)])
def test_restored(size: tuple[int, int] | None) -> None:
    kept, images = store(size), torch.randn(2, 3, 5, 6)
    kept.put(images, {0: 0, 1: 1})
    again = store(size).restored(kept.images.clone())
    assert torch.equal(again.images, images)
    assert again.max_bytes() == kept.max_bytes()
    assert len(store(size).restored(store(size).images)) == 0


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(4, 3, 5, 6), "must be at most 3, got 4"),
        (torch.zeros(2, 3, 5, 7), r"must be torch.float32 of shape \(2, 3, 5, 6\)"),
        (torch.zeros(2, 1, 5, 6), r"must be torch.float32 of shape \(2, 3, 5, 6\)"),
        (torch.zeros(2, 3, 5, 6).half(), "must be torch.float32"),
        (torch.zeros(3), "must be torch.float32 of shape"),
        (torch.full((2, 3, 5, 6), torch.nan), "must be finite"),
        ([1], "must be a tensor, got list"),
    ],
)
def test_damaged_images(images: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"images in the state {message}"):
        store((5, 6)).restored(images)
