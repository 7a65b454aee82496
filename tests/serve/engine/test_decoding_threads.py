"""What is decoded, in which order, and how far ahead."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from ramen.client.operations import SentImage
from ramen.images.preprocess import Preprocess
from ramen.predict.decoding import DecodedSource
from ramen.serve.engine.decoding_threads import (
    DecodingMemory,
    DecodingThreads,
    decoding_bytes,
    even_pieces,
)
from ramen.serve.engine.group_decoding import DecodedSlot
from ramen.serve.engine.pixel_rows import PixelRows, Pixels, Size
from ramen.serve.engine.scheduler import Request, Scheduler
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream import Stream
from tests.helpers.photos import encoded, photo

PATIENCE = 60


class SlowDecoder:
    """Decodes as many images as it is allowed to."""

    def __init__(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.keys: list[str] = []
        self.unresized: list[Size | None] = []  # what was asked for
        self.started = threading.Semaphore(0)
        self.closed = 0
        self.waiting = threading.Semaphore(0)  # released by each image that has come

    def start(self) -> None:
        self.started.release()
        raise OSError("no memory")  # which ends no thread

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        """Images are 3 x 3 pixels; those whose keys begin with "wide" have another size."""
        found: list[DecodedSlot] = []
        for image, slot in zip(images, slots, strict=True):
            self.keys.append(image.key)
            self.waiting.release()
            assert self.allowed.acquire(timeout=PATIENCE)
            slot[:] = ord(image.key[-1])
            if image.key == "raises":
                raise OSError("no memory")
            size = (3, 5) if image.key.startswith("wide") else (3, 3)
            self.unresized.append(unresized)
            error = "it is bad" if image.key == "bad" else None
            found.append(DecodedSlot(error, size, is_resized=size != unresized))
        return found

    def close(self) -> None:
        self.closed += 1

    def wait(self, images: int) -> None:
        for _ in range(images):
            assert self.waiting.acquire(timeout=PATIENCE)


class Decoding:
    """Threads, a decoder and a room."""

    def __init__(self, threads: int, ahead: int, files_per_turn: int, resizes: bool) -> None:
        self.scheduler = Scheduler(EngineSettings())
        self.decoder: Any = SlowDecoder()
        self.done: list[Request] = []
        self.errors: list[str] = []
        self.sizes: list[list[tuple[int, ...]]] = []  # of the pixels of each ticket
        rows = PixelRows(Preprocess((2, 2)), torch.device("cpu"), resizes=resizes)
        self.threads = DecodingThreads([self.decoder] * threads, rows, files_per_turn, ahead, self._finished)
        self._one_done = threading.Semaphore(0)

    def _finished(self, ticket: Request, sources: list[DecodedSource]) -> None:
        assert [source.key for source in sources] == [image.key for image in ticket.images]
        self.errors += [source.error for source in sources if source.error is not None]
        good = [source for source in sources if source.error is None]
        rows = {n: row for group in ticket.pixels for n, row in zip(group.places, group.pixels, strict=True)}
        assert sorted(rows) == list(range(len(good)))
        for n, source in enumerate(good):
            assert (rows[n] == ord(source.key[-1])).all()
            assert np.array_equal(source.pixels, rows[n].permute(2, 0, 1))
        self.sizes.append([tuple(rows[n].shape[:2]) for n in range(len(good))])
        self.done.append(ticket)
        self._one_done.release()

    def add(self, stream: Stream, *keys: str) -> Request:
        ticket = Request(stream, [SentImage(key, b"x") for key in keys], None, Future())  # type: ignore[arg-type]
        self.scheduler.put(ticket)
        self.threads.start(ticket)
        return ticket

    def wait_for_tickets(self, count: int) -> None:
        for _ in range(count):
            assert self._one_done.acquire(timeout=PATIENCE)


@contextmanager
def decoding(
    threads: int = 1, ahead: int = 100, files_per_turn: int = 1, *, resizes: bool = False
) -> Iterator[Decoding]:
    made = Decoding(threads, ahead, files_per_turn, resizes)
    try:
        yield made
    finally:
        made.decoder.allowed.release(1000)
        made.threads.close()


def test_decoders_start_before_the_first_image() -> None:
    with decoding(threads=2) as one:
        for _ in range(2):
            assert one.decoder.started.acquire(timeout=PATIENCE)
        assert not one.decoder.keys


def test_streams_take_turns() -> None:
    loud, quiet = Stream("loud"), Stream("quiet")
    with decoding() as one:
        one.add(loud, "0")
        one.decoder.wait(1)  # the only thread is busy with it
        for key in "123":
            one.add(loud, key)
        one.add(quiet, "a", "b")
        one.add(quiet, "c")
        one.decoder.allowed.release(100)
        one.wait_for_tickets(6)
        assert one.decoder.keys == ["0", "1", "a", "b", "2", "c", "3"]


def test_no_more_is_decoded_than_is_soon_needed() -> None:
    stream = Stream("a")
    with decoding(threads=2, ahead=3) as one:
        one.decoder.allowed.release(100)
        tickets = [one.add(stream, f"{number}a", f"{number}b") for number in range(5)]
        one.wait_for_tickets(2)
        assert not one._one_done.acquire(timeout=0.3)  # four images wait: more than three
        assert len(one.decoder.keys) == 4
        one.scheduler.cancel(tickets[0])
        one.wait_for_tickets(1)
        assert set(one.done) == set(tickets[:3])


def test_batches_that_are_taken_make_room() -> None:
    stream = Stream("a")
    stream.loaded = object()  # type: ignore[assignment]
    with decoding(threads=1, ahead=1) as one:
        one.decoder.allowed.release(100)
        tickets = [one.add(stream, str(number)) for number in range(3)]
        for ticket in tickets:
            one.wait_for_tickets(1)
            one.scheduler.decoded(ticket, [DecodedSource("", np.zeros((3, 2, 2), np.uint8))])
            batch, _ = one.scheduler.take(time.monotonic() + 1)
            assert batch == [ticket]
            one.threads.answering()
            one.scheduler.done(batch)
            one.scheduler.saved(batch)


def test_tickets_that_nobody_wants_are_not_decoded() -> None:
    stream = Stream("a")
    with decoding() as one:
        one.add(stream, "0")
        one.decoder.wait(1)
        unwanted, wanted = one.add(stream, "1"), one.add(stream, "2")
        one.scheduler.cancel(unwanted)
        one.decoder.allowed.release(100)
        one.wait_for_tickets(2)
        assert one.decoder.keys == ["0", "2"]
        assert one.done[-1] is wanted


def test_closing_decodes_what_is_left() -> None:
    with decoding(threads=3, ahead=2) as one:
        tickets = [one.add(Stream(str(number)), "x", "y") for number in range(6)]
        one.decoder.allowed.release(100)
        one.threads.close()
        assert sorted(map(id, one.done)) == sorted(map(id, tickets))


def test_images_that_cannot_be_decoded_leave_no_row() -> None:
    with decoding(threads=2, files_per_turn=2) as one:
        one.decoder.allowed.release(100)
        mixed = one.add(Stream("a"), "1", "bad", "2", "bad", "3")
        bad = one.add(Stream("b"), "bad")
        one.wait_for_tickets(2)
        assert [len(group.pixels) for group in mixed.pixels] == [3]
        assert not bad.pixels
    assert one.decoder.closed == 2


def test_a_decoder_that_fails_is_an_error_of_its_images() -> None:
    with decoding() as one:
        one.decoder.allowed.release(100)
        one.add(Stream("a"), "raises")
        after = one.add(Stream("a"), "1")
        one.wait_for_tickets(2)
        assert one.errors == ["raises cannot be decoded: no memory"]
        assert after.pixels is not None


def test_images_of_the_usual_size_are_left_as_they_are() -> None:
    stream, other = Stream("a"), Stream("b")
    with decoding(resizes=True) as one:
        one.decoder.allowed.release(100)
        for keys in (("0", "1"), ("2", "wide 3", "4"), ("bad", "5"), ("wide 6", "7"), ("wide 8", "wide 9")):
            one.add(stream, *keys)
            one.wait_for_tickets(1)
        small, sent, wide = (2, 2), (3, 3), (3, 5)
        assert one.sizes == [[small, small], [sent, small, sent], [sent], [small, sent], [wide, wide]]
        one.add(other, "a")
        one.wait_for_tickets(1)
        assert one.sizes[-1] == [small]  # another stream, of which nothing is known
    expected = [None] * 2 + [sent] * 5 + [sent] * 2 + [wide] * 2 + [None]
    assert one.decoder.unresized == expected


@pytest.mark.parametrize(
    ("images", "most", "threads", "lengths"),
    [
        (100, 4, 12, [3] * 33 + [1]),  # three turns, in which nobody has nothing to do for long
        (48, 4, 12, [4] * 12),
        (8, 4, 12, [1] * 8),
        (1, 4, 12, [1]),
        (5, 1, 2, [1] * 5),
    ],
)
def test_pieces_keep_all_threads_busy(images: int, most: int, threads: int, lengths: list[int]) -> None:
    pieces = even_pieces(images, most, threads)
    assert [len(range(images)[piece]) for piece in pieces] == lengths
    assert [place for piece in pieces for place in range(images)[piece]] == list(range(images))


def test_large_images_are_decoded_one_after_the_other() -> None:
    memory, taken, give_back = DecodingMemory(100), threading.Semaphore(0), threading.Event()

    def decode(nbytes: int) -> None:
        with memory.taken(nbytes):
            taken.release()
            assert give_back.wait(PATIENCE)

    threads = [threading.Thread(target=decode, args=(nbytes,)) for nbytes in (60, 40, 60, 1000)]
    for number, thread in enumerate(threads):
        thread.start()
        assert taken.acquire(timeout=PATIENCE if number < 2 else 0.1) == (number < 2)
    give_back.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


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
