"""Pixels that are ready are taken as they are; others get rows, and wait if there are none."""

import numpy as np
import pytest
import torch
from PIL import Image

from ramen.client.operations import SentImage
from ramen.images.preprocess import Preprocess
from ramen.serve.engine.pixel_rows import PixelGroup, PixelRows, as_one
from ramen.serve.shared_memory import Lender, SharedRegion

SIZE = (8, 6)
CPU = torch.device("cpu")
PREPROCESS = Preprocess(SIZE)


def drawn(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), np.uint8)


def images(arrays: list[np.ndarray]) -> list[SentImage]:
    return [SentImage(str(number), array) for number, array in enumerate(arrays)]


def test_batches_are_joined_in_order() -> None:
    rows = PixelRows(PREPROCESS, CPU)
    batches = [torch.from_numpy(drawn(2, seed)) for seed in range(3)]
    tickets = [[PixelGroup(batch, range(2))] for batch in batches]
    joined = rows.on_device(tickets)
    assert joined.is_contiguous()
    assert torch.equal(joined, torch.cat(batches).permute(0, 3, 1, 2))
    assert torch.equal(rows.on_device(tickets[:1]), batches[0].permute(0, 3, 1, 2))


def test_images_of_several_sizes_are_resized_and_in_order() -> None:
    """Two tickets: one of images that are all to be resized, one of which some are."""
    random = np.random.default_rng(0)
    large = [random.integers(0, 256, (20, 30, 3), np.uint8) for _ in range(5)]
    small = list(drawn(2))
    rows = PixelRows(PREPROCESS, CPU, resizes=True)
    first = [PixelGroup(torch.from_numpy(np.stack(large[:3])), range(3))]
    second = [
        PixelGroup(torch.from_numpy(np.stack(large[3:])), [1, 2]),
        PixelGroup(torch.from_numpy(np.stack(small)), [0, 3]),
    ]
    expected = PREPROCESS.pixels([*map(Image.fromarray, (*large[:3], small[0], *large[3:], small[1]))])
    assert torch.equal(rows.on_device([first, second]), expected)


def test_which_sizes_are_resized_later() -> None:
    rows = PixelRows(PREPROCESS, CPU, resizes=True, max_pixels=700)
    assert rows.is_resized_later((20, 30))
    assert not rows.is_resized_later(SIZE)
    assert not rows.is_resized_later((20, 36))  # more than 700 pixels
    assert not rows.is_resized_later((1, 0))
    assert not PixelRows(PREPROCESS, CPU).is_resized_later((20, 30))
    assert not PixelRows(PREPROCESS, CPU, resizes=True).is_resized_later((1000, 1000))


def test_frames_of_one_size_are_not_copied() -> None:
    body = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    view = PixelRows(PREPROCESS, CPU, resizes=True).view_of(images(list(body)))
    assert view is not None
    assert view.data_ptr() == body.ctypes.data
    assert PixelRows(PREPROCESS, CPU).view_of(images(list(body))) is None
    assert PixelRows(PREPROCESS, CPU, resizes=True).view_of(images([body[0], body[1][:10]])) is None


def test_images_of_one_body_are_not_copied() -> None:
    body = drawn(5)
    view = PixelRows(PREPROCESS, CPU).view_of(images(list(body)))
    assert view is not None
    assert view.data_ptr() == body.ctypes.data
    assert np.array_equal(view.numpy(), body)
    assert np.array_equal(PixelRows(PREPROCESS, CPU).view_of(images(list(body)[2:4])), body[2:4])


def test_a_view_keeps_its_memory() -> None:
    lender = Lender(SharedRegion(2**16))
    lent = lender.lend(5 * SIZE[0] * SIZE[1] * 3)
    assert lent is not None
    body = lent.reshape(5, *SIZE, 3)
    view = PixelRows(PREPROCESS, CPU).view_of(images(list(body)))
    del lent, body
    assert view is not None
    piece = view[3:]
    del view
    assert lender.lent_bytes
    del piece
    assert not lender.lent_bytes


@pytest.mark.parametrize("kind", ["other order", "a gap", "two bodies", "turned", "another size", "files"])
def test_other_images_are_no_view(kind: str) -> None:
    body = drawn(4)
    arrays = {
        "other order": [body[1], body[0]],
        "a gap": [body[0], body[2]],
        "two bodies": [body[0], drawn(1, 1)[0]],
        "turned": list(body[:, :, ::-1]),
        "another size": [body[0], body[1][:4]],
        "files": [np.zeros(SIZE[0] * SIZE[1] * 3, np.uint8)],
    }[kind]
    assert PixelRows(PREPROCESS, CPU).view_of(images(arrays)) is None
    assert PixelRows(PREPROCESS, CPU).view_of([*images(list(body)), SentImage("file", b"abc")]) is None


def test_neighbours_by_chance_are_no_view() -> None:
    """Nothing would keep the memory of the second one."""
    whole = drawn(2)
    first, second = (np.frombuffer(memoryview(one), np.uint8).reshape(one.shape) for one in whole)
    assert second.ctypes.data == first.ctypes.data + first.nbytes
    assert as_one([first, second]) is None


def test_what_must_not_be_viewed() -> None:
    body = drawn(2)
    assert PixelRows(PREPROCESS, CPU, max_pixels=47).view_of(images(list(body))) is None  # it has 48
    body.flags.writeable = False  # torch has no tensors that cannot be written to
    assert PixelRows(PREPROCESS, CPU).view_of(images(list(body))) is None


def test_memory_is_lent_and_comes_back() -> None:
    one = SIZE[0] * SIZE[1] * 3
    rows = PixelRows(PREPROCESS, CPU, [Lender(SharedRegion(4096))])
    first = rows.slots(4096 // one, None)
    assert first is not None
    assert first.shape == (4096 // one, one)
    assert rows.slots(1, None) is None
    del first
    larger, smaller = rows.slots(1, (20, 30)), PixelRows(PREPROCESS, CPU).slots(2, (2, 2))
    assert larger is not None
    assert larger.shape == (1, 1800)
    assert smaller is not None
    assert smaller.shape == (2, one)  # those that have another size get the encoder's


def test_the_first_lender_that_has_room() -> None:
    one = SIZE[0] * SIZE[1] * 3
    best, other = Lender(SharedRegion(4096)), Lender(SharedRegion(2 * 4096))
    rows = PixelRows(PREPROCESS, CPU, [best, other])
    held = [rows.slots(4096 // one, None) for _ in range(4)]
    assert [memory is None for memory in held] == [False, False, False, True]
    assert (best.lent_bytes, other.lent_bytes) == (4096, 2 * 4096)
    del held[0]
    again = rows.slots(1, None)
    assert again is not None
    assert best.region.offset_of(again) == 0
