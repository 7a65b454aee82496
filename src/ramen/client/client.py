"""The client of a service for ordinary programs; ``async_client`` has the one for asyncio."""

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from ramen.client import calls, operations
from ramen.client.calls import ImageBatches, Loaded, Request, ServerConnection, Steps, as_server_error
from ramen.client.operations import Operation, Reply, ServedAnswer, StreamInfo

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
        stream = self._named(stream)
        images = [self._load(source, 0, stream)]
        return self._run(self._answered(images, stream, all_probabilities))[0]

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
        stream = self._named(stream)
        pending: deque[Future[list[ServedAnswer]]] = deque()
        with ThreadPoolExecutor(self._in_flight, thread_name_prefix="ramen-client") as threads:
            try:
                for batch in self._batches(sources, stream, batch_size):
                    steps = self._answered(batch, stream, all_probabilities)
                    pending.append(threads.submit(self._run, steps))
                    if len(pending) == self._in_flight:
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
        stream, batches = self._named(stream), ImageBatches(max(1, len(images)))
        parts = [part for image in images for part in batches.add(image)] + batches.rest()
        return [answer for part in parts for answer in self._run(self._answered(part, stream, False))]

    def load(self, source: object, place: int = 0) -> Loaded:
        """An image that is read, so that it can be sent; ``place`` is for the key of one that has none."""
        return self._load(source, place, self._stream)

    def _batches(
        self, sources: Iterable[object], stream: str, batch_size: int | None
    ) -> Iterator[list[Loaded]]:
        batches = ImageBatches(self._run(self._batch_size(batch_size)))
        for place, source in enumerate(sources):
            yield from batches.add(self._load(source, place, stream))
        yield from batches.rest()

    # -- streams ----------------------------------------------------------------------------------------

    def create_stream(self, stream: str | None = None, classes: Sequence[str] | None = None) -> StreamInfo:
        """Create a stream unless it is there; a ``ConflictError`` if it is, with other classes.

        Args:
            stream: Its name, if another one than the client's.
            classes: Its classes, if others than the service's.
        """
        operation: Operation[Any] = operations.CreateStream(self._named(stream), calls.class_list(classes))
        info: StreamInfo = self._call(operation)
        return info

    def streams(self, prefix: str = "") -> Iterator[StreamInfo]:
        """All streams whose names start with ``prefix``, by name."""
        after: str | None = ""
        while after is not None:
            operation: Operation[Any] = operations.ListStreams(after, prefix=prefix)
            page = self._call(operation)
            yield from page.streams
            after = page.next

    def stream(self, stream: str | None = None) -> StreamInfo:
        """What there is to know about a stream; a ``NoSuchStreamError`` if there is none of that name."""
        return self._call(operations.GetStream(self._named(stream)))

    def reset(self, stream: str | None = None) -> StreamInfo:
        """Forget what a stream has learned."""
        return self._call(operations.Reset(self._named(stream)))

    def snapshot(self, stream: str | None = None) -> StreamInfo:
        """Return when everything that a stream has learned is on disk."""
        return self._call(operations.Snapshot(self._named(stream)))

    def delete(self, stream: str | None = None) -> None:
        """Remove a stream and what it has learned."""
        return self._call(operations.Delete(self._named(stream)))

    def set_classes(self, classes: Sequence[str], stream: str | None = None) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        return self._call(operations.SetClasses(self._named(stream), calls.class_list(classes) or []))

    def feedback(
        self, labels: Mapping[str, str] | Iterable[tuple[str, str]], stream: str | None = None
    ) -> operations.FeedbackCounts:
        """Send true labels, for the live accuracy; nothing is learned from them.

        Args:
            labels: The true class of each answer, by the answer's ``id``.
            stream: The stream, if another one than the client's.

        Returns:
            How right the stream's answers were so far.
        """
        return self._call(operations.Feedback(self._named(stream), calls.label_pairs(labels)))

    # -- the service ------------------------------------------------------------------------------------

    def model(self) -> operations.ServedModel:
        """What is served."""
        return self._call(operations.GetModel())

    def statistics(self) -> operations.EngineStatistics:
        """What the service has done, and how much is waiting."""
        return self._call(operations.GetStatistics())

    def ready(self) -> bool:
        """Whether images can be answered now; an ``UnreachableError`` if there is no service."""
        return self._run(self._ready())

    # -- requests ---------------------------------------------------------------------------------------

    def _call(self, operation: Operation[Reply]) -> Reply:
        return self._run(self._steps(operation))

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    found = self._take(step)
                except self._httpx.RequestError as error:
                    step = steps.throw(as_server_error(error, self.url))
                else:
                    step = steps.send(found)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _take(self, step: Request | float) -> Any:
        if isinstance(step, Request):
            return self._http.request(step.method, step.path, **step.given)
        return time.sleep(step)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
