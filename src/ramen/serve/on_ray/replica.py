"""One replica of the service: an engine in a process of its own."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ray import serve

from ramen.client.operations import (
    BY_NAME,
    EngineStatistics,
    FeedbackCounts,
    InvalidRequestError,
    SentImage,
    ServedModel,
    ServerError,
    StreamActivity,
    StreamAnswer,
    StreamInfo,
)
from ramen.methods._registry import load_plugins
from ramen.models.classifier import ZeroShotClassifier
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.settings import EngineSettings

SHORTEST_STAY = 5.0  # seconds that a stream stays with a replica, even if another one should have it
_MOST_REMEMBERED = 10_000  # streams whose time of arrival is known

_log = logging.getLogger("ramen")
T = TypeVar("T")


@dataclass(frozen=True)
class ReplicaPlan:
    """What a replica serves.

    Attributes:
        load: Returns the classifier; called in the replica's process. It must be importable there.
        engine: How images are batched and what streams may keep.
        name: Of the model.
        method: The method that adapts.
        parameters: Of the method.
        imports: Files and modules that bring the method.
    """

    load: Callable[[], ZeroShotClassifier]
    engine: EngineSettings
    name: str
    method: str
    parameters: Mapping[str, Any]
    imports: Sequence[str] = ()


class StreamReplica:
    """Answers for the streams whose states it has locked.

    Errors of the engine are returned, not raised: Ray would wrap them and log each of them with a traceback.

    Args:
        plan: What it serves.
    """

    def __init__(self, plan: ReplicaPlan) -> None:
        self.name: str = serve.get_replica_context().replica_tag
        load_plugins(plan.imports)
        self._engine = Engine(
            plan.load(), plan.engine, name=plan.name, method=plan.method, parameters=plan.parameters
        )
        self._arrivals: dict[str, float] = {}  # when a stream came here, on the monotonic clock
        self._closing: asyncio.Future[None] | None = None
        _log.info("replica %s serves %s on %s", self.name, plan.name, self._engine.model.device)

    def _do(self, name: str, *values: Any, **named: Any) -> Any:
        return self._engine.call(BY_NAME[name](*values, **named))

    # -- the engine ---------------------------------------------------------------------------------

    async def model(self) -> ServedModel:
        """What is served."""
        return self._engine.model

    async def ready(self) -> bool:
        """Whether images can be answered now."""
        return self._engine.ready()

    async def statistics(self) -> tuple[str, EngineStatistics]:
        """The name of this replica, and its engine."""
        return self.name, await self._do(
            "statistics",
        )

    async def streams(self, after: str, limit: int, prefix: str) -> list[StreamInfo]:
        """Streams that this replica knows."""
        streams: list[StreamInfo] = await self._do("streams", after=after, limit=limit, prefix=prefix)
        return streams

    async def classify(
        self, stream: str, images: Sequence[SentImage], timeout: float | None
    ) -> Sequence[StreamAnswer] | ServerError:
        """One answer per image, in order."""
        return await self._here(stream, self._do("classify", stream, images, timeout=timeout))

    async def create_stream(
        self, stream: str, classes: Sequence[str] | None
    ) -> tuple[StreamInfo, bool] | ServerError:
        """Create a stream unless it exists with these classes; also whether it is new."""
        return await self._here(stream, self._do("create_stream", stream, classes))

    async def stream(self, stream: str) -> StreamInfo | ServerError:
        """One stream, as this replica knows it."""
        return await _outcome(self._do("stream", stream))

    async def activity(self, stream: str) -> StreamActivity | ServerError:
        """What happened in a stream lately."""
        return await _outcome(self._do("activity", stream))

    async def reset(self, stream: str) -> StreamInfo | ServerError:
        """Forget what was learned."""
        return await self._with_lock(stream, lambda: self._do("reset", stream))

    async def snapshot(self, stream: str) -> StreamInfo | ServerError:
        """Return when everything that was learned is on disk."""
        return await self._with_lock(stream, lambda: self._do("snapshot", stream))

    async def set_classes(self, stream: str, classes: Sequence[str]) -> StreamInfo | ServerError:
        """Give a stream other classes."""
        return await self._with_lock(stream, lambda: self._do("set_classes", stream, classes))

    async def feedback(self, stream: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts | ServerError:
        """Take true labels; they are matched with answers that this replica has given."""
        return await self._with_lock(stream, lambda: self._do("feedback", stream, labels))

    async def delete(self, stream: str) -> ServerError | None:
        """Forget the stream and remove its state, also one that cannot be read."""
        return await self._with_lock(stream, lambda: self._do("delete", stream), may_be_unusable=True)

    # -- who has which stream -----------------------------------------------------------------------

    async def leave(self, stream: str) -> tuple[str, bool]:
        """Leave a stream to other replicas, unless it has come only just now.

        Returns this replica's name, and whether the stream stays here.
        """
        arrival = self._arrivals.get(stream)
        if arrival is not None and time.monotonic() - arrival < SHORTEST_STAY:
            return self.name, True
        await self.forget(stream)
        return self.name, False

    async def forget(self, stream: str) -> None:
        """Write the state of a stream and release its lock; what is known of it is on disk from then on."""
        self._arrivals.pop(stream, None)
        await self._engine.release(stream)

    async def _here(self, stream: str, work: Awaitable[T]) -> T | ServerError:
        """The outcome of work for which the engine locks the stream."""
        now = time.monotonic()
        is_arriving = stream not in self._arrivals
        self._arrivals.setdefault(stream, now)
        if len(self._arrivals) > _MOST_REMEMBERED:
            self._arrivals = {name: at for name, at in self._arrivals.items() if now - at < SHORTEST_STAY}
        outcome = await _outcome(work)
        if is_arriving and isinstance(outcome, ServerError):
            self._arrivals.pop(stream, None)
        return outcome

    async def _with_lock(
        self, stream: str, work: Callable[[], Awaitable[T]], *, may_be_unusable: bool = False
    ) -> T | ServerError:
        """The outcome of work on a stream that exists, and whose state is locked by this replica."""
        known = await _outcome(self._do("stream", stream))
        if isinstance(known, ServerError):
            return known
        if not self._engine.is_loaded(stream):
            opened = await _outcome(self._do("create_stream", stream))
            if isinstance(opened, ServerError) and not (
                may_be_unusable and isinstance(opened, InvalidRequestError)
            ):
                return opened
        return await self._here(stream, work())

    # -- Ray ----------------------------------------------------------------------------------------

    def check_health(self) -> None:
        """Called by Ray now and then: a replica whose engine has ended is replaced."""
        if self._closing is None and not self._engine.ready():
            raise RuntimeError("the engine has ended")

    async def __del__(self) -> None:
        """Called by Ray before it ends the process: write all states and release the locks."""
        if hasattr(self, "_engine") and self._closing is None:
            self._closing = asyncio.ensure_future(self._engine.close())
            await self._closing


async def _outcome(work: Awaitable[T]) -> T | ServerError:
    try:
        return await work
    except ServerError as error:
        return error
