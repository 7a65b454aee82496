"""What is decoded, in which order, how far ahead, and with the same pixels in a thread and in a process."""

import asyncio
import io
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ramen.client.operations import SentImage
from ramen.images.file_checks import DecodingSettings
from ramen.images.preprocess import Preprocess
from ramen.predict.decoding import Decoder
from ramen.serve.arena import Arena, SharedRegion
from ramen.serve.decoding import (
    DecodedSlot,
    Decoding,
    ProcessDecoder,
    ThreadDecoder,
    decoding_bytes,
    even_pieces,
)
from ramen.serve.pixels import DecodedImages, PixelRules, Pixels, Size
from tests.helpers.photos import encoded, photo

PATIENCE = 60
SIZE = (8, 6)
SLOT = 3 * 20 * 30  # bytes
DEADLY, ENDLESS = b"deadly", b"endless"


# -- pixels -----------------------------------------------------------------------------------------------


class FragileDecoder(Decoder):
    """Some files end the process, as a defect of a decoder would, or take for ever."""

    def image(self, key: str, value: Any) -> Image.Image | str:
        if isinstance(value, bytes) and value == DEADLY:
            os._exit(1)
        while isinstance(value, bytes) and value == ENDLESS:
            pass
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
def arena() -> Arena:
    return Arena(SharedRegion(2**20))


@pytest.fixture(scope="module")
def process(decoder: Decoder, arena: Arena) -> Iterator[ProcessDecoder]:
    made = ProcessDecoder(decoder, arena.region)
    made.start()
    yield made
    made.close()


def lent(arena: Arena, *shape: int) -> np.ndarray:
    block = arena.lend(int(np.prod(shape)))
    assert block is not None
    return block.reshape(shape)


def pixels_in(slot: np.ndarray, size: tuple[int, int] = SIZE) -> np.ndarray:
    return slot[: 3 * size[0] * size[1]].reshape(*size, 3)


def expected(decoder: Decoder, seed: int, size: tuple[int, int] = (20, 30)) -> np.ndarray:
    return decoder.preprocess.pixels(Image.fromarray(drawn(seed, size)))[0].numpy().transpose(1, 2, 0)


@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize(("shared", "kept"), [(False, False), (True, False), (True, True)])
def test_pixels_are_what_preprocessing_gives(
    decoder: Decoder, process: ProcessDecoder, arena: Arena, where: str, shared: bool, kept: bool
) -> None:
    """Files, arrays of other sizes and one of the right size."""

    def image(key: str, data: bytes | np.ndarray) -> SentImage:
        if not shared:
            return SentImage(key, data)
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        copy = lent(arena, *array.shape)
        copy[...] = array
        return SentImage(key, copy)

    images = [image(str(seed), png(seed)) for seed in range(5)]
    images += [
        image("large", drawn(50)),
        image("ready", drawn(51, SIZE)),
        image("other", drawn(52, (12, 18))),
    ]
    images.insert(3, image("bad", b"no image"))
    slots = lent(arena, len(images), SLOT)
    unresized = (20, 30) if kept else None
    found = (ThreadDecoder(decoder) if where == "thread" else process).decode_into(images, slots, unresized)
    by_key = {image.key: (slot, one) for image, slot, one in zip(images, slots, found, strict=True)}
    assert (by_key.pop("bad")[1].error or "").startswith("bad cannot be read as an image")
    slot, one = by_key.pop("ready")
    assert np.array_equal(pixels_in(slot), drawn(51, SIZE))
    assert one == DecodedSlot(None, SIZE, SIZE)
    slot, one = by_key.pop("other")
    assert np.array_equal(pixels_in(slot), expected(decoder, 52, (12, 18)))
    assert one == DecodedSlot(None, SIZE, (12, 18))
    by_key["50"] = by_key.pop("large")
    for seed, (slot, one) in by_key.items():
        assert one == DecodedSlot(None, (20, 30) if kept else SIZE, (20, 30))
        if kept:
            assert np.array_equal(pixels_in(slot, (20, 30)), drawn(int(seed))), seed
        else:
            assert np.array_equal(pixels_in(slot), expected(decoder, int(seed))), seed


@pytest.mark.parametrize(("file", "reason"), [(DEADLY, "died"), (ENDLESS, "more than 2 seconds")])
def test_a_file_that_ends_the_process_gets_an_error_and_no_other(
    decoder: Decoder, process: ProcessDecoder, arena: Arena, file: bytes, reason: str
) -> None:
    images = [SentImage(str(seed), png(seed)) for seed in range(6)]
    images[1] = images[4] = SentImage("hostile", file)
    slots = lent(arena, len(images), SLOT)
    errors = [found.error for found in process.decode_into(images, slots, None)]
    for place in (1, 4):
        assert (errors[place] or "").startswith("hostile cannot be decoded: ")
        assert reason in (errors[place] or "")
    for seed in (0, 2, 3, 5):
        assert errors[seed] is None
        assert np.array_equal(pixels_in(slots[seed]), expected(decoder, seed))


# -- turns ------------------------------------------------------------------------------------------------


class SlowDecoder:
    """Decodes as many images as it is allowed to: 3 x 3 pixels; keys that begin with "wide" have 3 x 5."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.keys: list[str] = []
        self.unresized: list[Size | None] = []  # what was asked for
        self.started = self.closed = 0

    def start(self) -> None:
        self.started += 1

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        found: list[DecodedSlot] = []
        for image, slot in zip(images, slots, strict=True):
            self.keys.append(image.key)
            assert self.allowed.acquire(timeout=PATIENCE)
            slot[:] = ord(image.key[-1])
            if image.key == "raises":
                raise OSError("no memory")
            sent = (3, 5) if image.key.startswith("wide") else (3, 3)
            self.unresized.append(unresized)
            size = sent if sent == unresized else (2, 2)
            found.append(DecodedSlot("it is bad" if image.key == "bad" else None, size, sent))
            if image.key == "bad":
                found[-1] = DecodedSlot("it is bad")
        return found

    def close(self) -> None:
        self.closed += 1


class Asked:
    """A request."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.images: DecodedImages | None = None


class Stage:
    """The decoding of a worker, with its decoder."""

    def __init__(self, decoders: int, ahead: int, resizes: bool, arena: Arena | None) -> None:
        self.decoder = SlowDecoder()
        rules = PixelRules(Preprocess((2, 2)), resizes=resizes)
        self.decoding = Decoding([self.decoder] * decoders, rules, ahead, arena)

    def add(self, stream: str, *keys: str) -> Asked:
        asked = Asked()

        def done(images: DecodedImages) -> None:
            asked.images = images

        self.decoding.put(stream, [SentImage(key, b"x") for key in keys], asked.reply, done)
        return asked

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.001)

    async def decoded(self, *asked: Asked) -> None:
        await self.until(lambda: all(one.images is not None for one in asked))


@asynccontextmanager
async def stage(decoders: int = 1, ahead: int = 100, *, resizes: bool = False, arena: Arena | None = None):
    made = Stage(decoders, ahead, resizes, arena)
    try:
        yield made
    finally:
        made.decoder.allowed.release(1000)
        await made.decoding.close()
        assert made.decoder.closed == decoders


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), PATIENCE))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_a_loop
async def test_streams_take_turns() -> None:
    async with stage() as one:
        await one.decoding.start()
        assert one.decoder.started == 1
        one.add("loud", "0")
        for key in "123":
            one.add("loud", key)
        one.add("quiet", "a", "b")
        last = one.add("quiet", "c")
        one.decoder.allowed.release(100)
        await one.until(lambda: len(one.decoder.keys) == 7)
        await one.decoded(last)
        assert one.decoder.keys == ["0", "1", "a", "b", "2", "c", "3"]


@on_a_loop
async def test_no_more_is_decoded_than_is_soon_needed() -> None:
    """Four images are unanswered, more than three, until one request is answered."""
    async with stage(decoders=2, ahead=3) as one:
        one.decoder.allowed.release(100)
        asked = [one.add("a", f"{number}a", f"{number}b") for number in range(5)]
        await one.decoded(*asked[:2])
        await asyncio.sleep(0.2)
        assert len(one.decoder.keys) == 4
        asked[0].reply.set_result(None)
        await one.decoded(asked[2])
        assert [each.images is None for each in asked] == [False, False, False, True, True]


@on_a_loop
async def test_what_nobody_wants_is_not_decoded() -> None:
    async with stage() as one:
        one.add("a", "0")
        unwanted, wanted = one.add("a", "1"), one.add("a", "2")
        unwanted.reply.cancel()
        one.decoder.allowed.release(100)
        await one.decoded(wanted)
        assert one.decoder.keys == ["0", "2"]
        assert unwanted.images is None


@on_a_loop
async def test_images_that_cannot_be_decoded() -> None:
    async with stage(decoders=2) as one:
        one.decoder.allowed.release(100)
        mixed, raising = one.add("a", "1", "bad", "2", "bad", "3"), one.add("a", "raises")
        await one.decoded(mixed, raising)
        assert mixed.images is not None
        assert mixed.images.errors == {1: "it is bad", 3: "it is bad"}
        (group,) = mixed.images.groups()
        assert [int(row.max()) for row in group.pixels] == [int(row.min()) for row in group.pixels]
        assert [int(row.max()) for row in group.pixels] == [ord(key) for key in "123"]
        assert raising.images is not None
        assert raising.images.errors == {0: "raises cannot be decoded: no memory"}


@on_a_loop
async def test_images_of_the_usual_size_are_left_as_they_are() -> None:
    small, sent, wide = (2, 2), (3, 3), (3, 5)
    async with stage(resizes=True) as one:
        one.decoder.allowed.release(100)
        found = []
        for keys in (("0", "1"), ("2", "wide 3", "4"), ("bad", "5"), ("wide 6", "7"), ("wide 8", "wide 9")):
            asked = one.add("a", *keys)
            await one.decoded(asked)
            assert asked.images is not None
            found.append(list(asked.images.sizes))
        assert found == [[small, small], [sent, small, sent], [None, sent], [small, sent], [wide, wide]]
        other = one.add("b", "a")  # of which nothing is known
        await one.decoded(other)
        assert other.images is not None
        assert list(other.images.sizes) == [small]


@on_a_loop
async def test_requests_wait_for_memory() -> None:
    """It comes back as soon as the request before has been answered, and nobody has its images any more."""
    arena = Arena(SharedRegion(4096))
    async with stage(arena=arena) as one:
        one.decoder.allowed.release(100)
        first, second = one.add("a", *"0123"), one.add("a", *"4567")
        await one.decoded(first)
        await asyncio.sleep(0.1)
        assert second.images is None
        first.images = None
        first.reply.set_result(None)
        await one.decoded(second)
        assert second.images is not None
        assert arena.region.offset_of(second.images.slots) == 0


@on_a_loop
async def test_pixels_that_are_ready_are_put_where_the_device_finds_them() -> None:
    arena = Arena(SharedRegion(2**16))
    async with stage(arena=arena) as one:
        body = lent(arena, 3, 2, 2, 3)
        body[...] = drawn(0, (6, 2)).reshape(body.shape)
        there = one.decoding.ready([SentImage(str(n), image) for n, image in enumerate(body)])
        assert there is not None
        assert there.slots.ctypes.data == body.ctypes.data
        elsewhere = [SentImage(str(n), image) for n, image in enumerate(body.copy())]
        copied = one.decoding.ready(elsewhere)
        assert copied is not None
        assert arena.region.offset_of(copied.slots) is not None
        assert np.array_equal(copied.groups()[0].pixels.numpy(), body)
        assert one.decoding.ready([SentImage("a", drawn(1))]) is None
        assert one.decoding.ready([SentImage("a", b"file")]) is None


@pytest.mark.parametrize(
    ("images", "most", "decoders", "lengths"),
    [
        (100, 4, 12, [3] * 33 + [1]),  # three turns, in which nobody has nothing to do for long
        (48, 4, 12, [4] * 12),
        (8, 4, 12, [1] * 8),
        (1, 4, 12, [1]),
        (5, 1, 2, [1] * 5),
    ],
)
def test_pieces_keep_all_decoders_busy(images: int, most: int, decoders: int, lengths: list[int]) -> None:
    pieces = even_pieces(images, most, decoders)
    assert [len(range(images)[piece]) for piece in pieces] == lengths
    assert [place for piece in pieces for place in range(images)[piece]] == list(range(images))


def test_large_images_are_decoded_one_after_the_other() -> None:
    """Whatever memory decoders may take together is enough for one of them."""

    async def run() -> None:
        decoder = SlowDecoder()
        decoding = Decoding([decoder] * 2, PixelRules(Preprocess((2, 2))), 100, most_bytes=1000)
        large, replies = encoded(photo(1, (300, 200)), "PNG"), []
        for key in "01":
            replies.append(asyncio.get_running_loop().create_future())
            decoding.put("a", [SentImage(key, large)], replies[-1], replies[-1].set_result)
        await asyncio.sleep(0.1)
        assert decoder.keys == ["0"]
        decoder.allowed.release(2)
        await asyncio.gather(*replies)
        await decoding.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP"])
def test_what_decoding_takes_is_read_from_the_header(kind: str) -> None:
    content = encoded(photo(1, (300, 200)), kind)
    for data in (content, np.frombuffer(content, np.uint8)):
        assert decoding_bytes(SentImage("x", data)) == 8 * 300 * 200


def test_what_decoding_takes_without_such_a_header() -> None:
    photograph = encoded(photo(1, (640, 480)), "JPEG")
    assert decoding_bytes(SentImage("x", photograph)) >= 8 * 640 * 480
    assert decoding_bytes(SentImage("x", b"")) == 0
    assert decoding_bytes(SentImage("x", b"\x89PNG")) >= 0
    assert decoding_bytes(SentImage("x", np.zeros((2000, 2000, 3), np.uint8))) == 0


def test_hostile_files_cost_others_little(decoder: Decoder) -> None:
    """While one decoder is busy with an endless file, others go on, and it is back after two seconds."""

    async def run() -> None:
        arena = Arena(SharedRegion(2**20))
        decoders = [ProcessDecoder(decoder, arena.region) for _ in range(2)]
        decoding = Decoding(decoders, PixelRules(decoder.preprocess), 100, arena)
        await decoding.start()
        hostile, started = asyncio.get_running_loop().create_future(), time.monotonic()
        decoding.put("bad", [SentImage("hostile", ENDLESS)], hostile, hostile.set_result)
        for seed in range(5):
            reply = asyncio.get_running_loop().create_future()
            decoding.put("good", [SentImage("a", png(seed))], reply, reply.set_result)
            assert np.array_equal((await reply).image(0), expected(decoder, seed))
        assert not hostile.done() or time.monotonic() - started > 2
        assert "more than 2 seconds" in (await hostile).errors[0]
        await decoding.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
