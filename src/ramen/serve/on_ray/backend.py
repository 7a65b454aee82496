"""The replicas of a Ray Serve deployment as one backend of the HTTP front."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import (
    BackPressureError,
    RayServeException,
    ReplicaUnavailableError,
)
from ray.serve.handle import DeploymentHandle

from ramen.client.operations import (
    AnswerLostError,
    DeadlineExceededError,
    EngineStatistics,
    FailedError,
    FeedbackCounts,
    Operation,
    Reply,
    SentImage,
    ServedModel,
    ServerError,
    ServerOverloadedError,
    ServerUnavailableError,
    StoppingError,
    StreamActivity,
    StreamAnswer,
    StreamElsewhereError,
    StreamInfo,
    check_stream_name,
)
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.on_ray.merging import MergedStatistics, merged_streams
from ramen.serve.on_ray.replica import SHORTEST_STAY

_PATIENCE = 30.0  # seconds that a request without a timeout waits for a replica that can answer
_GRACE = 30.0  # seconds beyond its deadline that an answer is waited for: it may be being computed
_REPORT_TIMEOUT = 5.0  # seconds that replicas have to report
_READY_FOR = 1.0  # seconds that "ready" is believed
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds, between attempts to find the replica of a stream
_RETRY_AFTER = 2.0  # seconds: about what a new replica takes to take over streams
_MOST_PLACES = 10_000

_log = logging.getLogger("ramen")


class RayBackend:
    """Sends each request to the replica that holds its stream; implements ``ramen.serve.http.Backend``.

    A request that a replica has refused, or that was never sent, is tried again until its time is up. One
    that was sent to a replica that ended before it answered is not: it may have been learned from.

    Args:
        replicas: The deployment of ``StreamReplica``.
        model: What it serves.
    """

    def __init__(self, replicas: DeploymentHandle[Any], model: ServedModel) -> None:
        self._replicas, self._model = replicas, model
        self._statistics = MergedStatistics()
        self._ready_until = 0.0
        # The replica that keeps a stream although another one should have it, and until when to believe it.
        self._places: OrderedDict[str, tuple[str, float]] = OrderedDict()

    @classmethod
    async def connect(cls, replicas: DeploymentHandle[Any]) -> "RayBackend":
        """Wait until a replica is there, and ask it what it serves."""
        return cls(replicas, await replicas.options(method_name="model").remote())

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self._model

    async def ready(self) -> bool:
        """Whether a replica can answer images now."""
        if time.monotonic() >= self._ready_until and any(await self._everyone("ready")):
            self._ready_until = time.monotonic() + _READY_FOR
        return time.monotonic() < self._ready_until

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """Never known here: replicas decide."""
        return None

    def count_refusal(self) -> None:
        """Replicas count."""

    def memory_for(self, length: int) -> memoryview | None:
        """Memory of this process will do."""
        return None

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Ask the replica of the stream, or all."""
        done: Reply = await getattr(self, operation.name)(**vars(operation))
        return done

    async def classify(
        self, stream: str, images: Sequence[SentImage], *, timeout: float | None = None
    ) -> Sequence[StreamAnswer]:
        """One answer per image, in order; if the caller is cancelled, images that still wait are dropped."""
        until = None if timeout is None else time.monotonic() + timeout
        answers: Sequence[StreamAnswer] = await self._ask("classify", stream, list(images), until=until)
        return answers

    async def create_stream(
        self, stream: str, classes: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Create a stream unless it exists with these classes; also whether it is new."""
        created: tuple[StreamInfo, bool] = await self._ask("create_stream", stream, classes)
        return created

    async def streams(self, *, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        """Streams by name, those behind ``after``, as their replicas know them."""
        return merged_streams(await self._everyone("streams", after, limit, prefix), limit)

    async def stream(self, stream: str) -> StreamInfo:
        """One stream, as the replica knows it that holds it."""
        info: StreamInfo = await self._ask("stream", stream)
        if info.resident:
            return info
        others = [one for one in await self._everyone("stream", stream) if isinstance(one, StreamInfo)]
        return merged_streams([[info], others], 1)[0]

    async def activity(self, stream: str) -> StreamActivity:
        """What happened in a stream lately."""
        activity: StreamActivity = await self._ask("activity", stream)
        return activity

    async def reset(self, stream: str) -> StreamInfo:
        """Forget what was learned."""
        info: StreamInfo = await self._ask("reset", stream)
        return info

    async def snapshot(self, stream: str) -> StreamInfo:
        """Return when everything that was learned is on disk."""
        info: StreamInfo = await self._ask("snapshot", stream)
        return info

    async def delete(self, stream: str) -> None:
        """Forget the stream and remove its state."""
        await self._ask("delete", stream)
        await self._everyone("forget", stream)  # those that had it before

    async def set_classes(self, stream: str, classes: Sequence[str]) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        info: StreamInfo = await self._ask("set_classes", stream, classes)
        return info

    async def feedback(self, stream: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts:
        """Take true labels, as pairs of an answer's id and a class; returns the stream's counts."""
        counts: FeedbackCounts = await self._ask("feedback", stream, labels)
        return counts

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """Those of this front alone."""
        return own

    async def statistics(self) -> EngineStatistics:
        """All replicas together."""
        return self._statistics.merged(dict(await self._everyone("statistics")))

    async def close(self) -> None:
        """Do nothing: the replicas stay, for other fronts."""

    # -- one replica --------------------------------------------------------------------------------

    async def _ask(self, method: str, stream: str, *arguments: Any, until: float | None = None) -> Any:
        """What the replica says that holds the stream.

        Args:
            method: Of ``StreamReplica``.
            stream: The stream.
            arguments: Further ones.
            until: When nobody wants the answer any more, on the monotonic clock; replicas that answer images
                get what is left of it.
        """
        check_stream_name(stream)
        patience = time.monotonic() + _PATIENCE if until is None else until
        pause, place = 0.0, self._place(stream)  # the first time, it is known at once where to ask
        while True:
            self._left(until)
            outcome = await self._send(method, stream, place, arguments, until, patience)
            if not isinstance(outcome, (StreamElsewhereError, StoppingError)):
                break
            place = await self._holder(stream)
            await self._wait(outcome, pause, patience)
            pause = min(2 * pause + _FIRST_PAUSE, _LONGEST_PAUSE)
        if isinstance(outcome, ServerError):
            raise outcome
        return outcome

    async def _send(
        self,
        method: str,
        stream: str,
        place: str | None,
        arguments: tuple[Any, ...],
        until: float | None,
        patience: float,
    ) -> Any:
        """Send a request once; nothing that has been sent is sent again."""
        handle = self._replicas.options(method_name=method, multiplexed_model_id=stream)
        sent = False
        clock = asyncio.get_running_loop().time() - time.monotonic()
        try:
            async with asyncio.timeout_at(patience + clock) as limit, handle.choose_replica(place) as chosen:
                if method == "classify":
                    arguments = (*arguments, self._left(until))
                sent = True
                limit.reschedule(patience + _GRACE + clock)
                return await _answer(handle.dispatch(chosen, stream, *arguments))
        except ReplicaUnavailableError:  # it had gone before anything was sent
            return StoppingError("the replica is being stopped")
        except (TimeoutError, RayError, RayServeException) as error:
            self._ready_until = 0.0
            raise _maybe_done(error, stream) if sent else _not_done(error) from error

    @staticmethod
    def _left(until: float | None) -> float | None:
        if until is None:
            return None
        left = until - time.monotonic()
        if left <= 0:
            raise DeadlineExceededError(
                "the request could not be answered in time; nothing was learned from it"
            )
        return left

    # -- who holds a stream -------------------------------------------------------------------------

    def _place(self, stream: str) -> str | None:
        """The replica that is known to keep a stream for the time being."""
        known = self._places.get(stream)
        if known is None:
            return None
        if time.monotonic() < known[1]:
            return known[0]
        del self._places[stream]
        return None

    async def _holder(self, stream: str) -> str | None:
        """The replica that keeps the stream; None if all that could be asked have left it."""
        for name, stays in await self._everyone("leave", stream):
            if stays:
                self._places[stream] = name, time.monotonic() + SHORTEST_STAY
                while len(self._places) > _MOST_PLACES:
                    self._places.popitem(last=False)
                return str(name)
        self._places.pop(stream, None)
        return None

    @staticmethod
    async def _wait(outcome: ServerError, pause: float, patience: float) -> None:
        if time.monotonic() + pause > patience:
            raise ServerUnavailableError(
                f"no replica can answer this stream at the moment ({outcome}); nothing was learned",
                _RETRY_AFTER,
            )
        await asyncio.sleep(pause)

    # -- all replicas -------------------------------------------------------------------------------

    async def _everyone(self, method: str, *arguments: Any) -> list[Any]:
        """What all replicas say that answer in time."""
        try:
            said = await self._replicas.broadcast(method, *arguments).results_async(
                timeout_s=_REPORT_TIMEOUT, return_exceptions=True
            )
        except (TimeoutError, RayError, RayServeException) as error:
            _log.warning("the replicas do not answer to %r: %s", method, _line(error))
            return []
        failed = [isinstance(one, BaseException) and not isinstance(one, ServerError) for one in said]
        for one in itertools.compress(said, failed):
            _log.warning("a replica does not answer to %r: %s", method, _line(one))
        return [one for one, has_failed in zip(said, failed, strict=True) if not has_failed]


async def _answer(response: Any) -> Any:
    """What a replica answers; if the caller is cancelled, so is the work."""
    try:
        return await response
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            response.cancel()
        raise


def _not_done(error: Exception) -> ServerError:
    """Why a request was not sent."""
    if isinstance(error, BackPressureError):
        return ServerOverloadedError(
            "too many requests are waiting for a replica", error.retry_after_s or 1.0
        )
    return ServerUnavailableError("no replica is there to answer; nothing was learned", _RETRY_AFTER)


def _maybe_done(error: Exception, stream: str) -> ServerError:
    """Why the answer of a request that was sent never came."""
    if isinstance(error, RayTaskError):  # a defect
        _log.error("a replica failed on a request of stream %s: %s", stream, error)
        return FailedError("the request could not be answered")
    return AnswerLostError(
        "the replica that worked on the request ended, or could not be reached, before it answered: the "
        "request may have been carried out, or not"
    )


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
