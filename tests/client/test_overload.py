"""A client at a service that is asked for more than it takes, and one that is stopped."""

import threading

import pytest

import ramen
from ramen import testing
from ramen.client import operations as errors
from ramen.serve.engine.engine import Engine
from ramen.serve.http.app import create_app
from ramen.serve.settings import EngineSettings
from tests.helpers.photos import encoded, photo
from tests.helpers.running_server import running
from tests.serve.engine.engines import on_its_loop


@pytest.fixture
def engine():
    settings = EngineSettings(max_batch=2, max_queue_images=4, max_delay_ms=0)
    return Engine(testing.small_classifier(), settings)


@pytest.fixture
def url(engine):
    with running(create_app(engine)) as server:
        yield server.url


def test_every_image_is_learned_once_however_often_it_is_refused(engine, url):
    """Six clients want many times as much as may wait."""
    images = [encoded(photo(number)) for number in range(10)]
    answers: dict[int, list[object]] = {}

    def send(number: int) -> None:
        with ramen.Client(url, stream="shared", retries=10_000, retry_seconds=300, in_flight=4) as client:
            answers[number] = list(client.classify_many(images))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(answers) == list(range(6))
    assert all(answer.error is None for found in answers.values() for answer in found)
    assert len({answer.id for found in answers.values() for answer in found}) == 60
    assert on_its_loop(engine, errors.GetStream("shared")).images == 60
    assert on_its_loop(engine, errors.GetStatistics()).overloaded > 0


def test_a_client_that_may_not_wait_gets_the_reason(engine, url):
    with (
        ramen.Client(url, retries=0, in_flight=8) as client,
        pytest.raises(errors.ServerOverloadedError) as caught,
    ):
        list(client.classify_many([encoded(photo(1))] * 200))
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    assert caught.value.retry_after > 0
    assert caught.value.nothing_done


def test_images_that_wait_too_long_are_not_learned(engine, url):
    image = encoded(photo(1))
    with ramen.Client(url, stream="slow", timeout=0.2) as client:
        client.create_stream()
        slow = engine._streams.known("slow")
        assert engine._scheduler.try_hold(slow)
        with pytest.raises(errors.DeadlineExceededError) as caught:
            client.classify(image)
        assert caught.value.code == "deadline"
        engine._loop.call_soon_threadsafe(engine._scheduler.release, slow)
    assert on_its_loop(engine, errors.GetStream("slow")).images == 0
