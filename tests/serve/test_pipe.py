"""A worker and the engine on a pair of sockets, in one process: what is asked is what is answered."""

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ramen.client.operations import (
    AnswerLostError,
    DeadlineExceededError,
    InvalidRequestError,
    NoSuchStreamError,
    SentImage,
    ServerError,
    ServerOverloadedError,
    StoppingError,
)
from ramen.images.file_checks import DecodingSettings
from ramen.images.preprocess import Preprocess
from ramen.predict.decoding import Decoder
from ramen.predict.sources import Source
from ramen.serve.arena import Arena, SharedRegion
from ramen.serve.decoding import Decoding, ThreadDecoder
from ramen.serve.engine.scheduler import Request
from ramen.serve.engine.stream import Stream
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.http.service import Backend
from ramen.serve.pipe import PipeEngine, WorkerConnection
from ramen.serve.pixels import DecodedImages, PixelRules
from tests.fakes.backends import BAD, FakeBackend
from tests.helpers.calls import does
from tests.helpers.photos import encoded, photo

QUEUE = 10, 1000
PATIENCE = 15
SIZE = (2, 4)
RULES = PixelRules(Preprocess(SIZE))


class FakeEngine(FakeBackend):
    """Takes images that were decoded elsewhere; answers from their pixels.

    Attributes:
        requests: All that were admitted.
        decoded_images: What was handed over for each of them.
    """

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.decoded_images: list[DecodedImages] = []
        self._answering: dict[Request, asyncio.Task[None]] = {}

    async def admit(self, stream: str, keys: Sequence[str], nbytes: int, timeout: float | None) -> Request:
        if self.failure is not None:
            raise self.failure
        loop = asyncio.get_running_loop()
        request = Request(Stream(stream), keys, nbytes, timeout, loop.create_future())
        self.requests.append(request)
        return request

    def decoded(self, request: Request, images: DecodedImages) -> None:
        self.decoded_images.append(images)
        self._answering[request] = asyncio.create_task(self._answer_all(request, images))

    async def _answer_all(self, request: Request, images: DecodedImages) -> None:
        sent = [
            SentImage(key, BAD if place in images.errors else images.image(place))
            for place, key in enumerate(request.keys)
        ]
        try:
            request.reply.set_result(await self.classify(request.stream.name, sent, request.timeout))
        except DeadlineExceededError as error:
            request.fail(error)

    def cancel(self, request: Request) -> None:
        if request in self._answering:
            self._answering[request].cancel()
        request.reply.cancel()


class Pair:
    """Both ends.

    Attributes:
        engine: What answers.
        worker: What the HTTP application of a worker asks.
    """

    def __init__(self) -> None:
        self.engine: Any = FakeEngine()
        self.arena = Arena(SharedRegion(2**20))
        decoder = ThreadDecoder(Decoder(RULES.preprocess, DecodingSettings()))
        decoding = Decoding([decoder], RULES, 100, self.arena)
        self.worker = PipeEngine(self.engine.model, self.arena, decoding, QUEUE)
        self.figures: list[RequestFigures] = []
        self.listening = self.stops = self.gone = 0

    def run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        asyncio.run(asyncio.wait_for(self._run(work), PATIENCE))

    async def _run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        ours, theirs = socket.socketpair()
        self.connection = WorkerConnection(self.engine, self.arena.region, self._count, self._listen)
        self.serving = asyncio.create_task(self.connection.serve(ours))
        await self.worker.connect(theirs, self._stop, self._lose)
        await work(self)
        await self.worker.close()
        await self.serving

    def _count(self, figures: RequestFigures) -> RequestFigures:
        self.figures.append(figures)
        return figures

    def _listen(self) -> None:
        self.listening += 1

    def _stop(self) -> None:
        self.stops += 1

    def _lose(self) -> None:
        self.gone += 1


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_it_has_all_that_a_backend_has() -> None:
    for name, function in inspect.getmembers(Backend, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(PipeEngine, name)) == inspect.signature(function)


def drawn(seed: int, count: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), np.uint8)


def images(*data: bytes | np.ndarray) -> list[SentImage]:
    return [SentImage(f"image {number} \ud800é", one) for number, one in enumerate(data)]


def test_answers_are_those_of_the_engine() -> None:
    """Files, one that is none, pixels of several sizes; the first of a stream and others; several at once."""
    png = encoded(photo(1, (20, 30)), "PNG")

    async def work(pair: Pair) -> None:
        alone = FakeBackend()
        decoder = Decoder(RULES.preprocess, DecodingSettings())
        frame = np.asarray(photo(2, (9, 7)))
        for request in (images(*drawn(0)), images(png, b"", frame, *drawn(1)), images(*drawn(2, 3))):
            decoded = [decoder.decode(Source(image.key, image.data)) for image in request]
            expected = await does(alone).classify(
                "a",
                [
                    SentImage(one.key, BAD if one.pixels is None else one.pixels.transpose(1, 2, 0).copy())
                    for one in decoded
                ],
            )
            found = await does(pair.worker).classify("a", request, timeout=5.0)
            for one, other in zip(found, expected, strict=True):
                assert replace(one, probabilities=None) == replace(other, probabilities=None)
                assert np.array_equal(one.probabilities, other.probabilities)
        many = await asyncio.gather(
            *(does(pair.worker).classify(f"s{n}", images(png, *drawn(n))) for n in range(50))
        )
        assert [found[0].stream for found in many] == [f"s{n}" for n in range(50)]
        assert pair.engine.requests[1].nbytes == len(png) + frame.nbytes + drawn(1).nbytes

    Pair().run(work)


def test_pixels_in_lent_memory_are_not_copied() -> None:
    async def work(pair: Pair) -> None:
        body = drawn(1, 5)
        memory = pair.worker.memory_for(body.nbytes)
        assert memory is not None
        there = np.frombuffer(memory, np.uint8).reshape(body.shape)
        there[:] = body
        before = pair.arena.lent_bytes
        asked = asyncio.ensure_future(does(pair.worker).classify("a", images(*there)))
        place = there.ctypes.data
        del memory, there
        await asked
        assert before == 4096
        (found,) = pair.engine.decoded_images
        assert found.slots.ctypes.data == place
        assert np.array_equal(found.groups()[0].pixels.numpy(), body)

    Pair().run(work)


@pytest.mark.parametrize("kind", ["pixels", "file"])
def test_memory_is_free_when_the_engine_has_answered(kind: str) -> None:
    """Not before, also if the client goes away: the next request would be read into its images."""
    sent = drawn(1)[0] if kind == "pixels" else encoded(photo(1), "PNG")

    async def work(pair: Pair) -> None:
        await does(pair.worker).classify("a", images(sent))
        await until(lambda: pair.arena.lent_bytes == 0)
        pair.engine.delay = 60.0
        pair.engine.cancel = lambda request: None  # as if it were being computed
        asked = asyncio.ensure_future(does(pair.worker).classify("a", images(sent)))
        await until(lambda: len(pair.engine.decoded_images) == 2)
        asked.cancel()
        await asyncio.sleep(0.05)
        assert pair.arena.lent_bytes == 4096
        pair.engine.requests[-1].reply.set_result([])
        await until(lambda: pair.arena.lent_bytes == 0)

    Pair().run(work)


def test_a_request_has_its_place_in_the_queue_before_it_is_decoded() -> None:
    async def work(pair: Pair) -> None:
        pair.engine.failure = ServerOverloadedError("full", 2.0)
        with pytest.raises(ServerOverloadedError):
            await does(pair.worker).classify("a", images(*[encoded(photo(1), "PNG")] * 50))
        assert not pair.engine.decoded_images

    Pair().run(work)


def test_images_may_be_decoded_before_the_request_is_admitted() -> None:
    """A stream may have to be read from the disk first."""

    async def work(pair: Pair) -> None:
        admit, may_go_on = pair.engine.admit, asyncio.Event()

        async def slowly(*given: Any) -> Request:
            await may_go_on.wait()
            return await admit(*given)

        pair.engine.admit = slowly
        asked = asyncio.ensure_future(does(pair.worker).classify("a", images(encoded(photo(1), "PNG"))))
        await until(lambda: pair.arena.lent_bytes > 0)
        await asyncio.sleep(0.05)
        may_go_on.set()
        (answer,) = await asked
        assert answer.result.error is None

    Pair().run(work)


@pytest.mark.parametrize(
    "given",
    [
        {"offset": 2**20, "nbytes": 24, "sizes": [[2, 4]], "errors": {}},
        {"offset": -1, "nbytes": 24, "sizes": [[2, 4]], "errors": {}},
        {"offset": 0, "nbytes": 24, "sizes": [[2, 5]], "errors": {}},
        {"offset": 0, "nbytes": 10, "sizes": [[2, 4]], "errors": {}},
        {"offset": 0, "nbytes": 24, "sizes": [[2, 4], [2, 4]], "errors": {}},
        {"offset": 0, "nbytes": 24, "sizes": [None], "errors": {}},
        {"offset": 0, "nbytes": 24, "sizes": [[2, 4]], "errors": {"0": "no"}},
        {"offset": 0, "nbytes": 24, "sizes": 1, "errors": {}},
        {"nothing": 0},
    ],
    ids=str,
)
def test_a_worker_that_says_what_makes_no_sense_is_ended(given: dict[str, Any]) -> None:
    async def work(pair: Pair) -> None:
        asked = {"stream": "a", "keys": ["x"], "nbytes": 1, "timeout": None, "images": None}
        pair.worker.tell("classify", 7, **asked)
        await until(lambda: len(pair.engine.requests) == 1)
        await asyncio.sleep(0.01)
        pair.worker.tell("decoded", 7, **given)
        await until(lambda: pair.gone == 1)
        assert not pair.engine.decoded_images
        assert pair.engine.requests[0].reply.cancelled()

    Pair().run(work)


@pytest.mark.parametrize(
    "error",
    [
        ServerOverloadedError("too many", 1.5),
        DeadlineExceededError("too late"),
        NoSuchStreamError("none"),
        InvalidRequestError("no"),
        StoppingError("stopping"),
    ],
)
def test_errors_are_those_of_the_engine(error: ServerError) -> None:
    async def work(pair: Pair) -> None:
        pair.engine.failure = error
        with pytest.raises(type(error)) as caught:
            await does(pair.worker).classify("a", images(b"abc"))
        assert (caught.value.message, caught.value.retry_after) == (error.message, error.retry_after)

    Pair().run(work)


def test_a_defect_of_the_engine_is_an_error_of_one_request(caplog) -> None:
    async def work(pair: Pair) -> None:
        pair.engine.failure = KeyError("a defect")
        with pytest.raises(ServerError, match="could not be answered"):
            await does(pair.worker).classify("a", images(b"abc"))
        pair.engine.failure = None
        assert len(await does(pair.worker).classify("a", images(b"abc"))) == 1

    pair = Pair()
    pair.run(work)
    assert "a defect" in caplog.text
    assert not pair.engine.closed


def test_deadlines_and_callers_that_go_away() -> None:
    async def work(pair: Pair) -> None:
        pair.engine.delay = 60.0
        with pytest.raises(DeadlineExceededError):
            await does(pair.worker).classify("a", images(*drawn(1)), timeout=0.01)
        asked = asyncio.ensure_future(does(pair.worker).classify("a", images(*drawn(2))))
        await until(lambda: len(pair.engine.sent) == 2)
        asked.cancel()
        await until(lambda: pair.engine.cancelled == 1)
        await until(asked.done)
        del asked
        await until(lambda: pair.arena.lent_bytes == 0)  # without any help of the garbage collector

    Pair().run(work)


def test_streams_are_managed() -> None:
    async def work(pair: Pair) -> None:
        worker = pair.worker
        info, is_new = await does(worker).create_stream("a", ("x", "y"))
        assert (info.name, info.classes, is_new) == ("a", ("x", "y"), True)
        assert [one.name for one in await does(worker).streams(limit=5)] == ["a"]
        _, answer = await does(worker).classify("a", images(b"abc", *drawn(1)))
        counts = await does(worker).feedback("a", [(answer.id, "x"), ("none", "y")])
        assert counts == (await pair.engine.stream("a")).feedback
        assert (await does(worker).stream("a")).images == 2
        assert (await does(worker).activity("a")).class_mix == (await pair.engine.activity("a")).class_mix
        assert (await does(worker).snapshot("a")) == (await pair.engine.snapshot("a"))
        assert (await does(worker).reset("a")).images == 0
        assert (await does(worker).set_classes("a", ["u", "v"])).classes == ("u", "v")
        assert (await does(worker).statistics()) == (await pair.engine.statistics())
        await does(worker).delete("a")
        assert await does(worker).streams() == []

    Pair().run(work)


def test_readiness_is_believed_for_a_moment(monkeypatch) -> None:
    monkeypatch.setattr("ramen.serve.pipe._READY_FOR", 0.1)

    async def work(pair: Pair) -> None:
        assert await does(pair.worker).ready()
        pair.engine.is_ready = False
        assert await does(pair.worker).ready()
        await asyncio.sleep(0.15)
        assert not await does(pair.worker).ready()

    Pair().run(work)


def test_the_engine_is_asked_for_a_refusal_only_if_the_queue_is_filled() -> None:
    async def work(pair: Pair) -> None:
        pair.engine.early_failure = ServerOverloadedError("full", 2.0)
        assert await pair.worker.refusal("a", 1, 10) is None
        assert not pair.engine.asked_early
        pair.engine.waiting_now = (5, 0)
        await does(pair.worker).statistics()
        found = await pair.worker.refusal("a", 1, 10)
        assert isinstance(found, ServerOverloadedError)
        assert found.retry_after == 2.0
        assert pair.engine.asked_early == [("a", 1, 10)]
        pair.worker.count_refusal()
        await until(lambda: pair.engine.refused_early == 1)
        pair.engine.waiting_now = (4, 499)
        await does(pair.worker).statistics()
        assert await pair.worker.refusal("a", 1, 10) is None
        pair.engine.waiting_now = (0, 500)
        await does(pair.worker).statistics()
        assert await pair.worker.refusal("a", 1, 10) is not None

    Pair().run(work)


def test_figures_and_news_reach_the_engine() -> None:
    async def work(pair: Pair) -> None:
        own = RequestFigures()
        own.count("GET", "/a", 200, 0.1)
        assert await pair.worker.figures(own) == own
        pair.worker.tell("counted", own=own.to_json())
        pair.worker.tell("listening")
        await until(lambda: pair.listening == 1)
        assert pair.figures == [own, own]

    Pair().run(work)


def test_the_end() -> None:
    async def work(pair: Pair) -> None:
        pair.connection.stop()
        await until(lambda: pair.stops == 1)
        pair.engine.delay = 60.0
        asked = asyncio.ensure_future(does(pair.worker).classify("a", images(*drawn(1))))
        await until(lambda: len(pair.engine.sent) == 1)
        pair.serving.cancel()  # the engine's process has gone, say
        await until(lambda: pair.gone == 1)
        assert pair.engine.cancelled == 1
        with pytest.raises(AnswerLostError):
            await asked
        pair.serving = asyncio.create_task(asyncio.sleep(0))
        with pytest.raises(StoppingError):
            await does(pair.worker).ready()

    Pair().run(work)
