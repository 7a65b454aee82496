"""Pixels that are ready are taken as they are; others get rows, and wait if there are none."""

import numpy as np
import pytest
import torch
from PIL import Image

from ramen.client.operations import SentImage
from ramen.images.preprocess import Preprocess
from ramen.serve.pixels import DecodedImages, PixelBatches, PixelGroup, PixelRules, as_one

SIZE = (8, 6)
CPU = torch.device("cpu")
PREPROCESS = Preprocess(SIZE)


def drawn(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), np.uint8)


def images(arrays: list[np.ndarray]) -> list[SentImage]:
    return [SentImage(str(number), array) for number, array in enumerate(arrays)]


def test_batches_are_joined_in_order() -> None:
    rows = PixelBatches(PREPROCESS, CPU)
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
    rows = PixelBatches(PREPROCESS, CPU)
    first = [PixelGroup(torch.from_numpy(np.stack(large[:3])), range(3))]
    second = [
        PixelGroup(torch.from_numpy(np.stack(large[3:])), [1, 2]),
        PixelGroup(torch.from_numpy(np.stack(small)), [0, 3]),
    ]
    expected = PREPROCESS.pixels([*map(Image.fromarray, (*large[:3], small[0], *large[3:], small[1]))])
    assert torch.equal(rows.on_device([first, second]), expected)


def test_images_are_grouped_by_size() -> None:
    random = np.random.default_rng(0)
    slots = random.integers(0, 256, (4, 20 * 30 * 3), np.uint8)
    images = DecodedImages(slots, [SIZE, (20, 30), None, SIZE], {2: "it is bad"})
    small, large = images.groups()
    assert (list(small.places), list(large.places)) == ([0, 3], [1])
    assert np.array_equal(small.pixels.numpy(), slots[[0, 3], : 3 * 8 * 6].reshape(2, *SIZE, 3))
    assert np.array_equal(large.pixels.numpy(), slots[1:2].reshape(1, 20, 30, 3))
    assert np.array_equal(images.image(3), small.pixels[1].numpy())
    (whole,) = DecodedImages(slots, [(20, 30)] * 4, {}).groups()
    assert whole.pixels.data_ptr() == slots.ctypes.data  # without a copy
    assert DecodedImages.failed(["a", "b"]).groups() == []


def test_which_sizes_are_resized_later() -> None:
    rules = PixelRules(PREPROCESS, 700, resizes=True)
    assert rules.is_resized_later((20, 30))
    assert not rules.is_resized_later(SIZE)
    assert not rules.is_resized_later((20, 36))  # more than 700 pixels
    assert not rules.is_resized_later((1, 0))
    assert not PixelRules(PREPROCESS).is_resized_later((20, 30))
    assert not PixelRules(PREPROCESS, resizes=True).is_resized_later((1000, 1000))
    assert (rules.slot_bytes(None), rules.slot_bytes((20, 30)), rules.slot_bytes((2, 2))) == (144, 1800, 144)


def test_images_of_one_body_are_not_copied() -> None:
    body = drawn(5)
    view = PixelRules(PREPROCESS).view(images(list(body)))
    assert view is not None
    assert view.slots.ctypes.data == body.ctypes.data
    assert np.array_equal(view.groups()[0].pixels.numpy(), body)
    part = PixelRules(PREPROCESS).view(images(list(body)[2:4]))
    assert part is not None
    assert np.array_equal(part.groups()[0].pixels.numpy(), body[2:4])


def test_frames_of_one_size_are_not_copied() -> None:
    body = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    view = PixelRules(PREPROCESS, resizes=True).view(images(list(body)))
    assert view is not None
    assert view.slots.ctypes.data == body.ctypes.data
    assert PixelRules(PREPROCESS).view(images(list(body))) is None
    assert PixelRules(PREPROCESS, resizes=True).view(images([body[0], body[1][:10]])) is None


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
    assert PixelRules(PREPROCESS).view(images(arrays)) is None
    assert PixelRules(PREPROCESS).view([*images(list(body)), SentImage("file", b"abc")]) is None


def test_neighbours_by_chance_are_no_view() -> None:
    """Nothing would keep the memory of the second one."""
    whole = drawn(2)
    first, second = (np.frombuffer(memoryview(one), np.uint8).reshape(one.shape) for one in whole)
    assert second.ctypes.data == first.ctypes.data + first.nbytes
    assert as_one([first, second]) is None


def test_what_must_not_be_viewed() -> None:
    body = drawn(2)
    assert PixelRules(PREPROCESS, 47).view(images(list(body))) is None  # it has 48
    body.flags.writeable = False  # torch has no tensors that cannot be written to
    assert PixelRules(PREPROCESS).view(images(list(body))) is None
