"""Decoding ahead of time: in order, bounded, on time, in spite of deaths, and with nothing left behind."""

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest

from ramen.images.file_checks import DecodingSettings
from ramen.images.preprocess import Preprocess
from ramen.predict.decoding import DecodedSource, DecodedStream, DecodedStreams, Decoder, StreamClosedError
from ramen.predict.sources import expand
from tests.fakes.crashing_decoder import CrashingDecoder
from tests.helpers.leftovers import left_running
from tests.helpers.slow_tests import RUN_SLOW_TESTS

PATIENCE = 60  # seconds; only a failure takes so long


def streams(
    workers: int = 0,
    batch_size: int = 4,
    max_delay: float | None = None,
    kind: Callable[..., Decoder] = Decoder,
) -> DecodedStreams:
    return DecodedStreams(kind(Preprocess((4, 4)), DecodingSettings()), workers, batch_size, max_delay)


def image(number: int) -> np.ndarray:
    return np.full((4, 4, 3), number % 256, np.uint8)


def numbers(batch: list[DecodedSource]) -> list[int]:
    return [int(source.pixels[0, 0, 0]) for source in batch]


def read(opened: DecodedStreams, sources: object) -> list[list[DecodedSource]]:
    with opened.open(expand(sources)) as stream:
        return list(iter(stream.batch, []))


@pytest.mark.parametrize("batch_size", [1, 3, 8, 20, 100])
def test_batches_are_full_and_in_order(batch_size: int) -> None:
    found = read(streams(batch_size=batch_size), [image(number) for number in range(50)])
    assert list(itertools.chain.from_iterable(map(numbers, found))) == list(range(50))
    assert [len(batch) for batch in found[:-1]] == [batch_size] * (len(found) - 1)
    assert not left_running()


@pytest.mark.parametrize("batch_size", [1, 4, 30])
def test_a_bounded_number_is_taken_ahead(batch_size: int) -> None:
    received, ahead = [0], [0]

    def generate() -> Iterator[np.ndarray]:
        for number in range(200):
            ahead[0] = max(ahead[0], number + 1 - received[0])
            yield image(number)

    with streams(batch_size=batch_size).open(expand(generate())) as stream:
        while batch := stream.batch():
            received[0] += len(batch)
    assert received[0] == 200
    # those under way, the batch that is being put together, and one that was released meanwhile
    assert batch_size < ahead[0] <= 3 * batch_size + 1


def test_a_full_batch_does_not_wait_for_the_next_source() -> None:
    answered = threading.Semaphore(0)

    def generate() -> Iterator[np.ndarray]:
        for number in range(12):
            if number and number % 3 == 0:
                assert answered.acquire(timeout=PATIENCE)
            yield image(number)

    with streams(batch_size=3).open(expand(generate())) as stream:
        for start in (0, 3, 6, 9):
            assert numbers(stream.batch()) == [start, start + 1, start + 2]
            answered.release()
        assert stream.batch() == []


def test_a_batch_that_is_not_full_is_handed_out_in_time() -> None:
    answered = threading.Semaphore(0)

    def generate() -> Iterator[np.ndarray]:
        for number in range(5):
            if number in (2, 3):
                assert answered.acquire(timeout=PATIENCE)
            yield image(number)

    with streams(max_delay=0.05, batch_size=100).open(expand(generate())) as stream:
        found: list[list[int]] = []
        while batch := stream.batch():
            found.append(numbers(batch))
            if sum(map(len, found)) in (2, 3):  # two may come one by one on a busy machine
                answered.release()
    assert list(itertools.chain.from_iterable(found)) == [0, 1, 2, 3, 4]
    assert len(found) >= 3


@pytest.mark.parametrize("max_delay", [None, 0.0, 0.01])
@pytest.mark.parametrize("error", [KeyError("the camera is gone"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_of_the_sources_comes_after_what_was_before_it(
    error: BaseException, max_delay: float | None
) -> None:
    def generate() -> Iterator[np.ndarray]:
        yield from (image(number) for number in range(6))
        raise error

    found: list[int] = []
    with streams(max_delay=max_delay).open(expand(generate())) as stream:
        with pytest.raises(type(error)) as raised:  # noqa: PT012 - all batches before it
            while True:
                found += numbers(stream.batch())
        assert raised.value is error
    assert found == list(range(6))
    assert not left_running()


def test_bad_sources_keep_their_places() -> None:
    (batch,) = read(streams(), [image(7), b"junk", None, image(8)])
    assert [source.error is None for source in batch] == [True, False, False, True]
    assert [source.key for source in batch] == ["image 0", "image 1", "image 2", "image 3"]


# -- deaths -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="slow; RAMEN_SLOW_TESTS=1 runs them")
def test_processes_that_die_cost_one_source_each() -> None:
    """The others of a group that is lost with it are decoded again; the predictor's test has one death."""
    deadly = {0, 5, 6, 21}
    sources = [(f"deadly {n}" if n in deadly else f"image {n}", image(n)) for n in range(22)]
    found = list(itertools.chain.from_iterable(read(streams(1, 10, kind=CrashingDecoder), sources)))
    assert [source.key for source in found] == [key for key, _ in sources]
    assert {number for number, source in enumerate(found) if source.error is not None} == deadly
    assert found[5].error == "deadly 5 cannot be decoded: the process died of it, or memory ran out"
    assert numbers([source for source in found if source.pixels is not None]) == [
        number for number in range(22) if number not in deadly
    ]
    assert not left_running()


def test_streams_share_their_processes_and_the_last_one_ends_them() -> None:
    opened = streams(workers=1, batch_size=2)
    with opened.open(expand(image(n) for n in itertools.count())) as first:
        assert numbers(first.batch()) == [0, 1]
        children = left_running()
        assert read(opened, [])[:1] == []
        assert [numbers(batch) for batch in read(opened, [image(9)])] == [[9]]
        assert [name for name in left_running() if "Process" in name] == [
            name for name in children if "Process" in name
        ]
        assert numbers(first.batch()) == [2, 3]
    assert not left_running()


# -- ends -------------------------------------------------------------------------------------------------


def endless() -> Generator[Any, None, None]:
    return (image(number) for number in itertools.count())


def batches(opened: DecodedStreams, sources: object) -> Generator[list[DecodedSource], None, None]:
    with opened.open(expand(sources)) as stream:
        while batch := stream.batch():
            yield batch


def test_the_callers_generator_is_closed_with_the_stream() -> None:
    closed = threading.Event()

    def generate() -> Iterator[np.ndarray]:
        try:
            yield from endless()
        finally:
            closed.set()

    reading = batches(streams(), generate())
    next(reading)
    reading.close()
    assert closed.is_set()


def test_a_source_that_never_returns_holds_nobody_up() -> None:
    never = threading.Event()

    def generate() -> Iterator[np.ndarray]:
        yield from (image(number) for number in range(4))
        never.wait(PATIENCE)
        yield image(4)

    reading = batches(streams(), generate())
    next(reading)
    reading.close()  # returns, although the thread is still waiting
    assert [name for name in left_running() if name == "ramen-sources"]
    never.set()
    for thread in threading.enumerate():
        if thread.name == "ramen-sources":
            thread.join(PATIENCE)
    assert not left_running()


def test_stopping_all_streams_wakes_whoever_reads() -> None:
    reached, never = threading.Event(), threading.Event()

    def generate() -> Iterator[np.ndarray]:
        yield image(0)
        reached.set()
        never.wait(PATIENCE)

    opened = streams(batch_size=1)
    ended: list[BaseException] = []

    def consume() -> None:
        try:
            list(batches(opened, generate()))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    assert reached.wait(PATIENCE)
    opened.stop()
    thread.join(PATIENCE)
    never.set()
    assert [type(error) for error in ended] == [StreamClosedError]


def test_a_stream_does_not_keep_itself_alive() -> None:
    opened = streams()
    with opened.open(expand(endless())) as stream:
        stream.batch()
        known: weakref.ref[DecodedStream] = weakref.ref(stream)
    del stream
    gc.collect()
    assert known() is None
