"""The client of a service for ordinary programs; ``async_client`` has the one for asyncio."""

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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


class Client(ServerConnection):
    """Talks to a service that ``ramen serve`` started.

        with ramen.Client("http://localhost:8000", token="...", stream="camera-1") as client:
            answer = client.classify("photo.jpg")
            print(answer.label, answer.probability, answer.zero_shot_label)
            for answer in client.classify_many(paths):
                print(answer.key, answer.label, answer.error)

    One client serves many threads. An image is a path, ``bytes``, a binary file object, a PIL image (sent as
    PNG), a uint8 array ``(H, W, 3)`` (sent as raw pixels), or a pair of a key and one of these.

    **What is sent again.** A stream learns from every image, so that an image that is sent twice may be
    learned twice. A client therefore sends images again only if it is certain that the service took nothing
    of them: it refused them because of overload (429) or because it is starting or stopping (503), or no
    connection could be made. It waits as long as the service asks for (Retry-After), and a little more at
    random. If a connection is lost after images were sent, it cannot know, and raises a
    ``ConnectionLostError``; with ``resend_uncertain=True`` it sends them again. Requests that only ask
    something are always sent again.

    Errors are subclasses of ``ramen.ServerError``, in ``ramen.client.operations``, and have the ``status``,
    the ``code`` and the ``message`` of the service.

    Args:
        url: Such as ``"https://ramen.example.org"``; certificates are verified.
        token: What the service knows the caller by. By default the environment variable RAMEN_TOKEN.
        stream: The stream of all calls that do not name another one.
        timeout: Seconds in which the service is to answer a request, from its arrival. The service gets it
            too: it does not learn from images that still wait then.
        retries: The most times that a request is sent again.
        retry_seconds: A request is not sent again later than this after it was first sent.
        resend_uncertain: Also send again what the service may have carried out.
        in_flight: The most requests at a time of one ``classify_many``.
        max_bytes: The most bytes that an image may have.
        transport: What httpx sends requests with, if not over the network.
    """

    def _open(self, **options: Any) -> Any:
        return self._httpx.Client(**options)

    # -- images -----------------------------------------------------------------------------------------

    def classify(
        self, source: object, *, stream: str | None = None, all_probabilities: bool = False
    ) -> ServedAnswer:
        """The answer for one image; if it cannot be read or decoded, the answer has an ``error``.

        Args:
            source: The image.
            stream: The stream, if another one than the client's.
            all_probabilities: Also return the probabilities of all classes.
        """
        options = self._options(stream, all_probabilities)
        return self._answers([self._load(source, 0, options.stream)], options)[0]

    def classify_many(
        self,
        sources: Iterable[object],
        *,
        stream: str | None = None,
        all_probabilities: bool = False,
        batch_size: int | None = None,
    ) -> Generator[ServedAnswer, None, None]:
        """One answer per image, in order; an image that cannot be read or decoded has an ``error``.

        Images are taken from ``sources`` as they are needed. Up to ``in_flight`` requests are sent at a time,
        so that a stream may learn from them in another order; ``in_flight=1`` keeps the order. Whoever stops
        reading early waits for the requests that were sent already: their images are learned.

        Args:
            sources: The images.
            stream: The stream, if another one than the client's.
            all_probabilities: Also return the probabilities of all classes.
            batch_size: The most images in a request; by default as many as the service allows.
        """
        options = self._options(stream, all_probabilities)
        pending: deque[Future[list[ServedAnswer]]] = deque()
        with ThreadPoolExecutor(self._settings.in_flight, thread_name_prefix="ramen-client") as threads:
            try:
                for batch in self._batches(sources, options.stream, batch_size):
                    pending.append(threads.submit(self._answers, batch, options))
                    if len(pending) == self._settings.in_flight:
                        yield from pending.popleft().result()
                while pending:
                    yield from pending.popleft().result()
            finally:
                for request in pending:
                    request.cancel()

    def classify_loaded(self, images: Sequence[Loaded], *, stream: str | None = None) -> list[ServedAnswer]:
        """The answers for images of ``load``, sent together unless they have too many bytes for a request.

        Args:
            images: At most as many as the service takes in a request.
            stream: The stream, if another one than the client's.
        """
        batches = self._collected(max(1, len(images)))  # those that fit into one request
        parts = [part for image in images for part in batches.add(image)] + batches.rest()
        options = self._options(stream, False)
        return [answer for part in parts for answer in self._answers(part, options)]

    def load(self, source: object, place: int = 0) -> Loaded:
        """An image that is read, so that it can be sent; ``place`` is for the key of one that has none."""
        return self._load(source, place, self._settings.stream)

    def _batches(
        self, sources: Iterable[object], stream: str, batch_size: int | None
    ) -> Iterator[list[Loaded]]:
        batches = self._collected(self._batch_size(batch_size))
        for place, source in enumerate(sources):
            yield from batches.add(self._load(source, place, stream))
        yield from batches.rest()

    def _batch_size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return checks.integer("batch_size", batch_size, 1)
        self._model = self._model or self.model()
        return self._model.max_batch

    def _answers(self, images: Sequence[Loaded], options: ClassifyOptions) -> list[ServedAnswer]:
        steps = calls.classify_steps(images, options)
        try:
            call = next(steps)
            while True:
                try:
                    answers = self._send(call)
                except RefusedImageError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answers)
        except StopIteration as end:
            return list(end.value)

    # -- streams ----------------------------------------------------------------------------------------

    def create_stream(self, stream: str | None = None, classes: Sequence[str] | None = None) -> StreamInfo:
        """Create a stream unless it is there; a ``ConflictError`` if it is, with other classes.

        Args:
            stream: Its name, if another one than the client's.
            classes: Its classes, if others than the service's.
        """
        operation: Operation[Any] = CreateStream(self._named(stream), calls.class_list(classes))
        info: StreamInfo = self._call(operation)
        return info

    def streams(self, prefix: str = "") -> Iterator[StreamInfo]:
        """All streams whose names start with ``prefix``, by name."""
        after: str | None = ""
        while after is not None:
            operation: Operation[Any] = ListStreams(after, prefix=prefix)
            page = self._call(operation)
            yield from page.streams
            after = page.next

    def stream(self, stream: str | None = None) -> StreamInfo:
        """What there is to know about a stream; a ``NoSuchStreamError`` if there is none of that name."""
        return self._call(GetStream(self._named(stream)))

    def reset(self, stream: str | None = None) -> StreamInfo:
        """Forget what a stream has learned."""
        return self._call(Reset(self._named(stream)))

    def snapshot(self, stream: str | None = None) -> StreamInfo:
        """Return when everything that a stream has learned is on disk."""
        return self._call(Snapshot(self._named(stream)))

    def delete(self, stream: str | None = None) -> None:
        """Remove a stream and what it has learned."""
        return self._call(Delete(self._named(stream)))

    def set_classes(self, classes: Sequence[str], stream: str | None = None) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        return self._call(SetClasses(self._named(stream), calls.class_list(classes) or []))

    def feedback(
        self, labels: Mapping[str, str] | Iterable[tuple[str, str]], stream: str | None = None
    ) -> FeedbackCounts:
        """Send true labels, for the live accuracy; nothing is learned from them.

        Args:
            labels: The true class of each answer, by the answer's ``id``.
            stream: The stream, if another one than the client's.

        Returns:
            How right the stream's answers were so far.
        """
        return self._call(Feedback(self._named(stream), calls.label_pairs(labels)))

    # -- the service ------------------------------------------------------------------------------------

    def model(self) -> ServedModel:
        """What is served."""
        return self._call(GetModel())

    def statistics(self) -> EngineStatistics:
        """What the service has done, and how much is waiting."""
        return self._call(GetStatistics())

    def ready(self) -> bool:
        """Whether images can be answered now; an ``UnreachableError`` if there is no service."""
        try:
            self._send_once(calls.call_for(IsReady()))
        except ServerUnavailableError:
            return False
        return True

    # -- requests ---------------------------------------------------------------------------------------

    def _call(self, operation: Operation[Reply]) -> Reply:
        reply: Reply = self._send(calls.call_for(operation))
        return reply

    def _send(self, call: ServerCall[T]) -> T:
        attempts = self._attempts(call)
        while True:
            try:
                return self._send_once(call)
            except ServerError as error:
                delay = attempts.delay_after(error)
            time.sleep(delay)

    def _send_once(self, call: ServerCall[T]) -> T:
        try:
            reply = self._http.request(call.method, call.path, params=call.params, **call.body)
        except self._httpx.RequestError as error:
            raise as_server_error(error, self.url) from error
        return call.answer(reply.status_code, reply.headers, reply.content)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
