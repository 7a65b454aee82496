"""One engine for all streams of a model: their images share the passes, each stream keeps its own memory."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from ramen.models.classifier import ZeroShotClassifier
from ramen.serve.batch_answers import FailureLog
from ramen.serve.decoders import Decoder
from ramen.serve.engine.activity import NO_ACTIVITY
from ramen.serve.engine.answer_ids import AnswerIds
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.computing import BatchComputing
from ramen.serve.engine.decoding_threads import DecodingThreads
from ramen.serve.engine.errors import BadRequestError, EngineError, StoppingError, StreamExistsError
from ramen.serve.engine.keeper import Keeper
from ramen.serve.engine.names import check_class_names, check_stream_name
from ramen.serve.engine.rates import Rates
from ramen.serve.engine.residency import Residency
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream import Stream
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_info import EngineStatistics, FeedbackCounts, StreamActivity, StreamInfo
from ramen.serve.engine.stream_methods import StreamMethods
from ramen.serve.engine.stream_places import open_places
from ramen.serve.engine.stream_table import StreamTable, unknown_stream
from ramen.serve.engine.ticket import Ticket
from ramen.serve.engine.waiting_room import WaitingRoom
from ramen.serve.http.backend import ServedModel
from ramen.utils import checks

_log = logging.getLogger("ramen")


class Engine:
    """Answers images of many streams; several threads may use it.

        with Engine(classifier, EngineSettings(state="state")) as engine:
            ticket = engine.submit("camera-1", [SentImage("a", jpeg)])
            (answer,) = ticket.future.result()

    Args:
        classifier: The model, with the classes of streams that do not set their own. It must know how to
            preprocess images.
        settings: What an operator decides.
        name: Of the model.
        method: The name of the method that adapts.
        parameters: Of the method.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        settings: EngineSettings | None = None,
        *,
        name: str = "model",
        method: str = "ramen",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings = settings or EngineSettings()
        failures = FailureLog()
        decoder = Decoder(classifier.preprocess, settings.decoding)
        self._methods = StreamMethods(classifier, method, parameters or {}, settings.stream_memory)
        self._model = _served_model(classifier, name, method, settings)
        self._rates, self._ids = Rates(), AnswerIds()
        self._places = open_places(settings.state)
        self._room = WaitingRoom(settings, self._rates.recent_rate)
        self._table = StreamTable(self._places, settings.max_streams)
        self._residency = Residency(settings, self._room, self._table, self._places, self._methods, failures)
        self._keeper = Keeper(self._room, self._residency, failures)
        self._decoding = DecodingThreads(decoder, settings.decoding_threads, self._room.decoded)
        self._thumbnails = ThreadPoolExecutor(1, thread_name_prefix="ramen-thumbnails")
        self._computing = BatchComputing(
            settings, classifier.device, self._ids, self._rates, failures, self._thumbnails
        )
        self._failures = failures
        self._closing = threading.Lock()
        self._closed = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ramen-engine", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self._model

    @property
    def settings(self) -> EngineSettings:
        """What the operator decided."""
        return self._settings

    # -- answers ------------------------------------------------------------------------------------

    def submit(self, stream: str, images: Sequence[SentImage], *, timeout: float | None = None) -> Ticket:
        """Have images answered; returns at once.

        Args:
            stream: The stream they belong to, in the order of these calls.
            images: At least one and at most ``max_batch``; they are answered together.
            timeout: Seconds after which they are dropped if they still wait.

        Raises:
            OverloadedError: Too much is waiting.
            BadRequestError: The name, the number or the kind of the images makes no sense.
            UnknownStreamError: There is no such stream, and images do not create one.
            StoppingError: The engine is being stopped.
        """
        self._check_images(images)
        if timeout is not None:
            timeout = _checked_timeout(timeout)
        found = self._stream_to_use(check_stream_name(stream))
        ticket = Ticket(found, images, timeout, self._room)
        self._room.admit(ticket)
        self._decoding.start(ticket)
        if found.resident is None:
            self._residency.request(found)
        return ticket

    def is_resident(self, stream: str) -> bool:
        """Whether a stream is in memory, so that ``submit`` has nothing to look up on the disk."""
        found = self._table.known(stream)
        return found is not None and found.resident is not None

    def _stream_to_use(self, name: str) -> Stream:
        if self._stopping:
            raise StoppingError("the server is being stopped and takes no more requests")
        return self._table.find_or_add(name)[0] if self._settings.create_on_use else self._table.find(name)

    def _check_images(self, images: Sequence[SentImage]) -> None:
        most = self._settings.max_batch
        if not 1 <= len(images) <= most:
            raise BadRequestError(f"a request must have 1 to {most} images, got {len(images)}")
        for image in images:
            data = image.data
            is_array = isinstance(data, np.ndarray) and data.dtype == np.uint8
            if not (is_array or isinstance(data, bytes)):  # a path, above all, is never opened
                raise BadRequestError(
                    f"image {image.key!r} must be bytes or an array of uint8, got {type(data).__name__}"
                )

    def _run(self) -> None:
        while (batch := self._room.take()) is not None:
            try:
                self._computing.answer(batch, partial(self._computed, batch))
            except Exception as error:  # a defect: the engine goes on
                self._failures.add("a batch could not be answered", error)
                for ticket in batch:
                    if not ticket.future.done():
                        ticket.future.set_exception(EngineError("the request could not be answered"))
            self._room.finish(batch)

    def _computed(self, batch: Sequence[Ticket]) -> None:
        streams = list(dict.fromkeys(ticket.stream for ticket in batch))
        self._residency.used(streams)
        for stream in streams:
            self._keeper.watch(stream)
        self._room.leave(batch)  # before clients have their answers, and send more

    # -- streams ------------------------------------------------------------------------------------

    def create_stream(self, name: str, classes: Sequence[str] | None = None) -> tuple[StreamInfo, bool]:
        """Create a stream unless it exists with these classes; also whether it is new.

        Raises:
            StreamExistsError: There is one, and with other classes.
        """
        check_stream_name(name)
        own = None if classes is None else self._methods.own_classes(check_class_names(classes))
        self._methods.create(own)  # before anything is written: these classes may be impossible
        self._refuse_when_stopping()
        stream, is_new = self._table.find_or_add(name)
        with self._room.held(stream):
            is_new = is_new and stream.is_new and not stream.facts
            if is_new:
                stream.set_facts(StreamFacts(classes=own))
            try:
                known = self._residency.current_facts(stream)
                if classes is not None and known.classes != own:
                    raise StreamExistsError(
                        f"there is a stream {name!r} already, and it has other classes: set its classes"
                    )
                self._residency.open(stream)
            except Exception:
                if is_new:
                    self._table.discard(stream)
                raise
            return self._info(stream), is_new

    def streams(self, *, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        """Streams by name, those behind ``after`` that begin with ``prefix``, at most ``limit``."""
        return [self._info(stream) for stream in self._table.listed(after, limit, prefix)]

    def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return self._info(self._find(name))

    def activity(self, name: str) -> StreamActivity:
        """What happened in a stream lately; nothing if it is not in memory."""
        resident = self._find(name).resident
        return NO_ACTIVITY if resident is None else resident.recent.activity()

    def reset(self, name: str) -> StreamInfo:
        """Forget what a stream has learned, and what was counted."""
        with self._held(name) as stream:
            resident = self._residency.open(stream)
            resident.method.reset()
            self._forget_answers(stream)
            stream.update(StreamFacts.forgotten)
            resident.recent.clear()
            self._flush(stream)
            self._residency.write_facts(stream)
            return self._info(stream)

    def snapshot(self, name: str) -> StreamInfo:
        """Return when everything that a stream has learned is on disk; EngineError if that cannot be."""
        with self._held(name) as stream:
            if stream.resident is not None:
                self._flush(stream)
                self._residency.write_facts(stream)
            return self._info(stream)

    def delete(self, name: str) -> None:
        """Forget a stream and remove its state; images that wait for it are dropped."""
        with self._held(name) as stream:
            self._residency.remove(stream)
        self._room.withdraw_all(stream, unknown_stream(name))
        self._ids.forget(stream.serial)

    def set_classes(self, name: str, classes: Sequence[str]) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        self._find(name)
        own = self._methods.own_classes(check_class_names(classes))
        self._methods.create(own)  # before anything is forgotten: these classes may be impossible
        with self._held(name) as stream:
            if self._residency.current_facts(stream).classes != own:
                self._residency.replace_state(stream, own)
                self._forget_answers(stream)
            self._residency.open(stream)
            return self._info(stream)

    def feedback(self, name: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts:
        """Take true labels, as pairs of an answer's id and a class; returns the stream's counts."""
        stream = self._find(name)
        classes = self._methods.classes_of(self._table.facts(stream).classes)
        numbers = {name: number for number, name in enumerate(classes)}
        for _, label in labels:
            if label not in numbers:
                raise BadRequestError(f"label {label!r} is none of the classes of stream {name!r}")

        def compared(facts: StreamFacts) -> StreamFacts:
            counts = facts.feedback
            for answer, label in labels:
                counts = self._ids.compare(stream.serial, answer, numbers[label], counts)
            return replace(facts, feedback=counts)

        counts = stream.update(compared).feedback
        self._keeper.watch(stream)
        return counts

    @contextmanager
    def _held(self, name: str) -> Iterator[Stream]:
        """A block in which nobody else uses the stream of that name."""
        stream = self._find(name)
        with self._room.held(stream):
            if stream.gone:  # it was deleted meanwhile
                raise unknown_stream(name)
            yield stream

    def _find(self, name: str) -> Stream:
        self._refuse_when_stopping()
        return self._table.find(check_stream_name(name))

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise StoppingError("the server is being stopped")

    def _forget_answers(self, stream: Stream) -> None:
        self._ids.forget(stream.serial)
        stream.renumber()

    def _flush(self, stream: Stream) -> None:
        resident = stream.resident
        if resident is None or resident.store is None:
            raise EngineError(f"the state of stream {stream.name!r} cannot be written")
        try:
            resident.store.flush()
        except Exception as error:
            raise EngineError(f"the state of stream {stream.name!r} cannot be written: {error}") from None

    def _info(self, stream: Stream) -> StreamInfo:
        facts, resident = self._table.facts(stream), stream.resident
        filled = None if resident is None else resident.fill()
        return StreamInfo(
            name=stream.name,
            classes=self._methods.classes_of(facts.classes),
            method=self._methods.method,
            images=facts.images,
            changed=facts.changed,
            fallbacks=facts.fallbacks,
            errors=facts.errors,
            entries=None if filled is None else filled[0],
            capacity=None if filled is None else filled[1],
            memory_bytes=0 if resident is None else resident.bytes,
            resident=resident is not None,
            created=facts.created,
            last_used=facts.last_used,
            feedback=facts.feedback,
            recovered=stream.recovered,
        )

    # -- the whole ----------------------------------------------------------------------------------

    def statistics(self) -> EngineStatistics:
        """The whole engine."""
        room, rates, residency = self._room, self._rates, self._residency
        return EngineStatistics(
            **vars(self._computing.counters),
            overloaded=room.overloaded,
            expired=room.expired,
            cancelled=room.cancelled,
            waiting_images=room.images,
            waiting_bytes=room.bytes,
            queue_images=self._settings.max_queue_images,
            queue_bytes=self._settings.max_queue_bytes,
            images_per_second=rates.images_per_second(),
            latency_ms=rates.latency_ms(),
            compute_ms=rates.compute_ms(),
            mean_batch=rates.mean_batch(),
            streams=len(self._table),
            resident_streams=len(residency),
            resident_bytes=residency.bytes,
            streams_budget=self._settings.streams_budget,
            parked=residency.parked,
            store_failures=residency.store_failures,
        )

    def ready(self) -> bool:
        """Whether images can be answered now."""
        return not self._stopping and self._thread.is_alive()

    def close(self) -> None:
        """Finish what was accepted, write all states, and stop; does nothing the second time."""
        self._stopping = True
        self._room.close()
        with self._closing:
            if self._closed:
                return
            self._thread.join()
            self._decoding.close()
            self._keeper.close()
            self._residency.close()
            self._thumbnails.shutdown()
            self._places.close()
            self._closed = True

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked_timeout(timeout: float) -> float:
    try:
        return checks.number("timeout", timeout, 0)
    except (TypeError, ValueError) as error:
        raise BadRequestError(str(error)) from None


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
