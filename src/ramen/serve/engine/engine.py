"""One engine for all streams of a model: their images share the passes, each stream keeps its own memory.

The engine is an event loop and threads that own what they use. The loop has the queue, the streams and the
counts; one thread has the device and the methods; others have files, or wait for the device. Nothing is
shared between them, so nothing is locked.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen.client.operations import (
    Answers,
    ChangedImage,
    Classify,
    EngineStatistics,
    FailedError,
    GetModel,
    GetStatistics,
    InvalidRequestError,
    IsReady,
    Operation,
    Reply,
    SentImage,
    ServedModel,
    ServerOverloadedError,
)
from ramen.client.result import LABEL, ZERO_SHOT_LABEL, Result
from ramen.images.thumbnails import small_jpeg
from ramen.models.classifier import ZeroShotClassifier
from ramen.predict.answers import BatchAnswers, BatchNumbers, FailureLog
from ramen.predict.decoding import Decoder
from ramen.serve.decoding import BATCHES_AHEAD, Decoding, ThreadDecoder
from ramen.serve.engine.computing import Computing, Part, parts_of
from ramen.serve.engine.scheduler import Request, Scheduler
from ramen.serve.engine.statistics import AnswerIds, Counters, Rates
from ramen.serve.engine.stream import StreamFacts, StreamFolders
from ramen.serve.engine.stream_cache import StreamCache, StreamMethods
from ramen.serve.engine.streams import Streams
from ramen.serve.pixels import DecodedImages, PixelBatches, PixelRules
from ramen.serve.settings import EngineSettings
from ramen.state import SaveTimes
from ramen.utils import checks
from ramen.utils.workers import available_cores

_THUMBNAIL = 128  # pixels of the longer side

Value = TypeVar("Value")


class Engine:
    """Answers images of many streams, from the event loop that first calls it.

        engine = Engine(classifier, EngineSettings(state="state"))
        (answer,) = await engine.call(Classify("camera-1", [SentImage("a", jpeg)]))
        await engine.close()

    Args:
        classifier: The model, with the classes of streams that do not set their own. It must know how to
            preprocess images.
        settings: What an operator decides.
        name: Of the model.
        method: The name of the method that adapts.
        parameters: Of the method.
        shard: Which of how many engines of a service this is; each has a part of the streams.

    Attributes:
        model: What is served.
        settings: What the operator decided.
        rules: Which images are resized where.
        device: Where it computes.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        settings: EngineSettings | None = None,
        *,
        name: str = "model",
        method: str = "ramen",
        parameters: Mapping[str, Any] | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.settings = settings = settings or EngineSettings()
        self._folders = folders = StreamFolders(settings.state, shard)
        overlapping = SaveTimes(settings.save_every).by_clock and settings.overlaps_on(classifier.device)
        self._failures = FailureLog()
        methods = StreamMethods(classifier, method, parameters or {}, settings.stream_memory)
        self.model = _served_model(classifier, name, method, settings)
        self._counters, self._rates, self._ids = Counters(), Rates(), AnswerIds()
        self._scheduler = Scheduler(
            settings, self._rates.recent_rate, self._rates.usual_step_seconds, overlapping=overlapping
        )
        self._cache = StreamCache(settings, self._scheduler, folders, methods, self._failures)
        self._streams = Streams(settings, self._scheduler, folders, self._cache, methods, self._ids)
        preprocess, limits = classifier.preprocess, settings.decoding
        self.device = device = classifier.device
        assert preprocess is not None
        self.rules = PixelRules(preprocess, limits.max_pixels, resizes=device.type == "cuda")
        decoders = [ThreadDecoder(Decoder(preprocess, limits)) for _ in range(available_cores())]
        self._decoding = Decoding(decoders, self.rules, BATCHES_AHEAD * settings.max_batch)
        self._thumbnails = ThreadPoolExecutor(1, thread_name_prefix="ramen-thumbnails")
        batches = PixelBatches(preprocess, device)
        self._computing = Computing(settings, device, batches, self._failures, overlapping=overlapping)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        classifier.fingerprint()  # hashes the model: better now than when the first state is written
        answers = BatchAnswers(methods.create(), self._failures, all_probabilities=True)
        self._computing.warm_up(answers)

    # -- operations ---------------------------------------------------------------------------------

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do something; if the caller is cancelled, images that still wait are dropped."""
        self._start()
        if isinstance(operation, Classify):
            request = await self.submit(operation.stream, operation.images, operation.timeout)
            try:
                return await request.reply  # type: ignore[return-value]
            except asyncio.CancelledError:
                self.cancel(request)
                raise
        if isinstance(operation, GetModel):
            return self.model  # type: ignore[return-value]
        if isinstance(operation, IsReady):
            return self.ready()  # type: ignore[return-value]
        if isinstance(operation, GetStatistics):
            return self._statistics()  # type: ignore[return-value]
        work: Coroutine[Any, Any, Reply] = getattr(self._streams, operation.name)(*vars(operation).values())
        return await asyncio.shield(self._begin_task(work))  # what it does to a stream is done to the end

    async def submit(self, stream: str, images: Sequence[SentImage], timeout: float | None = None) -> Request:
        """Let images wait for their turn, and decode them in this process; see ``admit``."""
        _check_kinds(images)
        ready = self._decoding.ready(images)
        keys, nbytes = [image.key for image in images], sum(image.nbytes for image in images)
        request = await self.admit(stream, keys, nbytes, timeout)
        done = partial(self.decoded, request)
        if ready is None:
            self._decoding.put(stream, images, request.reply, done)
        else:
            done(ready)
        return request

    async def admit(
        self, stream: str, keys: Sequence[str], nbytes: int, timeout: float | None = None
    ) -> Request:
        """Let images wait for their turn, which are decoded elsewhere: ``decoded`` is called with them.

        Args:
            stream: The stream they belong to, in the order of these calls.
            keys: At least one image, and at most ``max_batch``; they are answered together.
            nbytes: Of the images, as they were sent.
            timeout: Seconds after which they are dropped if they still wait.

        Raises:
            ServerOverloadedError: Too much is waiting.
            InvalidRequestError: The name or the number of the images makes no sense.
            NoSuchStreamError: There is no such stream, and images do not create one.
            StoppingError: The engine is being stopped.
        """
        self._start()
        self._check_room(len(keys), nbytes)
        if timeout is not None:
            timeout = _checked_timeout(timeout)
        found = self._streams.known(stream) or self._streams.for_images(stream)
        assert self._loop is not None
        request = Request(found, keys, nbytes, timeout, self._loop.create_future())
        request.reply.add_done_callback(lambda _: self._streams.forget_unused(found))
        try:
            self._scheduler.put(request)
        except Exception:
            self._streams.forget_unused(found)
            raise
        if found.loaded is None and not self._streams.is_coming(found):
            self._cache.request(found)
        return request

    def decoded(self, request: Request, images: DecodedImages) -> None:
        """All images of a request are decoded; a stream exists from its first one that could be."""
        stream = request.stream
        if stream.is_new and self._streams.is_coming(stream) and request.is_waiting:
            if len(images.errors) == len(request):
                self._refuse(request, images.errors)
                return
            self._streams.accept(stream)
            self._cache.request(stream)
        self._scheduler.decoded(request, images)

    def cancel(self, request: Request) -> None:
        """Nobody wants the answers of a request any more."""
        self._scheduler.cancel(request)

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerOverloadedError | None:
        """Why so much would be refused now; None if it may be taken, or the disk would have to be asked.

        A front asks before it reads a request, which then costs little, and calls ``count_refusal`` if it
        refuses it.

        Args:
            stream: The stream that the images belong to.
            images: How many there are, at least.
            nbytes: Likewise their bytes.
        """
        settings, stopping = self.settings, self._streams.stopping
        fits = images <= settings.max_queue_images and nbytes <= settings.max_queue_bytes
        found = None if stopping or not fits else self._streams.known(stream)  # put says what never fits
        return None if found is None else self._scheduler.refusal(found, images, nbytes)

    def count_refusal(self) -> None:
        """A front has refused a request because of what ``refusal`` says."""
        self._scheduler.overloaded += 1

    def waiting(self) -> tuple[int, int]:
        """Images that wait or are being answered, and their bytes."""
        return self._scheduler.images, self._scheduler.nbytes

    def memory_for(self, length: int) -> memoryview | None:
        """Memory of this process will do."""
        return None

    async def figures(self, own: Value) -> Value:
        """What all workers have counted of requests: there is one."""
        return own

    def _check_room(self, images: int, nbytes: int) -> None:
        most = min(self.settings.max_batch, self.settings.max_queue_images)  # more would never fit
        if not 1 <= images <= most:
            raise InvalidRequestError(f"a request must have 1 to {most} images, got {images}")
        most_bytes = self.settings.max_queue_bytes
        if nbytes > most_bytes:
            raise InvalidRequestError(f"a request must have at most {most_bytes} bytes, got {nbytes}")

    # -- from images to answers, on the loop ---------------------------------------------------------

    def _start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._cache.start()
            self._running = asyncio.create_task(self._run())

    def _begin_task(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _refuse(self, request: Request, errors: Mapping[int, str]) -> None:
        """Answer a request without one image, for a stream that does not exist."""
        self._scheduler.withdraw(request)
        self._counters.requests += 1
        self._counters.undecodable += len(errors)
        queued_ms = 1000 * (time.monotonic() - request.arrived)
        request.reply.set_result(
            Answers(
                stream=request.stream.name,
                keys=request.keys,
                errors=errors,
                rows=np.empty((0, LABEL)),
                probabilities=np.empty((0, 0), np.float32),
                names={},
                version=0,
                retrieves=False,
                start="",
                first=0,
                queued_ms=queued_ms,
                computed_ms=0.0,
            )
        )

    async def _run(self) -> None:
        while batch := await self._scheduler.next_batch():
            self._begin_task(self._answer(batch))

    async def _answer(self, batch: Sequence[Request]) -> None:
        """Compute the answers for a batch, send them, and save what was learned."""
        parts: Sequence[Part] = ()
        answers: list[list[Answers]] = []
        try:
            parts = parts_of(batch)
            started = await self._computing.compute(parts)
            computed_ms = 1000 * (time.monotonic() - started)
            answers = [self._answers(part, started, computed_ms) for part in parts]
            self._count(batch, parts, answers, computed_ms)
        except Exception as error:  # a defect: the engine goes on
            self._failures.add("a batch could not be answered", error)
            for request in batch:
                request.fail(FailedError("the request could not be answered"))
        self._scheduler.done(batch)  # before clients have their answers, and send more
        for part, found in zip(parts, answers, strict=False):
            for request, one in zip(part.requests, found, strict=True):
                if not request.reply.done():
                    request.reply.set_result(one)
        try:
            await self._computing.save(list(zip(parts, answers, strict=False)))
        finally:
            self._scheduler.saved(batch)
            self._cache.trim()

    def _answers(self, part: Part, started: float, computed_ms: float) -> list[Answers]:
        """The answers for each request of a part."""
        stream, loaded, numbers = part.stream, part.loaded, part.numbers
        classifier = loaded.method.classifier
        classes, retrieves = classifier.classes, loaded.method.retrieves
        if numbers is None:  # no image has pixels
            numbers = BatchNumbers(np.empty((0, LABEL + 1)), np.empty((0, len(classes)), np.float32), 0)
        good = np.ones(len(numbers.rows), bool)
        good[list(numbers.errors)] = False
        rows = numbers.rows[good] if numbers.errors else numbers.rows
        labels, before = rows[:, LABEL], rows[:, ZERO_SHOT_LABEL]
        number = self._ids.add(stream.serial, labels, before)
        self._note(part, rows, numbers.zero_shot_fallbacks)
        named = [ZERO_SHOT_LABEL, *range(LABEL, rows.shape[1], 2)]
        assert numbers.probabilities is not None
        found: list[Answers] = []
        place = taken = 0  # among those with pixels, and all answers
        for request, images in zip(part.requests, part.images, strict=True):
            errors = dict(images.errors)
            own = slice(place, place)
            for n, key in enumerate(request.keys):
                if n in images.errors:
                    continue
                if own.stop in numbers.errors:
                    errors[n] = f"{key} {numbers.errors[own.stop]}"
                own = slice(place, own.stop + 1)
            chosen = numbers.rows[own][good[own]] if numbers.errors else numbers.rows[own]
            chances = numbers.probabilities[own]
            found.append(
                Answers(
                    stream.name,
                    request.keys,
                    errors,
                    chosen,
                    chances[good[own]] if numbers.errors else chances,
                    {int(n): classes[int(n)] for n in set(chosen[:, named].ravel().tolist())},
                    part.version,
                    retrieves,
                    self._ids.start,
                    number + taken,
                    1000 * (started - request.arrived),
                    computed_ms,
                )
            )
            place, taken = own.stop, taken + len(chosen)
        return found

    def _note(self, part: Part, rows: NDArray[np.float64], fallbacks: int) -> None:
        """What the answers for a part change in what is known of its stream."""
        stream, loaded = part.stream, part.loaded
        facts = stream.facts or StreamFacts()
        changed = rows[:, LABEL] != rows[:, ZERO_SHOT_LABEL]
        stream.update(
            last_used=time.time(),
            images=facts.images + len(rows),
            changed=facts.changed + int(changed.sum()),
            fallbacks=facts.fallbacks + fallbacks,
            errors=facts.errors + sum(map(len, part.requests)) - len(rows),
        )
        loaded.recent.add(rows)
        if loaded.recent.images.maxlen and changed.any():
            self._keep_changed(part)

    def _keep_changed(self, part: Part) -> None:
        """Make thumbnails of images whose label changed."""
        assert part.numbers is not None
        recent, results = part.loaded.recent, part.loaded.answers.results(part.keys, part.numbers).results
        shown = [(images, place) for images in part.images for place, size in enumerate(images.sizes) if size]
        for result, (images, place) in zip(results, shown, strict=True):
            if result.changed:
                assert self._loop is not None
                pixels = images.image(place)  # its memory is another request's soon
                made = self._loop.run_in_executor(self._thumbnails, _changed_image, result, pixels)
                self._begin_task(_added(made, recent.images.appendleft))

    def _count(
        self,
        batch: Sequence[Request],
        parts: Sequence[Part],
        answers: Sequence[Sequence[Answers]],
        computed_ms: float,
    ) -> None:
        now, counters = time.monotonic(), self._counters
        images = sum(map(len, batch))
        errors = sum(len(one.errors) for found in answers for one in found)
        counters.images += images - errors
        counters.requests += len(batch)
        counters.batches += 1
        counters.undecodable += errors
        for part, found in zip(parts, answers, strict=True):
            rows = np.concatenate([one.rows for one in found])
            counters.changed += int((rows[:, LABEL] != rows[:, ZERO_SHOT_LABEL]).sum())
            counters.fallbacks += 0 if part.numbers is None else part.numbers.zero_shot_fallbacks
            self._cache.answered(part.stream, part.bytes)
        latencies = [1000 * (now - request.arrived) for request in batch for _ in range(len(request))]
        self._rates.add(images, computed_ms, latencies)

    # -- the whole ----------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether images can be answered now."""
        return not self._streams.stopping and (self._running is None or not self._running.done())

    def _statistics(self) -> EngineStatistics:
        scheduler, rates, cache = self._scheduler, self._rates, self._cache
        return EngineStatistics(
            **vars(self._counters),
            overloaded=scheduler.overloaded,
            expired=scheduler.expired,
            cancelled=scheduler.cancelled,
            waiting_images=scheduler.images,
            waiting_bytes=scheduler.nbytes,
            queue_images=self.settings.max_queue_images,
            queue_bytes=self.settings.max_queue_bytes,
            images_per_second=rates.images_per_second(),
            latency_ms=rates.latency_ms(),
            compute_ms=rates.compute_ms(),
            mean_batch=rates.mean_batch(),
            streams=len(self._streams),
            resident_streams=len(cache),
            resident_bytes=cache.bytes,
            streams_budget=self.settings.streams_budget,
            parked=cache.evictions,
            store_failures=cache.store_failures,
        )

    async def close(self) -> None:
        """Finish what was accepted, write all states, and stop; does nothing the second time."""
        self._start()
        self._streams.stopping = True
        self._scheduler.close()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close an engine that no loop has called; whoever has called it closes it there."""
        if self._loop is None:
            asyncio.run(self.close())

    async def _close(self) -> None:
        assert self._running is not None
        await self._running
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._decoding.close()
        await self._cache.close()
        self._computing.close()
        self._thumbnails.shutdown()
        await asyncio.to_thread(self._folders.close)


def _changed_image(result: Result, pixels: NDArray[np.uint8]) -> ChangedImage:
    """A thumbnail of an image ``(H, W, 3)`` whose label changed."""
    thumbnail = small_jpeg(Image.fromarray(pixels), _THUMBNAIL)
    known = result.label, result.probability, result.zero_shot_label, result.zero_shot_probability
    return ChangedImage(result.key, *known, time.time(), thumbnail)  # type: ignore[arg-type]


async def _added(made: Awaitable[Value], add: Callable[[Value], None]) -> None:
    add(await made)


def _checked_timeout(timeout: float) -> float:
    try:
        return checks.number("timeout", timeout, 0)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(str(error)) from None


def _check_kinds(images: Sequence[SentImage]) -> None:
    for image in images:
        data = image.data
        is_array = isinstance(data, np.ndarray) and data.dtype == np.uint8
        if not (is_array or isinstance(data, bytes)):  # a path, above all, is never opened
            raise InvalidRequestError(
                f"image {image.key!r} must be bytes or an array of uint8, got {type(data).__name__}"
            )


def _served_model(
    classifier: ZeroShotClassifier, name: str, method: str, settings: EngineSettings
) -> ServedModel:
    assert classifier.image_size is not None
    return ServedModel(
        name=name,
        method=method,
        classes=classifier.classes,
        image_size=classifier.image_size,
        max_batch=settings.max_batch,
        can_set_classes=classifier.encode_text is not None,
        device=str(classifier.device),
        dtype=str(classifier.dtype).removeprefix("torch."),
    )
