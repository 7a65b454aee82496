"""A front and an engine on a pair of sockets, in one process: what is asked is what is answered."""

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable
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
from ramen.serve.fronts.front_connection import FrontConnection
from ramen.serve.fronts.remote_backend import RemoteBackend
from ramen.serve.http.backend import Backend
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.shared_memory import Lender, SharedRegion
from tests.fakes.backends import FakeBackend
from tests.helpers.calls import does

QUEUE = 10, 1000
PATIENCE = 15


class Pair:
    """Both ends.

    Attributes:
        backend: What the engine answers with.
        front: What the HTTP application of the front asks.
    """

    def __init__(self) -> None:
        self.backend: Any = FakeBackend()
        self.lender = Lender(SharedRegion(2**20))
        self.front = RemoteBackend(self.backend.model, self.lender, QUEUE)
        self.figures: list[RequestFigures] = []
        self.listening = self.stops = self.gone = 0

    def run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        asyncio.run(asyncio.wait_for(self._run(work), PATIENCE))

    async def _run(self, work: Callable[["Pair"], Awaitable[None]]) -> None:
        ours, theirs = socket.socketpair()
        self.connection = FrontConnection(self.backend, self.lender.region, self._count, self._listen)
        self.serving = asyncio.create_task(self.connection.serve(ours))
        await self.front.connect(theirs, self._stop, self._lose)
        await work(self)
        self.backend.sent.clear()
        await self.front.close()
        await self.serving  # all memory is free then

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
            assert inspect.signature(getattr(RemoteBackend, name)) == inspect.signature(function)


def images(*data: bytes | np.ndarray) -> list[SentImage]:
    return [SentImage(f"image {number} \ud800é", one) for number, one in enumerate(data)]


def test_answers_are_those_of_the_engine() -> None:
    """Files, an empty one, pixels; the first of a stream and others; several at once."""

    async def work(pair: Pair) -> None:
        alone = FakeBackend()
        pixels = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
        requests = [images(b"abc"), images(b"x" * 5000, b"", pixels, b"bad"), images(pixels, pixels + 1)]
        for request in requests:
            expected = await does(alone).classify("a", request)
            found = await does(pair.front).classify("a", request, timeout=5.0)
            assert [one.result for one in found] == [one.result for one in expected]
            for one, other in zip(found, expected, strict=True):
                assert replace(one, probabilities=None) == replace(other, probabilities=None)
                assert np.array_equal(one.probabilities, other.probabilities)
        many = await asyncio.gather(
            *(does(pair.front).classify(f"s{n}", images(b"%d" % n)) for n in range(50))
        )
        assert [found[0].stream for found in many] == [f"s{n}" for n in range(50)]
        sent = [image.data for _, request in pair.backend.sent for image in request]
        assert all(isinstance(data, np.ndarray) for data in sent)
        assert [data.tobytes() for data in sent[:2]] == [b"abc", b"x" * 5000]
        assert sent[3].shape == pixels.shape

    pair = Pair()
    pair.run(work)


def test_pixels_in_lent_memory_are_not_copied() -> None:
    async def work(pair: Pair) -> None:
        memory = pair.front.memory_for(5 * 24)
        assert memory is not None
        body = np.frombuffer(memory, np.uint8).reshape(5, 2, 4, 3)
        body[:] = np.arange(5 * 24, dtype=np.uint8).reshape(body.shape)
        before = pair.lender.lent_bytes
        asked = asyncio.ensure_future(does(pair.front).classify("a", images(*body)))
        place, expected = body.ctypes.data, body.copy()
        del memory, body
        await asked
        assert before == 4096
        (_, request) = pair.backend.sent[0]
        assert request[0].data.ctypes.data == place
        assert np.array_equal(np.stack([image.data for image in request]), expected)

    Pair().run(work)


def test_memory_is_free_when_the_engine_has_done_with_it() -> None:
    """Not before: the next request would be read into images that are still being decoded."""

    async def work(pair: Pair) -> None:
        await does(pair.front).classify("a", images(b"abc", b"defg"))
        assert pair.lender.lent_bytes == 4096  # the engine's backend has the images
        kept = pair.backend.sent.pop()[1][1].data
        await asyncio.sleep(0.05)
        assert kept.tobytes() == b"defg"
        assert pair.lender.lent_bytes == 4096
        del kept
        await until(lambda: pair.lender.lent_bytes == 0)

    Pair().run(work)


def test_without_memory_requests_are_refused() -> None:
    async def work(pair: Pair) -> None:
        whole = pair.front.memory_for(2**20)
        assert whole is not None
        assert pair.front.memory_for(1) is None
        with pytest.raises(ServerOverloadedError, match="too many bytes"):
            await does(pair.front).classify("a", images(b"abc"))
        del whole
        assert len(await does(pair.front).classify("a", images(b"abc"))) == 1

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
        pair.backend.failure = error
        with pytest.raises(type(error), match=error.message) as caught:
            await does(pair.front).classify("a", images(b"abc"))
        assert getattr(caught.value, "retry_after", None) == getattr(error, "retry_after", None)

    Pair().run(work)


def test_a_defect_of_the_engine_is_an_error_of_one_request(caplog) -> None:
    async def work(pair: Pair) -> None:
        pair.backend.failure = KeyError("a defect")
        with pytest.raises(ServerError, match="could not be answered"):
            await does(pair.front).classify("a", images(b"abc"))
        pair.backend.failure = None
        with pytest.raises(ServerError, match="could not be answered"):
            await pair.front._ask("close")
        assert len(await does(pair.front).classify("a", images(b"abc"))) == 1

    pair = Pair()
    pair.run(work)
    assert "a defect" in caplog.text
    assert "operation must be one of" in caplog.text
    assert not pair.backend.closed


def test_deadlines_and_callers_that_go_away() -> None:
    async def work(pair: Pair) -> None:
        pair.backend.delay = 60.0
        with pytest.raises(DeadlineExceededError):
            await does(pair.front).classify("a", images(b"abc"), timeout=0.01)
        asked = asyncio.ensure_future(does(pair.front).classify("a", images(b"abc")))
        await until(lambda: len(pair.backend.sent) == 2)
        asked.cancel()
        await until(lambda: pair.backend.cancelled == 1)
        pair.backend.sent.clear()
        await until(asked.done)
        del asked
        await until(lambda: pair.lender.lent_bytes == 0)  # without any help of the garbage collector

    Pair().run(work)


def test_streams_are_managed() -> None:
    async def work(pair: Pair) -> None:
        front = pair.front
        info, is_new = await does(front).create_stream("a", ("x", "y"))
        assert (info.name, info.classes, is_new) == ("a", ("x", "y"), True)
        assert [one.name for one in await does(front).streams(limit=5)] == ["a"]
        (answer,) = await does(front).classify("a", images(b"abc"))
        counts = await does(front).feedback("a", [(answer.id, "x"), ("none", "y")])
        assert counts == (await pair.backend.stream("a")).feedback
        assert (await does(front).stream("a")).images == 1
        assert (await does(front).activity("a")).class_mix == (await pair.backend.activity("a")).class_mix
        assert (await does(front).snapshot("a")) == (await pair.backend.snapshot("a"))
        assert (await does(front).reset("a")).images == 0
        assert (await does(front).set_classes("a", ["u", "v"])).classes == ("u", "v")
        assert (await does(front).statistics()) == (await pair.backend.statistics())
        await does(front).delete("a")
        assert await does(front).streams() == []

    Pair().run(work)


def test_readiness_is_believed_for_a_moment(monkeypatch) -> None:
    monkeypatch.setattr("ramen.serve.fronts.remote_backend._READY_FOR", 0.1)

    async def work(pair: Pair) -> None:
        assert await does(pair.front).ready()
        pair.backend.is_ready = False
        assert await does(pair.front).ready()
        await asyncio.sleep(0.15)
        assert not await does(pair.front).ready()

    Pair().run(work)


def test_the_engine_is_asked_for_a_refusal_only_if_the_queue_is_filled() -> None:
    async def work(pair: Pair) -> None:
        pair.backend.early_failure = ServerOverloadedError("full", 2.0)
        assert await pair.front.refusal("a", 1, 10) is None
        assert not pair.backend.asked_early
        pair.backend.waiting_now = (5, 0)
        await does(pair.front).statistics()
        found = await pair.front.refusal("a", 1, 10)
        assert isinstance(found, ServerOverloadedError)
        assert found.retry_after == 2.0
        assert pair.backend.asked_early == [("a", 1, 10)]
        pair.front.count_refusal()
        await until(lambda: pair.backend.refused_early == 1)
        pair.backend.waiting_now = (4, 499)
        await does(pair.front).statistics()
        assert await pair.front.refusal("a", 1, 10) is None
        pair.backend.waiting_now = (0, 500)
        await does(pair.front).statistics()
        assert await pair.front.refusal("a", 1, 10) is not None

    Pair().run(work)


def test_figures_and_news_reach_the_engine() -> None:
    async def work(pair: Pair) -> None:
        own = RequestFigures()
        own.count("GET", "/a", 200, 0.1)
        assert await pair.front.figures(own) == own
        pair.front.tell("counted", own=own.to_json())
        pair.front.tell("listening")
        await until(lambda: pair.listening == 1)
        assert pair.figures == [own, own]

    Pair().run(work)


def test_the_end() -> None:
    async def work(pair: Pair) -> None:
        pair.connection.stop()
        await until(lambda: pair.stops == 1)
        pair.backend.delay = 60.0
        asked = asyncio.ensure_future(does(pair.front).classify("a", images(b"abc")))
        await until(lambda: len(pair.backend.sent) == 1)
        pair.serving.cancel()  # the engine's process has gone, say
        await until(lambda: pair.gone == 1)
        assert pair.backend.cancelled == 1
        with pytest.raises(AnswerLostError):
            await asked
        pair.serving = asyncio.create_task(asyncio.sleep(0))
        with pytest.raises(StoppingError):
            await does(pair.front).ready()

    Pair().run(work)
