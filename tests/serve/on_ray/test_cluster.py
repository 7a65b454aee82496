"""The service on a Ray of two replicas on CPUs."""

import asyncio
import base64
import io
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from PIL import Image
from ray import serve

from ramen import testing
from ramen.client.operations import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    NoSuchStreamError,
    ServerOverloadedError,
    StreamAnswer,
)
from ramen.data.drawings.shapes import OBJECTS
from ramen.serve.http.auth import create_token
from ramen.serve.on_ray.app import RayServeArguments, build
from ramen.serve.on_ray.backend import RayBackend
from ramen.serve.on_ray.router import preference
from tests.helpers.ray_machine import SETTINGS
from tests.helpers.sent_images import pixels, sent
from tests.serve.engine.engines import PATIENCE, ask, engine

pytestmark = pytest.mark.xdist_group("ray")
T = TypeVar("T")


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture(scope="module")
def backend(replicas: Any, loop: asyncio.AbstractEventLoop) -> RayBackend:
    return loop.run_until_complete(RayBackend.connect(replicas))


@pytest.fixture
def run(loop: asyncio.AbstractEventLoop) -> Callable[[Awaitable[T]], T]:
    return lambda work: loop.run_until_complete(asyncio.wait_for(work, PATIENCE))


def expected(*requests: list[int], **settings: Any) -> list[StreamAnswer]:
    """What an engine of this process answers to these requests, one after the other."""
    with engine(testing.small_classifier(), **{**SETTINGS, **settings}) as where:
        return [one for seeds in requests for one in ask(where, "s", *seeds)]


def assert_same(answers: list[StreamAnswer], oracle: list[StreamAnswer]) -> None:
    assert [one.result for one in answers] == [one.result for one in oracle]
    for one, other in zip(answers, oracle, strict=True):
        np.testing.assert_array_equal(one.probabilities, other.probabilities)


def test_answers_are_those_of_an_engine_of_this_process(backend, run):
    requests = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    answers = [one for seeds in requests for one in run(backend.classify("same", sent(*seeds)))]
    assert_same(answers, expected(*requests))
    assert {one.stream for one in answers} == {"same"}
    assert backend.model.classes == testing.small_classifier().classes


def test_streams_are_spread_and_each_has_one_place(backend, run):
    names = [f"spread-{number}" for number in range(8)]
    for _ in range(2):
        for name in names:
            run(backend.classify(name, sent(1)))
    reports = run(backend._everyone("streams", "", 100, "spread-"))
    held = [{info.name for info in report if info.resident} for report in reports]
    assert len(held) == 2
    assert all(held)
    assert held[0] | held[1] == set(names)
    assert not held[0] & held[1]
    assert [info.images for info in run(backend.streams(prefix="spread-"))] == [2] * 8
    assert [info.name for info in run(backend.streams(after="spread-2", limit=3))] == names[3:6]


def test_a_stream_that_another_router_sent_elsewhere_has_one_state(replicas, backend, run):
    """A router that knows other replicas asks the wrong one: never two states, never a wrong answer."""
    first = run(backend.classify("moving", sent(1, 2)))
    by_name = dict(run(backend._everyone("statistics")))
    wrong = min(by_name, key=lambda name: preference("moving", name))
    other = RayBackend(replicas, backend.model)
    other._places["moving"] = wrong, time.monotonic() + PATIENCE
    second = run(other.classify("moving", sent(3)))  # the holder has just got it, and keeps it
    third = run(backend.classify("moving", sent(4)))
    assert_same([*first, *second, *third], expected([1, 2], [3], [4]))


def test_a_stream_moves_when_its_replica_is_asked_to_leave_it(replicas, backend, run):
    first = run(backend.classify("leaving", sent(1, 2)))
    run(backend._everyone("forget", "leaving"))  # as when another replica should have it
    by_name = dict(run(backend._everyone("statistics")))
    wrong = min(by_name, key=lambda name: preference("leaving", name))
    backend._places["leaving"] = wrong, time.monotonic() + PATIENCE
    second = run(backend.classify("leaving", sent(3)))
    (holder,) = [
        one.images
        for report in run(backend._everyone("streams", "", 10, "leaving"))
        for one in report
        if one.resident
    ]
    assert holder == 3
    assert_same([*first, *second], expected([1, 2], [3]))


def test_errors_of_replicas_arrive_as_they_are(backend, run):
    with pytest.raises(NoSuchStreamError, match="there is no stream 'nobody'"):
        run(backend.stream("nobody"))
    with pytest.raises(InvalidRequestError, match="1 to 4 images, got 5"):
        run(backend.classify("errors", sent(1, 2, 3, 4, 5)))
    with pytest.raises(InvalidRequestError, match="a stream's name"):
        run(backend.classify("../errors", sent(1)))
    with pytest.raises(DeadlineExceededError, match="nothing was learned"):
        run(backend.classify("errors", sent(1), timeout=0.0))
    run(backend.create_stream("errors", ["cat", "dog"]))
    with pytest.raises(ConflictError, match="other classes"):
        run(backend.create_stream("errors", ["cat", "bird"]))
    assert run(backend.stream("errors")).images == 0


def test_more_than_may_wait_is_refused(backend, run):
    async def flood() -> list[Any]:
        requests = [backend.classify("flood", sent(1, 2, 3, 4)) for _ in range(60)]
        return await asyncio.gather(*requests, return_exceptions=True)

    outcomes = run(flood())
    refused = [one for one in outcomes if isinstance(one, Exception)]
    assert all(isinstance(one, ServerOverloadedError) and one.retry_after > 0 for one in refused)
    assert run(backend.stream("flood")).images == 4 * (len(outcomes) - len(refused))
    assert run(backend.statistics()).overloaded == len(refused) > 0


def test_a_caller_that_goes_away_takes_its_waiting_images_along(backend, run):
    async def leave() -> None:
        await backend.classify("gone", sent(0))  # which opens it
        requests = [asyncio.ensure_future(backend.classify("gone", sent(1, 2))) for _ in range(30)]
        await requests[0]
        for one in requests:
            one.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    before = run(backend.statistics()).cancelled
    run(leave())
    assert run(backend.statistics()).cancelled > before
    assert run(backend.stream("gone")).images < 61


def test_streams_are_managed_where_they_are(backend, run, state):
    info, is_new = run(backend.create_stream("managed", ["cat", "dog"]))
    assert is_new
    assert info.classes == ("cat", "dog")
    (answer,) = run(backend.classify("managed", sent(1)))
    assert answer.result.label in ("cat", "dog")
    counts = run(backend.feedback("managed", [(answer.id, answer.result.label), ("unknown-1", "cat")]))
    assert (counts.labels, counts.correct, counts.unknown) == (1, 1, 1)
    assert run(backend.activity("managed")).class_mix == ((answer.result.label, 1),)
    assert run(backend.snapshot("managed")).images == 1
    assert run(backend.set_classes("managed", ["bird", "fish", "cat"])).images == 0
    run(backend.classify("managed", sent(1)))
    assert run(backend.reset("managed")).images == 0
    run(backend.delete("managed"))
    assert not (state / "streams" / "managed").exists()
    assert run(backend.streams(prefix="managed")) == []
    with pytest.raises(NoSuchStreamError):
        run(backend.stream("managed"))


def test_statistics_are_those_of_all_replicas(backend, run):
    before = run(backend.statistics())
    for number in range(6):
        run(backend.classify(f"counted-{number}", sent(number)))
    after = run(backend.statistics())
    assert after.images - before.images == 6
    assert after.requests - before.requests == 6
    assert after.queue_images == 2 * SETTINGS["max_queue_images"]
    assert after.latency_ms["p99"] > 0
    assert run(backend.ready())


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, "PNG")
    return file.getvalue()


def test_the_http_api_is_served_by_rays_proxy(proxy_port, backend, run):
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy_port}", timeout=PATIENCE) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        assert client.get("/v1/model").json()["name"] == "small"
        body = {"images": [{"key": str(n), "data": base64.b64encode(png(n)).decode()} for n in (1, 2)]}
        reply = client.post("/v1/streams/web/classify", json=body, params={"probabilities": "all"})
        assert reply.status_code == 200
        oracle = expected([1, 2])
        for said, one in zip(reply.json()["answers"], oracle, strict=True):
            assert (said["label"], said["state_version"]) == (one.result.label, one.result.state_version)
            assert list(said["probabilities"].values()) == pytest.approx(list(one.probabilities))
        third = run(backend.classify("web", sent(3)))  # through another router
        assert_same(third, expected([1, 2], [3])[2:])
        assert client.get("/v1/streams/web").json()["images"] == 3
        assert client.get("/v1/streams/nobody").status_code == 404
        assert client.post("/v1/streams/web/classify", content=b"x").status_code == 415
        assert "ramen_" in client.get("/metrics").text
        with client.stream("GET", "/v1/events") as events:
            lines = events.iter_lines()
            assert json.loads(next(line for line in lines if line.startswith("data:"))[5:])["images"] > 0


def test_a_config_files_application_serves_the_tiny_model_to_those_with_a_token(proxy_port, tmp_path):
    tokens = tmp_path / "tokens.json"
    token = create_token(tokens, "camera", ["classify"], ["camera-*"])
    arguments = RayServeArguments(
        tokens=tokens,
        engine={"state": str(tmp_path / "state"), "max_batch": 4},
        scaling={"replicas": 1, "cpus_per_replica": 0.5},
    )
    serve.run(build(arguments), name="tiny", route_prefix="/tiny")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{proxy_port}/tiny", timeout=PATIENCE) as client:
            path, sending = "/v1/streams/camera-1/classify", {"Content-Type": "image/png"}
            assert client.post(path, content=png(1), headers=sending).status_code == 401
            sending["Authorization"] = f"Bearer {token}"
            reply = client.post(path, content=png(1), headers=sending)
            assert reply.status_code == 200
            assert reply.json()["answers"][0]["label"] in OBJECTS
            other = client.post("/v1/streams/other/classify", content=png(1), headers=sending)
            assert other.status_code == 403
            assert client.get("/v1/statistics", headers=sending).status_code == 403
    finally:
        serve.delete("tiny")
