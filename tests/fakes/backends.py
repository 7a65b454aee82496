"""A backend of the HTTP front that computes nothing: its answers follow from the bytes that are sent."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ramen.client.operations import (
    ChangedImage,
    ConflictError,
    DeadlineExceededError,
    EngineStatistics,
    FeedbackCounts,
    InvalidRequestError,
    NoSuchStreamError,
    Operation,
    Reply,
    SentImage,
    ServedModel,
    ServerError,
    StoppingError,
    StreamActivity,
    StreamAnswer,
    StreamInfo,
)
from ramen.client.result import Result
from ramen.serve.http.metrics import RequestFigures

CLASSES = ("cat", "dog", "bird")
MODEL = ServedModel("Fake-B-16/none", "ramen", CLASSES, (32, 32), 8, True, "cpu", "float32")
BAD = b"bad"  # an image that begins so cannot be decoded


class FakeBackend:
    """Answers at once, unless it is to do otherwise.

    Attributes:
        delay: Seconds that each answer takes.
        failure: Raised in place of an answer.
        is_ready: What ``ready`` says.
        sent: Streams and images of all calls of ``classify``.
        cancelled: How many of these were cancelled.
        closed: How many times it was closed.
        early_failure: What ``refusal`` says.
        asked_early: Streams, images and bytes of all calls of ``refusal``.
        refused_early: How many calls of ``count_refusal``.
        lends_memory: Whether ``memory_for`` returns some.
        waiting_now: Images and bytes that wait, as ``waiting`` says.
    """

    def __init__(self, model: ServedModel = MODEL) -> None:
        self.model = model
        self.delay = 0.0
        self.failure: Exception | None = None
        self.is_ready = True
        self.sent: list[tuple[str, list[SentImage]]] = []
        self.cancelled = 0
        self.closed = 0
        self.early_failure: ServerError | None = None
        self.asked_early: list[tuple[str, int, int]] = []
        self.refused_early = 0
        self.lends_memory = False
        self.waiting_now = (0, 0)
        self.changed_images: tuple[ChangedImage, ...] = ()
        self._streams: dict[str, StreamInfo] = {}

    async def call(self, operation: Operation[Reply]) -> Reply:
        return await getattr(self, operation.name)(**vars(operation))

    async def ready(self) -> bool:
        return self.is_ready

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        self.asked_early.append((stream, images, nbytes))
        return self.early_failure

    def count_refusal(self) -> None:
        self.refused_early += 1

    def waiting(self) -> tuple[int, int]:
        return self.waiting_now

    def memory_for(self, length: int) -> memoryview | None:
        return memoryview(np.empty(length, np.uint8)) if self.lends_memory else None

    async def figures(self, own: RequestFigures) -> RequestFigures:
        return own

    async def classify(
        self, stream: str, images: Sequence[SentImage], timeout: float | None = None
    ) -> list[StreamAnswer]:
        self.sent.append((stream, list(images)))
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise StoppingError("the engine is being stopped")
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(self.delay)
        except TimeoutError:
            raise DeadlineExceededError("not answered in time") from None
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        info = (await self.create_stream(stream))[0]
        answers = [self._answer(info, image, info.images + n + 1) for n, image in enumerate(images)]
        self._streams[stream] = replace(info, images=info.images + len(images))
        return answers

    def _answer(self, info: StreamInfo, image: SentImage, version: int) -> StreamAnswer:
        data = image.data if isinstance(image.data, bytes) else image.data.tobytes()
        if data.startswith(BAD):
            error = f"{image.key} cannot be read as an image: it is bad"
            return StreamAnswer("", info.name, Result.failed(image.key, error, version), None, 1.0, 2.0)
        scores = np.random.default_rng(zlib.crc32(data)).random(len(info.classes), np.float32)
        probabilities = scores / scores.sum()
        order = np.argsort(-probabilities)
        top = tuple((info.classes[i], float(probabilities[i])) for i in order[:5])
        zero_shot = info.classes[len(data) % len(info.classes)]
        result = Result(image.key, *top[0], zero_shot, 0.5, top, True, 5, version, 0.25, 0.75)
        return StreamAnswer(f"{info.name}-{version}", info.name, result, probabilities, 1.0, 2.0)

    async def create_stream(
        self, stream: str, classes: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        known = self._streams.get(stream)
        if known is not None:
            if classes is not None and tuple(classes) != known.classes:
                raise ConflictError(f"stream {stream} has other classes")
            return known, False
        names = self._checked(classes)
        self._streams[stream] = StreamInfo(
            stream, names, "ramen", 0, 0, 0, 0, 0, 75, 1000, True, 1.7e9, None, FeedbackCounts()
        )
        return self._streams[stream], True

    def _checked(self, classes: Sequence[str] | None) -> tuple[str, ...]:
        if classes is None:
            return self.model.classes
        if len(set(classes)) < len(classes):
            raise InvalidRequestError("classes must differ from each other")
        return tuple(classes)

    async def streams(self, *, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        names = sorted(name for name in self._streams if name > after and name.startswith(prefix))
        return [self._streams[name] for name in names[:limit]]

    async def stream(self, stream: str) -> StreamInfo:
        if stream not in self._streams:
            raise NoSuchStreamError(f"there is no stream {stream}")
        return self._streams[stream]

    async def activity(self, stream: str) -> StreamActivity:
        await self.stream(stream)
        return StreamActivity(0.25, float("nan"), None, (("cat", 2), ("dog", 1)), self.changed_images, 3)

    async def reset(self, stream: str) -> StreamInfo:
        self._streams[stream] = replace(await self.stream(stream), images=0)
        return self._streams[stream]

    async def snapshot(self, stream: str) -> StreamInfo:
        return await self.stream(stream)

    async def delete(self, stream: str) -> None:
        await self.stream(stream)
        del self._streams[stream]

    async def set_classes(self, stream: str, classes: Sequence[str]) -> StreamInfo:
        self._streams[stream] = replace(await self.stream(stream), classes=self._checked(classes), images=0)
        return self._streams[stream]

    async def feedback(self, stream: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts:
        info = await self.stream(stream)
        known = [label for answer, label in labels if answer.startswith(stream)]
        right = sum(label == "cat" for label in known)
        counts = FeedbackCounts(len(known), right, 0, len(labels) - len(known))
        self._streams[stream] = replace(info, feedback=counts)
        return counts

    async def statistics(self) -> EngineStatistics:
        images = sum(info.images for info in self._streams.values())
        return EngineStatistics(
            images=images,
            requests=len(self.sent),
            batches=len(self.sent),
            changed=1,
            fallbacks=2,
            undecodable=3,
            overloaded=4,
            expired=5,
            cancelled=self.cancelled,
            waiting_images=7,
            waiting_bytes=8,
            queue_images=1024,
            queue_bytes=2**28,
            images_per_second=9.5,
            latency_ms={"p50": 1.0, "p90": 2.0, "p99": 3.0},
            compute_ms={},
            mean_batch=None,
            streams=len(self._streams),
            resident_streams=len(self._streams),
            resident_bytes=1000,
            streams_budget=2**30,
            parked=0,
            store_failures=0,
        )

    async def close(self) -> None:
        self.closed += 1
