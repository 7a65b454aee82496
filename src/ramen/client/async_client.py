"""The client of a service for programs that use asyncio: ``Client`` with ``await``."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ramen.client import calls, operations
from ramen.client.calls import ImageBatches, Loaded, Request, ServerConnection, Steps, as_server_error
from ramen.client.operations import Operation, Reply, ServedAnswer, StreamInfo

T = TypeVar("T")


class AsyncClient(ServerConnection):
    """Talks to a service that ``ramen serve`` started, from programs that use asyncio.

        async with ramen.AsyncClient("http://localhost:8000", stream="camera-1") as client:
            answer = await client.classify("photo.jpg")
            async for answer in client.classify_many(paths):
                print(answer.key, answer.label, answer.error)

    Arguments, methods, errors, and what is sent again are those of ``ramen.Client``. Files are read, and
    images encoded, in threads. A call that is cancelled closes its connection, and the service drops images
    that still wait.
    """

    def _open(self, **options: Any) -> Any:
        return self._httpx.AsyncClient(**options)

    # -- images -----------------------------------------------------------------------------------------

    async def classify(
        self, source: object, *, stream: str | None = None, all_probabilities: bool = False
    ) -> ServedAnswer:
        """The answer for one image; if it cannot be read or decoded, the answer has an ``error``."""
        stream = self._named(stream)
        image = await asyncio.to_thread(self._load, source, 0, stream)
        return (await self._run(self._answered([image], stream, all_probabilities)))[0]

    async def classify_many(
        self,
        sources: Iterable[object] | AsyncIterable[object],
        *,
        stream: str | None = None,
        all_probabilities: bool = False,
        batch_size: int | None = None,
    ) -> AsyncGenerator[ServedAnswer, None]:
        """One answer per image, in order; an image that cannot be read or decoded has an ``error``.

        Up to ``in_flight`` requests are sent at a time, so that a stream may learn from them in another
        order; ``in_flight=1`` keeps the order. If the reader stops early, requests that were sent are
        cancelled: the service drops images that still wait, and has learned the others.
        """
        stream = self._named(stream)
        pending: deque[asyncio.Task[list[ServedAnswer]]] = deque()
        try:
            async for batch in self._batches(sources, stream, batch_size):
                steps = self._answered(batch, stream, all_probabilities)
                pending.append(asyncio.create_task(self._run(steps)))
                if len(pending) == self._in_flight:
                    for answer in await pending.popleft():
                        yield answer
            while pending:
                for answer in await pending.popleft():
                    yield answer
        finally:
            for request in pending:
                request.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _batches(
        self, sources: Iterable[object] | AsyncIterable[object], stream: str, batch_size: int | None
    ) -> AsyncIterator[list[Loaded]]:
        batches = ImageBatches(await self._run(self._batch_size(batch_size)))
        place = 0
        async for source in _one_by_one(sources):
            for batch in batches.add(await asyncio.to_thread(self._load, source, place, stream)):
                yield batch
            place += 1
        for batch in batches.rest():
            yield batch

    # -- streams ----------------------------------------------------------------------------------------

    async def create_stream(
        self, stream: str | None = None, classes: Sequence[str] | None = None
    ) -> StreamInfo:
        """Create a stream unless it is there; a ``ConflictError`` if it is, with other classes."""
        operation: Operation[Any] = operations.CreateStream(self._named(stream), calls.class_list(classes))
        info: StreamInfo = await self._call(operation)
        return info

    async def streams(self, prefix: str = "") -> AsyncIterator[StreamInfo]:
        """All streams whose names start with ``prefix``, by name."""
        after: str | None = ""
        while after is not None:
            operation: Operation[Any] = operations.ListStreams(after, prefix=prefix)
            page = await self._call(operation)
            for info in page.streams:
                yield info
            after = page.next

    async def stream(self, stream: str | None = None) -> StreamInfo:
        """What there is to know about a stream; a ``NoSuchStreamError`` if there is none of that name."""
        return await self._call(operations.GetStream(self._named(stream)))

    async def reset(self, stream: str | None = None) -> StreamInfo:
        """Forget what a stream has learned."""
        return await self._call(operations.Reset(self._named(stream)))

    async def snapshot(self, stream: str | None = None) -> StreamInfo:
        """Return when everything that a stream has learned is on disk."""
        return await self._call(operations.Snapshot(self._named(stream)))

    async def delete(self, stream: str | None = None) -> None:
        """Remove a stream and what it has learned."""
        return await self._call(operations.Delete(self._named(stream)))

    async def set_classes(self, classes: Sequence[str], stream: str | None = None) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        return await self._call(operations.SetClasses(self._named(stream), calls.class_list(classes) or []))

    async def feedback(
        self, labels: Mapping[str, str] | Iterable[tuple[str, str]], stream: str | None = None
    ) -> operations.FeedbackCounts:
        """Send true labels, by the ``id`` of answers; returns how right the stream's answers were so far."""
        return await self._call(operations.Feedback(self._named(stream), calls.label_pairs(labels)))

    # -- the service ------------------------------------------------------------------------------------

    async def model(self) -> operations.ServedModel:
        """What is served."""
        return await self._call(operations.GetModel())

    async def statistics(self) -> operations.EngineStatistics:
        """What the service has done, and how much is waiting."""
        return await self._call(operations.GetStatistics())

    async def ready(self) -> bool:
        """Whether images can be answered now; an ``UnreachableError`` if there is no service."""
        return await self._run(self._ready())

    # -- requests ---------------------------------------------------------------------------------------

    async def _call(self, operation: Operation[Reply]) -> Reply:
        return await self._run(self._steps(operation))

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    found = await self._take(step)
                except self._httpx.RequestError as error:
                    step = steps.throw(as_server_error(error, self.url))
                else:
                    step = steps.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _take(self, step: Request | float) -> Any:
        if isinstance(step, Request):
            return await self._http.request(step.method, step.path, **step.given)
        return await asyncio.sleep(step)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _one_by_one(sources: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    if isinstance(sources, AsyncIterable):
        async for source in sources:
            yield source
    else:
        for source in sources:
            yield source
