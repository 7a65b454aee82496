"""Several engines as one backend: each has a part of the streams, and a folder for their states."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ramen.client.operations import (
    RETRY_AFTER,
    AnswerLostError,
    DeadlineExceededError,
    EngineStatistics,
    GetModel,
    GetStatistics,
    Operation,
    Reply,
    ServedModel,
    ServerError,
    ServerUnavailableError,
    StoppingError,
)
from ramen.serve.engine.state_folder import shard_of
from ramen.serve.http.metrics import RequestFigures

NO_AUTOSCALING = (
    "the number of engines does not follow the load any more: give replicas in place of min_replicas and "
    "max_replicas; to change it, start the service again, and streams move"
)
_PATIENCE = 30.0  # seconds that a request without a timeout waits for its engine
_PAUSE = 0.1  # seconds between looks for an engine that stops
_REPORT_TIMEOUT = 5.0  # seconds that each engine has to answer what all are asked

_log = logging.getLogger("ramen")


class Shard(ABC):
    """An engine in another process, which comes back if it ends."""

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Ask it, as soon as it is there; ServerUnavailableError if that takes too long.

        What it has refused, or was never sent, is sent again. What was sent to an engine that ended before it
        answered is not: it may have been learned from.
        """
        clock, timeout = asyncio.get_running_loop().time, getattr(operation, "timeout", None)
        until = clock() + (_PATIENCE if timeout is None else timeout)
        while True:
            if timeout is not None:
                left = until - clock()
                if left <= 0:
                    raise DeadlineExceededError("the request was not answered in time; nothing was learned")
                operation = replace(operation, timeout=left)  # type: ignore[call-arg]
            try:
                return await self.send(operation, until)
            except StoppingError:
                if clock() + _PAUSE > until:
                    raise unavailable() from None
                await asyncio.sleep(_PAUSE)

    @abstractmethod
    async def send(self, operation: Operation[Reply], until: float) -> Reply:
        """Ask it once; StoppingError if it takes nothing at the moment.

        Args:
            operation: What to do.
            until: How long to wait for the engine, on the clock of the loop; for its answer a little longer.
        """

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """See ``Backend``; never known before the engine is asked."""
        return None

    def count_refusal(self) -> None:  # noqa: B027
        """See ``Backend``; engines count."""

    async def close(self) -> None:  # noqa: B027
        """Finish what was accepted, write all states, and stop, unless it goes on for others."""


def unavailable() -> ServerUnavailableError:
    """For a request that was not sent to its engine."""
    message = "the engine of this stream is not there at the moment; nothing was learned"
    return ServerUnavailableError(message, RETRY_AFTER)


def lost() -> AnswerLostError:
    """For a request that was sent to its engine."""
    return AnswerLostError(
        "the engine that worked on the request ended, or could not be reached, before it answered: "
        "the request may have been carried out, or not"
    )


class Shards:
    """Sends what concerns a stream to its shard, and anything else to all; a ``Backend``.

    Args:
        shards: In their order, which decides where a stream is.
        model: What they serve.
        memory_for: See ``Backend``.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        model: ServedModel,
        memory_for: Callable[[int], memoryview | None] = lambda length: None,
    ) -> None:
        self._shards, self.model, self.memory_for = shards, model, memory_for
        self._before = [Counter[str]() for _ in shards]  # of engines that have ended
        self._latest = [Counter[str]() for _ in shards]
        self._counting = asyncio.Lock()  # a report that overtook another would look like a new engine's

    @classmethod
    async def connect(cls, shards: Sequence[Shard]) -> "Shards":
        """Wait until the first one is there, which may have to load a model, and ask it what it serves."""
        while True:
            try:
                return cls(shards, await shards[0].call(GetModel()))
            except ServerUnavailableError as error:
                _log.info("engine 1 does not answer yet: %s", error)

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do something; if the caller is cancelled, images that still wait are dropped."""
        stream: str | None = getattr(operation, "stream", None)
        if stream is not None:
            return await self._shard_of(stream).call(operation)
        if isinstance(operation, GetStatistics):
            return await self._statistics(operation)  # type: ignore[return-value]
        replies = await self._ask_all(operation)
        return operation.merged(replies)

    def _shard_of(self, stream: str) -> Shard:
        return self._shards[shard_of(stream, len(self._shards))]

    async def _ask_all(self, operation: Operation[Reply]) -> list[Reply | None]:
        asked: list[Any] = [self._ask(shard, operation) for shard in self._shards]
        return list(await asyncio.gather(*asked))

    async def _ask(self, shard: Shard, operation: Operation[Reply]) -> Reply | None:
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT):
                until = asyncio.get_running_loop().time() + _REPORT_TIMEOUT
                return await shard.send(operation, until)
        except (TimeoutError, ServerUnavailableError) as error:
            number = self._shards.index(shard) + 1
            _log.warning("engine %d does not answer to %r: %s", number, operation.name, error)
            return None

    async def _statistics(self, operation: GetStatistics) -> EngineStatistics:
        """Of all engines; counters go on where they were when an engine has been started again."""
        async with self._counting:
            reports = await self._ask_all(operation)
            for number, report in enumerate(reports):
                if report is not None:
                    now = Counter({name: getattr(report, name) for name in EngineStatistics.COUNTERS})
                    if not self._latest[number] <= now:
                        self._before[number] += self._latest[number]
                    self._latest[number] = now
            totals = sum((*self._before, *self._latest), Counter[str]())
            counted: dict[str, Any] = {name: totals[name] for name in EngineStatistics.COUNTERS}
            return replace(operation.merged(reports), **counted)

    # -- what else a backend has --------------------------------------------------------------------

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """Why so much would be refused now; None if the engine has to be asked."""
        return await self._shard_of(stream).refusal(stream, images, nbytes)

    def count_refusal(self) -> None:
        """A request was refused because of what ``refusal`` says; only the sum is reported."""
        self._shards[0].count_refusal()

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """Those of this process alone."""
        return own

    async def close(self) -> None:
        """Stop all of them."""
        await asyncio.gather(*(shard.close() for shard in self._shards))
