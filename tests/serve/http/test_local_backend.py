"""The engine behind an event loop: answers, deadlines, callers that go away."""

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest

import ramen
from ramen import testing
from ramen.serve.engine.computing import BegunBatch
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.errors import BadRequestError, DeadlineError, StoppingError, UnknownStreamError
from ramen.serve.http.backend import Backend
from ramen.serve.http.local_backend import LocalBackend
from tests.helpers.leftovers import left_running
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import PATIENCE, engine


@pytest.fixture(scope="module")
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()


@pytest.fixture
def where(clf) -> Iterator[Engine]:
    with engine(clf) as made:
        yield made


def test_it_has_all_that_a_backend_has() -> None:
    for name, function in inspect.getmembers(Backend, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(LocalBackend, name)) == inspect.signature(function)


def test_answers_of_many_callers(where: Engine) -> None:
    async def run() -> None:
        backend = LocalBackend(where)
        assert backend.model is where.model
        assert await backend.ready()
        answers = await asyncio.gather(*(backend.classify("ab"[n % 2], sent(n, n + 100)) for n in range(20)))
        assert [[a.result.key for a in pair] for pair in answers] == [
            [str(n), str(n + 100)] for n in range(20)
        ]
        assert {a.stream for pair in answers[::2] for a in pair} == {"a"}
        assert (await backend.statistics()).images == 40
        with pytest.raises(BadRequestError):
            await backend.classify("a", [])
        with pytest.raises(BadRequestError):
            await backend.classify("/", sent(1))

    asyncio.run(run())


def test_streams_are_managed(where: Engine) -> None:
    async def run() -> None:
        backend = LocalBackend(where)
        info, is_new = await backend.create_stream("a", ["cat", "dog"])
        assert is_new
        assert info.classes == ("cat", "dog")
        (answer,) = await backend.classify("a", sent(1))
        assert (await backend.feedback("a", [(answer.id, answer.result.label)])).correct == 1
        assert (await backend.activity("a")).class_mix == ((answer.result.label, 1),)
        assert (await backend.snapshot("a")).images == 1
        assert [one.name for one in await backend.streams(limit=1)] == ["a"]
        assert (await backend.reset("a")).images == 0
        assert (await backend.set_classes("a", ["fox", "owl"])).classes == ("fox", "owl")
        assert (await backend.stream("a")).classes == ("fox", "owl")
        await backend.delete("a")
        with pytest.raises(UnknownStreamError):
            await backend.stream("a")

    asyncio.run(run())


def test_what_still_waits_when_time_is_up_is_dropped(clf) -> None:
    async def run() -> None:
        backend = LocalBackend(where)
        busy = where._room.held(where._table.find("a"))  # nobody is answered meanwhile
        with busy, pytest.raises(DeadlineError):
            await backend.classify("a", sent(1), timeout=0.02)
        assert len(await backend.classify("a", sent(2), timeout=PATIENCE)) == 1
        assert (await backend.stream("a")).images == 1
        assert (await backend.statistics()).expired == 1

    with engine(clf) as where:
        where.create_stream("a")
        asyncio.run(run())


def test_what_is_being_answered_when_time_is_up_is_answered(clf, monkeypatch) -> None:
    computing, go_on = threading.Event(), threading.Event()

    async def run() -> None:
        backend = LocalBackend(where)
        asking = asyncio.ensure_future(backend.classify("a", sent(1), timeout=0.2))
        await asyncio.to_thread(computing.wait, PATIENCE)
        await asyncio.sleep(0.4)
        assert not asking.done()
        go_on.set()
        assert (await asking)[0].result.error is None

    with engine(clf) as where:
        where.create_stream("a")
        begin = where._computing.begin

        def slowly(*args) -> BegunBatch:
            computing.set()
            go_on.wait(PATIENCE)
            return begin(*args)

        monkeypatch.setattr(where._computing, "begin", slowly)
        asyncio.run(run())


@pytest.mark.parametrize("stream", ["a", "new"])
def test_images_of_a_caller_that_goes_away_are_dropped(clf, stream: str) -> None:
    async def run() -> None:
        backend = LocalBackend(where)
        with where._room.held(where._table.find_or_add(stream)[0]):
            asking = asyncio.ensure_future(backend.classify(stream, sent(1)))
            while not where.statistics().waiting_images:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        while where.statistics().waiting_images:
            await asyncio.sleep(0.01)
        await backend.classify(stream, sent(2))
        assert (await backend.stream(stream)).images == 1
        assert (await backend.statistics()).cancelled == 1

    with engine(clf) as where:
        where.create_stream("a")
        asyncio.run(run())


def test_close(clf) -> None:
    async def run() -> None:
        backend = LocalBackend(engine(clf, max_delay_ms=200.0))
        asking = asyncio.ensure_future(backend.classify("a", sent(1)))
        while not (await backend.statistics()).waiting_images:
            await asyncio.sleep(0.01)
        await backend.close()
        assert len(await asking) == 1
        assert not await backend.ready()
        with pytest.raises(StoppingError):
            await backend.classify("a", sent(1))

    asyncio.run(run())
    assert not left_running()
