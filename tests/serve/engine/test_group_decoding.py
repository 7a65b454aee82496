"""Images are decoded into their slots: the same pixels in a thread and in a process, which may die."""

import io
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ramen.client.operations import SentImage
from ramen.images.decoding import DecodingSettings
from ramen.images.preprocess import Preprocess
from ramen.predict.decoding import Decoder
from ramen.serve.engine.group_decoding import FILES_PER_MESSAGE, InProcess, InThread
from ramen.serve.shared_memory import Lender, SharedRegion, SharedRegions

SIZE = (8, 6)
SLOT = 3 * 20 * 30  # bytes
DEADLY = b"deadly"
PATIENCE = 60.0


class FragileDecoder(Decoder):
    """Some files end the process, as a defect of a decoder would."""

    def image(self, key: str, value: Any) -> Image.Image | str:
        if isinstance(value, bytes) and value == DEADLY:
            os._exit(1)
        return super().image(key, value)


def drawn(seed: int, size: tuple[int, int] = (20, 30)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(drawn(seed)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return FragileDecoder(Preprocess(SIZE), DecodingSettings())


@pytest.fixture(scope="module")
def lender() -> Lender:
    return Lender(SharedRegion(2**20))


@pytest.fixture(scope="module")
def other() -> Lender:
    """Memory that somebody else shares."""
    return Lender(SharedRegion(2**20))


@pytest.fixture(scope="module")
def process(decoder: Decoder, lender: Lender, other: Lender) -> Iterator[InProcess]:
    """One that has started."""
    made = InProcess(decoder, SharedRegions([lender.region, other.region]))
    slots = new_slots(lender, 1)
    (found,) = made.decode_into([SentImage("a", png(0))], slots, None)  # in this thread
    assert found.error is None
    assert np.array_equal(pixels_in(slots[0]), expected(decoder, 0))
    made.start()
    assert made._process is not None
    assert made._process.has_started(wait=True)
    yield made
    made.close()
    assert not made._process._process.is_alive()


def new_slots(lender: Lender, count: int) -> np.ndarray:
    lent = lender.lend(count * SLOT)
    assert lent is not None
    return lent.reshape(count, SLOT)


def pixels_in(slot: np.ndarray, size: tuple[int, int] = SIZE) -> np.ndarray:
    return slot[: 3 * size[0] * size[1]].reshape(*size, 3)


def in_memory(lender: Lender, array: np.ndarray) -> np.ndarray:
    lent = lender.lend(array.nbytes)
    assert lent is not None
    lent[:] = array.reshape(-1)
    return lent.reshape(array.shape)


def expected(decoder: Decoder, seed: int, size: tuple[int, int] = (20, 30)) -> np.ndarray:
    return decoder.preprocess.pixels(Image.fromarray(drawn(seed, size)))[0].numpy().transpose(1, 2, 0)


@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize(("shared", "kept"), [(False, False), (True, False), (True, True)])
def test_pixels_are_what_preprocessing_gives(
    decoder: Decoder, process: InProcess, lender: Lender, other: Lender, where: str, shared: bool, kept: bool
) -> None:
    """Files, arrays of other sizes and one of the right size, more than fit into one message."""

    def image(key: str, data: bytes | np.ndarray) -> SentImage:
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return SentImage(key, in_memory(other, array) if shared else data)

    images = [image(str(seed), png(seed)) for seed in range(2 * FILES_PER_MESSAGE + 1)]
    images += [
        image("large", drawn(50)),
        image("ready", drawn(51, SIZE)),
        image("other", drawn(52, (12, 18))),
    ]
    images.insert(3, image("bad", b"no image"))
    slots = new_slots(lender, len(images))
    unresized = (20, 30) if kept else None
    found = (InThread(decoder) if where == "thread" else process).decode_into(images, slots, unresized)
    by_key = {image.key: (slot, one) for image, slot, one in zip(images, slots, found, strict=True)}
    assert (by_key.pop("bad")[1].error or "").startswith("bad cannot be read as an image")
    assert {one.error for _, one in by_key.values()} == {None}
    slot, one = by_key.pop("ready")
    assert np.array_equal(pixels_in(slot), drawn(51, SIZE))
    assert (one.size, one.is_resized) == (SIZE, True)
    slot, one = by_key.pop("other")
    assert np.array_equal(pixels_in(slot), expected(decoder, 52, (12, 18)))
    assert (one.size, one.is_resized) == ((12, 18), True)
    by_key["50"] = by_key.pop("large")
    for seed, (slot, one) in by_key.items():
        assert (one.size, one.is_resized) == ((20, 30), not kept)
        if kept:
            assert np.array_equal(pixels_in(slot, (20, 30)), drawn(int(seed))), seed
        else:
            assert np.array_equal(pixels_in(slot), expected(decoder, int(seed))), seed


def test_a_file_that_ends_the_process_gets_an_error_and_no_other(
    decoder: Decoder, process: InProcess, lender: Lender
) -> None:
    images = [SentImage(str(seed), png(seed)) for seed in range(FILES_PER_MESSAGE)]
    images[1] = SentImage("deadly", DEADLY)
    slots = new_slots(lender, len(images))
    errors = [found.error for found in process.decode_into(images, slots, None)]
    assert errors[1] == "deadly cannot be decoded: the process died of it, or memory ran out"
    assert [error for place, error in enumerate(errors) if place != 1] == [None] * (len(images) - 1)
    for seed in (0, *range(2, len(images))):
        assert np.array_equal(pixels_in(slots[seed]), expected(decoder, seed))
    end = time.monotonic() + PATIENCE  # the next process starts beside the work
    while not process._process.has_started(wait=False):  # type: ignore[union-attr]
        assert process.decode_into(images[:1], slots[:1], None)[0].error is None
        assert time.monotonic() < end
    assert process.decode_into(images[2:3], slots[:1], None)[0].error is None
    assert np.array_equal(pixels_in(slots[0]), expected(decoder, 2))
