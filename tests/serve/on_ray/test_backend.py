"""What the backend makes of what replicas, and Ray, say; without Ray's processes."""

import asyncio
import dataclasses

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from ramen.client import operations as errors
from ramen.serve.on_ray.backend import RayBackend
from tests.fakes.backends import MODEL
from tests.fakes.engine_reports import STATISTICS, stream_info
from tests.fakes.ray_handles import NEVER, FakeHandle, returned
from tests.helpers.sent_images import sent

PATIENCE = 20.0  # seconds; only a failure takes so long


def classify(handle: FakeHandle, timeout: float = PATIENCE):
    return asyncio.run(RayBackend(handle, MODEL).classify("a", sent(1), timeout=timeout))


@pytest.mark.parametrize(
    "error",
    [
        errors.ServerOverloadedError("full", 3.5),
        errors.DeadlineExceededError("late"),
        errors.NoSuchStreamError("none"),
        errors.InvalidRequestError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_engine_is_raised_as_it_is(error):
    with pytest.raises(type(error)) as caught:
        classify(FakeHandle([returned(error)]))
    assert caught.value is error


@pytest.mark.parametrize(
    "error", [ActorDiedError(), ActorUnavailableError("gone", None)], ids=lambda error: type(error).__name__
)
def test_a_request_whose_replica_ended_is_not_sent_again(error):
    handle = FakeHandle([error, "never asked for"])
    with pytest.raises(errors.AnswerLostError, match="may have been carried out, or not"):
        classify(handle)
    assert len(handle.sent) == 1


def test_a_request_that_was_not_sent_is_sent_to_another_replica():
    handle = FakeHandle([ReplicaUnavailableError("r1"), ["answer"]])
    assert classify(handle) == ["answer"]
    assert len(handle.sent) == 2


def test_a_stopping_replica_is_left_for_another_one():
    handle = FakeHandle([returned(errors.StoppingError("stopping")), ["answer"]])
    assert classify(handle) == ["answer"]


def test_rays_own_limit_is_an_overload():
    with pytest.raises(errors.ServerOverloadedError) as caught:
        classify(FakeHandle(choosing=BackPressureError(5, 4, retry_after_s=2.5)))
    assert caught.value.retry_after == 2.5


@pytest.mark.parametrize("choosing", [DeploymentUnavailableError(None), NEVER], ids=["failed", "waiting"])
def test_without_replicas_a_request_is_refused_in_time(choosing):
    handle = FakeHandle(choosing=choosing)
    with pytest.raises(errors.ServerUnavailableError, match="nothing was learned") as caught:
        classify(handle, timeout=0.1)
    assert caught.value.retry_after > 0
    assert not handle.sent


def test_a_defect_of_a_replica_is_an_error_without_details(caplog):
    error = RayTaskError("classify", "a traceback with secrets", ValueError("secret"))
    with pytest.raises(errors.ServerError, match=r"^the request could not be answered \(500 internal\)$"):
        classify(FakeHandle([error]))
    assert "secrets" in caplog.text


def test_a_replica_is_told_how_much_time_is_left():
    handle = FakeHandle([["answer"]])
    classify(handle, timeout=7.0)
    (method, stream, images, left) = handle.sent[0]
    assert (method, stream, [image.key for image in images]) == ("classify", "a", ["1"])
    assert 0 < left <= 7.0


def test_a_request_without_time_is_not_sent():
    handle = FakeHandle([["answer"]])
    with pytest.raises(errors.DeadlineExceededError):
        classify(handle, timeout=0.0)
    assert not handle.sent


def test_a_cancelled_caller_cancels_the_request():
    handle = FakeHandle([NEVER])

    async def give_up() -> None:
        task = asyncio.create_task(RayBackend(handle, MODEL).classify("a", sent(1)))
        while not handle.responses:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert handle.responses[0].cancelled


def test_a_replica_that_keeps_a_stream_is_asked_from_then_on():
    elsewhere = returned(errors.StreamElsewhereError("held"))
    handle = FakeHandle([elsewhere, ["x"]], reports={"leave": [("r1", False), ("r2", True)]})

    async def ask_twice() -> None:
        backend = RayBackend(handle, MODEL)
        await backend.classify("a", sent(1))
        await backend.classify("a", sent(2))
        await backend.classify("b", sent(2))

    asyncio.run(ask_twice())
    assert handle.places == [None, "r2", "r2", None]


def test_a_stream_that_nobody_may_answer_is_unavailable():
    elsewhere = returned(errors.StreamElsewhereError("process 7 holds it"))
    handle = FakeHandle([elsewhere], reports={"leave": [("r1", False)]})
    with pytest.raises(errors.ServerUnavailableError, match="process 7 holds it"):
        classify(handle, timeout=0.3)
    assert len(handle.sent) > 2


def test_the_fresh_report_on_a_stream_is_returned():
    asked, holder = stream_info("a", images=3), stream_info("a", images=5, resident=True)
    handle = FakeHandle([asked], reports={"stream": [asked, holder, errors.NoSuchStreamError("a")]})
    assert asyncio.run(RayBackend(handle, MODEL).stream("a")) == holder


def test_ready_and_statistics_are_those_of_replicas_that_answer():
    reports = {"ready": [False, ActorDiedError(), True], "statistics": [("r1", STATISTICS), ActorDiedError()]}

    async def ask(handle: FakeHandle) -> tuple[bool, int]:
        backend = RayBackend(handle, MODEL)
        return await backend.ready(), (await backend.statistics()).images

    assert asyncio.run(ask(FakeHandle(reports=reports))) == (True, STATISTICS.images)
    nobody = DeploymentUnavailableError(None)
    assert asyncio.run(ask(FakeHandle(reports={"ready": nobody, "statistics": nobody}))) == (False, 0)


def test_counters_keep_what_a_replica_that_has_ended_had_counted():
    later = dataclasses.replace(STATISTICS, images=2 * STATISTICS.images, waiting_images=1)
    handle = FakeHandle(reports={"statistics": [("r1", STATISTICS), ("r2", STATISTICS)]})

    async def ask() -> None:
        backend = RayBackend(handle, MODEL)
        assert (await backend.statistics()).images == 2 * STATISTICS.images
        handle._reports["statistics"] = [("r2", later)]
        found = await backend.statistics()
        assert (found.images, found.waiting_images) == (3 * STATISTICS.images, 1)

    asyncio.run(ask())
