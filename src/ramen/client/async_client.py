"""The client of a service for programs that use asyncio: ``Client`` with ``await``."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ramen.client import calls
from ramen.client.calls import ClassifyOptions, Loaded, ServerCall, ServerConnection, as_server_error
from ramen.client.operations import (
    CreateStream,
    Delete,
    EngineStatistics,
    Feedback,
    FeedbackCounts,
    GetModel,
    GetStatistics,
    GetStream,
    IsReady,
    ListStreams,
    Operation,
    RefusedImageError,
    Reply,
    Reset,
    ServedAnswer,
    ServedModel,
    ServerError,
    ServerUnavailableError,
    SetClasses,
    Snapshot,
    StreamInfo,
)
from ramen.utils import checks

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

    Args:
        url: Such as ``"https://ramen.example.org"``; certificates are verified.
        token: What the service knows the caller by. By default the environment variable RAMEN_TOKEN.
        stream: The stream of all calls that do not name another one.
        timeout: Seconds in which the service is to answer a request, from its arrival.
        retries: The most times that a request is sent again.
        retry_seconds: A request is not sent again later than this after it was first sent.
        resend_uncertain: Also send again what the service may have carried out.
        in_flight: The most requests at a time of one ``classify_many``.
        max_bytes: The most bytes that an image may have.
        transport: What httpx sends requests with, if not over the network.
    """

    def _open(self, **options: Any) -> Any:
        return self._httpx.AsyncClient(**options)

    # -- images -----------------------------------------------------------------------------------------

    async def classify(
        self, source: object, *, stream: str | None = None, all_probabilities: bool = False
    ) -> ServedAnswer:
        """The answer for one image; if it cannot be read or decoded, the answer has an ``error``.

        Args:
            source: The image.
            stream: The stream, if another one than the client's.
            all_probabilities: Also return the probabilities of all classes.
        """
        options = self._options(stream, all_probabilities)
        image = await asyncio.to_thread(self._load, source, 0, options.stream)
        return (await self._answers([image], options))[0]

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

        Args:
            sources: The images, one after another.
            stream: The stream, if another one than the client's.
            all_probabilities: Also return the probabilities of all classes.
            batch_size: The most images in a request; by default as many as the service allows.
        """
        options = self._options(stream, all_probabilities)
        pending: deque[asyncio.Task[list[ServedAnswer]]] = deque()
        try:
            async for batch in self._batches(sources, options.stream, batch_size):
                pending.append(asyncio.create_task(self._answers(batch, options)))
                if len(pending) == self._settings.in_flight:
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
        batches = self._collected(await self._batch_size(batch_size))
        place = 0
        async for source in _one_by_one(sources):
            for batch in batches.add(await asyncio.to_thread(self._load, source, place, stream)):
                yield batch
            place += 1
        for batch in batches.rest():
            yield batch

    async def _batch_size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return checks.integer("batch_size", batch_size, 1)
        self._model = self._model or await self.model()
        return self._model.max_batch

    async def _answers(self, images: Sequence[Loaded], options: ClassifyOptions) -> list[ServedAnswer]:
        steps = calls.classify_steps(images, options)
        try:
            call = next(steps)
            while True:
                try:
                    answers = await self._send(call)
                except RefusedImageError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answers)
        except StopIteration as end:
            return list(end.value)

    # -- streams ----------------------------------------------------------------------------------------

    async def create_stream(
        self, stream: str | None = None, classes: Sequence[str] | None = None
    ) -> StreamInfo:
        """Create a stream unless it is there; a ``ConflictError`` if it is, with other classes."""
        operation: Operation[Any] = CreateStream(self._named(stream), calls.class_list(classes))
        info: StreamInfo = await self._call(operation)
        return info

    async def streams(self, prefix: str = "") -> AsyncIterator[StreamInfo]:
        """All streams whose names start with ``prefix``, by name."""
        after: str | None = ""
        while after is not None:
            operation: Operation[Any] = ListStreams(after, prefix=prefix)
            page = await self._call(operation)
            for info in page.streams:
                yield info
            after = page.next

    async def stream(self, stream: str | None = None) -> StreamInfo:
        """What there is to know about a stream; a ``NoSuchStreamError`` if there is none of that name."""
        return await self._call(GetStream(self._named(stream)))

    async def reset(self, stream: str | None = None) -> StreamInfo:
        """Forget what a stream has learned."""
        return await self._call(Reset(self._named(stream)))

    async def snapshot(self, stream: str | None = None) -> StreamInfo:
        """Return when everything that a stream has learned is on disk."""
        return await self._call(Snapshot(self._named(stream)))

    async def delete(self, stream: str | None = None) -> None:
        """Remove a stream and what it has learned."""
        return await self._call(Delete(self._named(stream)))

    async def set_classes(self, classes: Sequence[str], stream: str | None = None) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        return await self._call(SetClasses(self._named(stream), calls.class_list(classes) or []))

    async def feedback(
        self, labels: Mapping[str, str] | Iterable[tuple[str, str]], stream: str | None = None
    ) -> FeedbackCounts:
        """Send true labels, by the ``id`` of answers; returns how right the stream's answers were so far."""
        return await self._call(Feedback(self._named(stream), calls.label_pairs(labels)))

    # -- the service ------------------------------------------------------------------------------------

    async def model(self) -> ServedModel:
        """What is served."""
        return await self._call(GetModel())

    async def statistics(self) -> EngineStatistics:
        """What the service has done, and how much is waiting."""
        return await self._call(GetStatistics())

    async def ready(self) -> bool:
        """Whether images can be answered now; an ``UnreachableError`` if there is no service."""
        try:
            await self._send_once(calls.call_for(IsReady()))
        except ServerUnavailableError:
            return False
        return True

    # -- requests ---------------------------------------------------------------------------------------

    async def _call(self, operation: Operation[Reply]) -> Reply:
        reply: Reply = await self._send(calls.call_for(operation))
        return reply

    async def _send(self, call: ServerCall[T]) -> T:
        attempts = self._attempts(call)
        while True:
            try:
                return await self._send_once(call)
            except ServerError as error:
                delay = attempts.delay_after(error)
            await asyncio.sleep(delay)

    async def _send_once(self, call: ServerCall[T]) -> T:
        try:
            reply = await self._http.request(call.method, call.path, params=call.params, **call.body)
        except self._httpx.RequestError as error:
            raise as_server_error(error, self.url) from error
        return call.answer(reply.status_code, reply.headers, reply.content)

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
