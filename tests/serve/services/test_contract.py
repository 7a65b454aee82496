"""What holds for every service, whether its engines are in this process or elsewhere."""

import asyncio
from typing import Any

import numpy as np
import pytest

from ramen import testing
from ramen.client.operations import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    NoSuchStreamError,
    ServerOverloadedError,
    StreamAnswer,
)
from ramen.serve.engine.state_folder import shard_of
from tests.helpers.calls import does
from tests.helpers.ray_machine import SETTINGS
from tests.helpers.sent_images import sent
from tests.serve.engine.engines import ask, engine
from tests.serve.services.conftest import Served

pytestmark = pytest.mark.xdist_group("ray")


def expected(*requests: list[int]) -> list[StreamAnswer]:
    """What an engine says to these requests, one after the other."""
    with engine(testing.small_classifier(), **SETTINGS) as where:
        return [one for seeds in requests for one in ask(where, "s", *seeds)]


def test_answers_are_those_of_an_engine_of_this_process(served: Served) -> None:
    requests = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    answers = [one for seeds in requests for one in served.do("classify", "same", sent(*seeds))]
    for one, other in zip(answers, expected(*requests), strict=True):
        assert one.result == other.result
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
    assert {one.stream for one in answers} == {"same"}
    assert served.backend.model.classes == testing.small_classifier().classes
    assert served.do("model") == served.backend.model
    assert served.do("ready")


def test_each_stream_has_one_place_which_its_name_decides(served: Served) -> None:
    names = [f"spread-{number}" for number in range(8)]
    assert {shard_of(name, served.engines) for name in names} == set(range(served.engines))
    for _ in range(2):
        for name in names:
            served.do("classify", name, sent(1))
    assert [info.images for info in served.do("streams", prefix="spread-")] == [2] * 8
    listed = served.do("streams", prefix="spread-", after="spread-2", limit=3)
    assert [info.name for info in listed] == names[3:6]
    for name in names:
        assert len(list(served.state.rglob(name))) == 1
        assert (served.folder(name) / "lock").exists()


def test_errors_arrive_as_they_are(served: Served) -> None:
    with pytest.raises(NoSuchStreamError, match="there is no stream 'nobody'"):
        served.do("stream", "nobody")
    with pytest.raises(InvalidRequestError, match="1 to 4 images, got 5"):
        served.do("classify", "errors", sent(1, 2, 3, 4, 5))
    with pytest.raises(InvalidRequestError, match="a stream's name"):
        served.do("classify", "../errors", sent(1))
    with pytest.raises(DeadlineExceededError):
        served.do("classify", "late", sent(1), timeout=0.0)
    served.do("create_stream", "errors", ["cat", "dog"])
    with pytest.raises(ConflictError, match="other classes"):
        served.do("create_stream", "errors", ["cat", "bird"])
    assert served.do("stream", "errors").images == 0


def test_more_than_may_wait_is_refused(served: Served) -> None:
    async def flood() -> list[Any]:
        requests = [does(served.backend).classify("flood", sent(1, 2, 3, 4)) for _ in range(60)]
        return await asyncio.gather(*requests, return_exceptions=True)

    outcomes = served.run(flood())
    refused = [one for one in outcomes if isinstance(one, Exception)]
    assert all(isinstance(one, ServerOverloadedError) and one.retry_after > 0 for one in refused)
    assert served.do("stream", "flood").images == 4 * (len(outcomes) - len(refused))
    assert served.do("statistics").overloaded == len(refused) > 0


def test_a_caller_that_goes_away_takes_its_waiting_images_along(served: Served) -> None:
    async def leave() -> None:
        does_it = does(served.backend)
        await does_it.classify("gone", sent(0))  # which opens it
        requests = [asyncio.ensure_future(does_it.classify("gone", sent(1, 2))) for _ in range(30)]
        await requests[0]
        for one in requests:
            one.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        async with asyncio.timeout(None):
            while (await does_it.statistics()).waiting_images:
                await asyncio.sleep(0.01)

    before = served.do("statistics").cancelled
    served.run(leave())
    assert served.do("statistics").cancelled > before
    assert served.do("stream", "gone").images < 61


def test_streams_are_managed_where_they_are(served: Served) -> None:
    info, is_new = served.do("create_stream", "managed", ["cat", "dog"])
    assert is_new
    assert info.classes == ("cat", "dog")
    (answer,) = served.do("classify", "managed", sent(1))
    assert answer.result.label in ("cat", "dog")
    counts = served.do("feedback", "managed", [(answer.id, answer.result.label), ("unknown-1", "cat")])
    assert (counts.labels, counts.correct, counts.unknown) == (1, 1, 1)
    assert served.do("activity", "managed").class_mix == ((answer.result.label, 1),)
    assert served.do("snapshot", "managed").images == 1
    assert served.do("set_classes", "managed", ["bird", "fish", "cat"]).images == 0
    served.do("classify", "managed", sent(1))
    assert served.do("reset", "managed").images == 0
    served.do("delete", "managed")
    assert not served.folder("managed").exists()
    assert served.do("streams", prefix="managed") == []
    with pytest.raises(NoSuchStreamError):
        served.do("stream", "managed")


def test_statistics_are_those_of_all_engines(served: Served) -> None:
    before = served.do("statistics")
    for number in range(6):
        served.do("classify", f"counted-{number}", sent(number))
    after = served.do("statistics")
    assert after.images - before.images == 6
    assert after.requests - before.requests == 6
    assert after.streams - before.streams == 6
    assert after.queue_images == served.engines * SETTINGS["max_queue_images"]
    assert after.latency_ms["p99"] > 0
