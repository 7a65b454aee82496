"""One engine for all streams of a model: their images share the passes, each stream keeps its own memory."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch

from ramen.models.classifier import ZeroShotClassifier
from ramen.serve.batch_answers import BatchAnswers, FailureLog
from ramen.serve.decoders import Decoder
from ramen.serve.engine.answer_ids import AnswerIds
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.computing import BatchComputing, BegunBatch
from ramen.serve.engine.decoding_threads import DecodingThreads
from ramen.serve.engine.errors import BadRequestError, EngineError, OverloadedError
from ramen.serve.engine.group_decoding import FILES_PER_MESSAGE, GroupDecoder, InProcess, InThread
from ramen.serve.engine.keeper import Keeper
from ramen.serve.engine.names import check_stream_name
from ramen.serve.engine.pinned_regions import pinned_region
from ramen.serve.engine.pixel_rows import MOST_PIXELS, PixelRows
from ramen.serve.engine.rates import Rates
from ramen.serve.engine.residency import Residency
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream_info import EngineStatistics
from ramen.serve.engine.stream_management import StreamManagement
from ramen.serve.engine.stream_methods import StreamMethods
from ramen.serve.engine.stream_places import open_places
from ramen.serve.engine.stream_table import StreamTable
from ramen.serve.engine.ticket import Ticket
from ramen.serve.engine.waiting_room import WaitingRoom
from ramen.serve.engine.warming_up import warm_up
from ramen.serve.http.backend import ServedModel
from ramen.serve.shared_memory import Lender, SharedRegion, SharedRegions
from ramen.serve.store.save_times import SaveTimes
from ramen.utils import checks

_BATCHES_AHEAD = 4  # that may be decoded and wait
_BATCHES_ANSWERED = 3  # that are being answered, or shown as thumbnails
_MOST_PINNED = 512 * 2**20  # bytes that images are decoded into before others are used


class Engine(StreamManagement):
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
        regions: Memory of other processes in which images may be sent.
    """

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        settings: EngineSettings | None = None,
        *,
        name: str = "model",
        method: str = "ramen",
        parameters: Mapping[str, Any] | None = None,
        regions: Sequence[SharedRegion] = (),
    ) -> None:
        self._settings = settings = settings or EngineSettings()
        overlapping = SaveTimes(settings.save_every).by_clock and settings.overlaps_on(classifier.device)
        self._failures = failures = FailureLog()
        decoder = Decoder(classifier.preprocess, settings.decoding)
        methods = StreamMethods(classifier, method, parameters or {}, settings.stream_memory)
        self._model = _served_model(classifier, name, method, settings)
        self._rates, ids = Rates(), AnswerIds()
        self._places = open_places(settings.state)
        room = WaitingRoom(
            settings, self._rates.recent_rate, self._rates.usual_step_seconds, overlapping=overlapping
        )
        table = StreamTable(self._places, settings.max_streams)
        residency = Residency(settings, room, table, self._places, methods, failures)
        super().__init__(room, table, residency, methods, ids, Keeper(room, residency, failures))
        self._decoding, rows = _decoding(settings, decoder, classifier.device, regions, room)
        self._thumbnails = ThreadPoolExecutor(1, thread_name_prefix="ramen-thumbnails")
        self._computing = BatchComputing(
            settings, classifier.device, rows, ids, self._rates, failures, self._thumbnails
        )
        classifier.fingerprint()  # hashes the model: better now than when the first state is written
        warm_up(self._computing, BatchAnswers(methods.create(None), failures, all_probabilities=True))
        self._answering: ThreadPoolExecutor | None = None
        if overlapping:
            self._answering = ThreadPoolExecutor(1, thread_name_prefix="ramen-answers")
        self._closing = threading.Lock()
        self._closed = False
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

    def refusal(self, stream: str, images: int, nbytes: int) -> OverloadedError | None:
        """Why ``submit`` would refuse so much now; None if it may take it, or would have to look at the disk.

        A front asks before it reads a request, which then costs little, and calls ``count_refusal`` if it
        refuses it.

        Args:
            stream: The stream that the images belong to.
            images: How many there are, at least.
            nbytes: Likewise their bytes.
        """
        settings = self._settings
        fits = images <= settings.max_queue_images and nbytes <= settings.max_queue_bytes
        found = None if self._stopping or not fits else self._table.known(stream)  # it says what never fits
        return None if found is None else self._room.refusal(found, images, nbytes)

    def waiting(self) -> tuple[int, int]:
        """Images that wait or are being answered, and their bytes."""
        return self._room.images, self._room.bytes

    def count_refusal(self) -> None:
        """A front has refused a request because of what ``refusal`` says."""
        self._room.count_refusal()

    def is_resident(self, stream: str) -> bool:
        """Whether a stream is in memory, so that ``submit`` has nothing to look up on the disk."""
        found = self._table.known(stream)
        return found is not None and found.resident is not None

    def _stream_to_use(self, name: str) -> ServedStream:
        self._refuse_when_stopping()
        return self._table.find_or_add(name)[0] if self._settings.create_on_use else self._table.find(name)

    def _check_images(self, images: Sequence[SentImage]) -> None:
        most = min(self._settings.max_batch, self._settings.max_queue_images)  # more would never fit
        if not 1 <= len(images) <= most:
            raise BadRequestError(f"a request must have 1 to {most} images, got {len(images)}")
        for image in images:
            data = image.data
            is_array = isinstance(data, np.ndarray) and data.dtype == np.uint8
            if not (is_array or isinstance(data, bytes)):  # a path, above all, is never opened
                raise BadRequestError(
                    f"image {image.key!r} must be bytes or an array of uint8, got {type(data).__name__}"
                )
        nbytes, most_bytes = sum(image.nbytes for image in images), self._settings.max_queue_bytes
        if nbytes > most_bytes:
            raise BadRequestError(f"a request must have at most {most_bytes} bytes, got {nbytes}")

    def _run(self) -> None:
        while (tickets := self._room.take()) is not None:
            self._decoding.answering()
            self._answer(tickets)
            del tickets  # which would keep the memory of their images until the next ones come

    def _answer(self, tickets: Sequence[Ticket]) -> None:
        try:
            begun = self._computing.begin(tickets)
        except Exception as error:  # a defect: the engine goes on
            self._give_up(tickets, error)
            self._room.finish(tickets)
            return
        if self._answering is None:
            self._finish(begun)
        else:
            self._answering.submit(self._finish, begun)

    def _finish(self, batch: BegunBatch) -> None:
        try:
            self._computing.finish(batch, partial(self._computed, batch.tickets))
        except Exception as error:  # likewise
            self._give_up(batch.tickets, error)
        self._room.finish(batch.tickets)
        self._residency.trim(dict.fromkeys(ticket.stream for ticket in batch.tickets))

    def _give_up(self, tickets: Sequence[Ticket], error: Exception) -> None:
        self._failures.add("a batch could not be answered", error)
        for ticket in tickets:
            if not ticket.future.done():
                ticket.future.set_exception(EngineError("the request could not be answered"))

    def _computed(self, batch: Sequence[Ticket]) -> None:
        streams = list(dict.fromkeys(ticket.stream for ticket in batch))
        self._residency.used(streams)
        for stream in streams:
            self._keeper.watch(stream)
        self._room.leave(batch)  # before clients have their answers, and send more

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
            if self._answering is not None:
                self._answering.shutdown()
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


def _decoding(
    settings: EngineSettings,
    decoder: Decoder,
    device: torch.device,
    regions: Sequence[SharedRegion],
    room: WaitingRoom,
) -> tuple[DecodingThreads, PixelRows]:
    """What decodes, and the memory that it decodes into."""
    processes, ahead = settings.processes_for(device), _BATCHES_AHEAD * settings.max_batch
    most = settings.decoding.max_pixels
    if not processes:
        rows = PixelRows(decoder.preprocess, device, max_batch=settings.max_batch, max_pixels=most)
        decoders: list[GroupDecoder] = [InThread(decoder) for _ in range(settings.decoding_threads)]
        return DecodingThreads(decoders, rows, 1, ahead, room.decoded), rows
    # for what is ahead, the ticket beyond that, and what is being answered
    images = ahead + (1 + _BATCHES_ANSWERED) * settings.max_batch
    height, width = decoder.preprocess.size
    shared = [SharedRegion(2 * images * 3 * max(height * width, MOST_PIXELS))]  # twice: there may be gaps
    if device.type == "cuda":  # images are rarely as large as they may be: a quarter is enough for most
        pinned = pinned_region(min(_MOST_PINNED, shared[0].size // 4), device)
        shared = [*filter(None, [pinned]), *shared]
    lenders = [Lender(region) for region in shared]
    rows = PixelRows(decoder.preprocess, device, lenders, max_batch=settings.max_batch, max_pixels=most)
    known = SharedRegions([*shared, *regions])
    decoders = [InProcess(decoder, known) for _ in range(processes)]
    return DecodingThreads(decoders, rows, FILES_PER_MESSAGE, ahead, room.decoded), rows


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
