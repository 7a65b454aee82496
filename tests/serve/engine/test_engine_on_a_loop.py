"""The engine behind an event loop: answers, deadlines, callers that go away."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import ramen
from ramen import testing
from ramen.client.operations import (
    DeadlineExceededError,
    InvalidRequestError,
    StoppingError,
)
from ramen.serve.engine.engine import Engine
from ramen.serve.http.service import Backend
from tests.helpers.calls import does
from tests.helpers.leftovers import left_running
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PATIENCE, loop_engine


@pytest.fixture(scope="module")
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()


def run(work: Callable[[Engine], Coroutine[Any, Any, None]], made: Engine) -> None:
    async def all_of_it() -> None:
        try:
            await work(made)
        finally:
            await made.close()

    asyncio.run(all_of_it())


def test_it_has_all_that_a_backend_has() -> None:
    for name in vars(Backend):
        if not name.startswith("_") and callable(getattr(Backend, name)):
            own = inspect.signature(getattr(Engine, name)).parameters
            assert list(own) == list(inspect.signature(getattr(Backend, name)).parameters)


def test_answers_of_many_callers(clf) -> None:
    async def work(where: Engine) -> None:
        assert await does(where).ready()
        answers = await asyncio.gather(
            *(does(where).classify("ab"[n % 2], sent(n, n + 100)) for n in range(20))
        )
        assert [[a.result.key for a in pair] for pair in answers] == [
            [str(n), str(n + 100)] for n in range(20)
        ]
        assert {a.stream for pair in answers[::2] for a in pair} == {"a"}
        assert (await does(where).statistics()).images == 40
        with pytest.raises(InvalidRequestError):
            await does(where).classify("a", [])
        with pytest.raises(InvalidRequestError):
            await does(where).classify("/", sent(1))

    run(work, loop_engine(clf))


def test_what_still_waits_when_time_is_up_is_dropped(clf) -> None:
    async def work(where: Engine) -> None:
        await does(where).create_stream("a")
        async with where._scheduler.held(where._streams.known("a")):  # nobody is answered meanwhile
            with pytest.raises(DeadlineExceededError):
                await does(where).classify("a", sent(1), timeout=0.02)
        assert len(await does(where).classify("a", sent(2), timeout=PATIENCE)) == 1
        assert (await does(where).stream("a")).images == 1
        assert (await does(where).statistics()).expired == 1

    run(work, loop_engine(clf))


def test_what_is_being_answered_when_time_is_up_is_answered(clf) -> None:
    computing, go_on = threading.Event(), threading.Event()

    async def work(where: Engine) -> None:
        await does(where).create_stream("a")
        begin = where._computing._begin

        def slowly(parts) -> float:
            computing.set()
            go_on.wait(PATIENCE)
            return begin(parts)

        where._computing._begin = slowly
        asking = asyncio.ensure_future(does(where).classify("a", sent(1), timeout=0.2))
        await asyncio.to_thread(computing.wait, PATIENCE)
        await asyncio.sleep(0.4)
        assert not asking.done()
        go_on.set()
        assert (await asking)[0].result.error is None

    run(work, loop_engine(clf))


@pytest.mark.parametrize("stream", ["a", "new"])
def test_images_of_a_caller_that_goes_away_are_dropped(clf, stream: str) -> None:
    async def work(where: Engine) -> None:
        await does(where).create_stream("a")
        async with where._scheduler.held(where._streams.for_images(stream)):
            asking = asyncio.ensure_future(does(where).classify(stream, sent(1)))
            while not (await does(where).statistics()).waiting_images:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert (await does(where).statistics()).waiting_images == 0
        await does(where).classify(stream, sent(2))
        assert (await does(where).stream(stream)).images == 1
        assert (await does(where).statistics()).cancelled == 1

    run(work, loop_engine(clf))


def test_what_an_owner_asks_for_is_done_though_nobody_waits_for_it(clf) -> None:
    async def work(where: Engine) -> None:
        await does(where).classify("a", sent(1))
        resetting = asyncio.ensure_future(does(where).reset("a"))
        await asyncio.sleep(0)
        resetting.cancel()
        await does(where).classify("a", sent(2))
        assert (await does(where).stream("a")).images == 1

    run(work, loop_engine(clf))


def test_close(clf) -> None:
    async def work(where: Engine) -> None:
        asking = asyncio.ensure_future(does(where).classify("a", sent(1)))
        while not (await does(where).statistics()).waiting_images:
            await asyncio.sleep(0.01)
        await where.close()
        assert len(await asking) == 1
        assert not await does(where).ready()
        with pytest.raises(StoppingError):
            await does(where).classify("a", sent(1))

    run(work, loop_engine(clf, max_delay_ms=200.0))
    assert not left_running()
