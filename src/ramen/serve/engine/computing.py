"""Answers a batch: the images of all its streams share the passes, each stream keeps to its own memory.

A batch is begun, which a GPU goes on with by itself, and finished, which waits for what it has computed. So
the next one may be begun while this one is being computed and its answers are sent.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.methods import Method, predict_together
from ramen.methods._answers import Prediction
from ramen.serve.batch_answers import (
    BatchAnswers,
    BatchResults,
    FailureLog,
    PendingAnswers,
    begin_together,
)
from ramen.serve.decoders import DecodedSource
from ramen.serve.engine.answer_ids import AnswerIds
from ramen.serve.engine.answers import StreamAnswer
from ramen.serve.engine.pixel_rows import PixelRows
from ramen.serve.engine.rates import Rates
from ramen.serve.engine.served_stream import Resident, ServedStream
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.ticket import Ticket
from ramen.serve.result import Result


@dataclass
class Counters:
    """What was answered since the engine was started."""

    images: int = 0
    requests: int = 0
    batches: int = 0
    changed: int = 0
    fallbacks: int = 0
    undecodable: int = 0


class _Part:
    """The images of one stream in a batch."""

    def __init__(self, stream: ServedStream, tickets: Sequence[Ticket]) -> None:
        assert stream.resident is not None
        self.stream, self.tickets = stream, tickets
        self.resident: Resident = stream.resident
        self.sources: list[DecodedSource] = [
            source for ticket in tickets for source in (ticket.decoded or ())
        ]
        self.keys = [source.key for source in self.sources if source.error is None]  # of what has pixels
        self.groups = [ticket.pixels for ticket in tickets if ticket.pixels]
        self.pixels: Tensor | None = None  # all of these, as soon as they are on the device
        self.version = 0  # how many images its method had seen after them

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class _Answered:
    """A result for each image of a part, with its probabilities and its id."""

    results: list[Result]
    answers: list[StreamAnswer]
    fallbacks: int


@dataclass(frozen=True)
class BegunBatch:
    """A batch that is being computed.

    Attributes:
        tickets: All of them.
        parts: Their images by stream, with what is on its way for each; None if there is nothing.
        started: When it was begun, on the monotonic clock.
    """

    tickets: Sequence[Ticket]
    parts: list[tuple[_Part, PendingAnswers | Exception | None]]
    started: float


class BatchComputing:
    """Answers batches, one after the other; one thread may begin a batch while another finishes the last one.

    Args:
        settings: How batches are computed.
        device: Where.
        rows: Makes batches of pixels.
        ids: Names answers.
        rates: Learns what was answered, and how quickly.
        failures: Where errors are logged.
        threads: For thumbnails.

    Attributes:
        batch_sizes: That passes through the encoder have, the smallest first; empty for whatever comes.
    """

    def __init__(
        self,
        settings: EngineSettings,
        device: torch.device,
        rows: PixelRows,
        ids: AnswerIds,
        rates: Rates,
        failures: FailureLog,
        threads: Executor,
    ) -> None:
        self._invariant, self._rows = settings.invariant, rows
        self.batch_sizes = _batch_sizes(settings, device)
        self._ids, self._rates, self._failures, self._threads = ids, rates, failures, threads
        self._methods = threading.Lock()  # methods of streams, and the device, serve one thread at a time
        self.counters = Counters()

    def begin(self, tickets: Sequence[Ticket]) -> BegunBatch:
        """Compute answers for tickets, whose streams are in memory; does not wait for a GPU.

        Args:
            tickets: Resolved by ``finish``.
        """
        started = time.monotonic()
        with self._methods:
            parts = _parts(tickets)
            return BegunBatch(tickets, list(zip(parts, self._begin(parts), strict=True)), started)

    def finish(self, batch: BegunBatch, computed: Callable[[], None]) -> None:
        """Answer all tickets of a batch.

        Args:
            batch: Its tickets are resolved when this returns.
            computed: Called before that, as soon as the answers are known.
        """
        outcomes = [self._results(part, pending) for part, pending in batch.parts]
        computed_ms = 1000 * (time.monotonic() - batch.started)
        answered = [
            self._answered(part, outcome, batch.started, computed_ms)
            for (part, _), outcome in zip(batch.parts, outcomes, strict=True)
        ]
        self._count(batch.tickets, answered, computed_ms)
        computed()
        for (part, _), one in zip(batch.parts, answered, strict=True):
            _resolve(part.tickets, one.answers)
        with self._methods:
            for (part, _), one in zip(batch.parts, answered, strict=True):
                self._save(part, one)

    def begin_blank(self, answers: BatchAnswers, tickets: Sequence[int]) -> PendingAnswers | Exception:
        """Compute blank images as if they had been sent, for nobody; does not wait for a GPU.

        Args:
            answers: Of a method that is used for nothing else.
            tickets: How many images each ticket has.
        """
        pixels = self._rows.on_device([[self._rows.blank(count)] for count in tickets])
        predictions = self._predict_together([(answers.method, answers.images(pixels))])
        return begin_together([answers], predictions)[0]

    # -- numbers ------------------------------------------------------------------------------------

    def _begin(self, parts: Sequence[_Part]) -> list[PendingAnswers | Exception | None]:
        """What is on its way for each part, or why there is nothing; None if nothing could be computed."""
        filled = [part for part in parts if len(part)]
        found: dict[_Part, PendingAnswers | Exception] = {}
        try:
            if filled:
                predictions = self._predict(filled)
                begun = begin_together([part.resident.answers for part in filled], predictions)
                found = dict(zip(filled, begun, strict=True))
        except Exception as error:
            self._failures.add("a batch failed, so that it was answered zero-shot", error)
        for part in parts:
            part.version = part.resident.method.images_seen
        return [found.get(part) for part in parts]

    def _predict(self, parts: Sequence[_Part]) -> Sequence[Prediction | Exception]:
        """A prediction per part, or why its method has none."""
        counts = [len(part) for part in parts]
        pixels = self._rows.on_device([groups for part in parts for groups in part.groups])
        for part, piece in zip(parts, pixels.split(counts), strict=True):
            part.pixels = piece
        pieces = parts[0].resident.answers.images(pixels).split(counts)
        return self._predict_together(
            [(part.resident.method, piece) for part, piece in zip(parts, pieces, strict=True)]
        )

    def _predict_together(self, parts: Sequence[tuple[Method, Tensor]]) -> Sequence[Prediction | Exception]:
        return predict_together(
            parts,
            return_support=any(method.retrieves for method, _ in parts),
            batch_sizes=self.batch_sizes,
            invariant=self._invariant,
        )

    def _results(self, part: _Part, pending: PendingAnswers | Exception | None) -> BatchResults:
        if not len(part):
            return BatchResults([])
        answers = part.resident.answers
        results = None if pending is None else answers.finish(part.keys, pending)
        if results is not None:
            return results
        with self._methods:
            pixels = self._rows.on_device(part.groups) if part.pixels is None else part.pixels
            return answers.zero_shot(part.keys, pixels, part.version)

    # -- answers ------------------------------------------------------------------------------------

    def _answered(self, part: _Part, outcome: BatchResults, started: float, computed_ms: float) -> _Answered:
        found = iter(zip(outcome.results, outcome.probabilities, strict=True))
        numbers = part.resident.recent.class_numbers
        arrivals = [ticket.arrived for ticket in part.tickets for _ in range(len(ticket))]
        answers = []
        for source, arrived in zip(part.sources, arrivals, strict=True):
            if source.error is not None:
                result, probabilities = Result.failed(source.key, source.error, part.version), None
            else:
                result, probabilities = next(found)
            number = ""
            if result.label is not None and result.zero_shot_label is not None:
                labels = numbers[result.label], numbers[result.zero_shot_label]
                number = self._ids.add(part.stream.serial, *labels)
            queued_ms = 1000 * (started - arrived)
            answers.append(
                StreamAnswer(number, part.stream.name, result, probabilities, queued_ms, computed_ms)
            )
        results = [answer.result for answer in answers]
        fallbacks = outcome.zero_shot_fallbacks
        part.stream.update(lambda facts: facts.with_answers(results, fallbacks))
        part.resident.recent.add(results)
        self._keep_changed(part, results)
        return _Answered(results, answers, fallbacks)

    def _keep_changed(self, part: _Part, results: Sequence[Result]) -> None:
        recent = part.resident.recent
        if recent.keeps_images:
            for source, result in zip(part.sources, results, strict=True):
                if result.changed and source.pixels is not None:
                    self._threads.submit(recent.keep, result, source.pixels)

    def _count(self, batch: Sequence[Ticket], answered: Sequence[_Answered], computed_ms: float) -> None:
        results = [result for one in answered for result in one.results]
        errors = sum(result.error is not None for result in results)
        now, counters = time.monotonic(), self.counters
        counters.images += len(results) - errors
        counters.requests += len(batch)
        counters.batches += 1
        counters.changed += sum(result.changed for result in results)
        counters.fallbacks += sum(one.fallbacks for one in answered)
        counters.undecodable += errors
        latencies = [1000 * (now - ticket.arrived) for ticket in batch for _ in range(len(ticket))]
        self._rates.add(len(results), computed_ms, latencies)

    def _save(self, part: _Part, answered: _Answered) -> None:
        store = part.resident.store
        if store is None or not len(part):
            return
        try:
            store.save(answered.results)
        except Exception as error:
            self._failures.add("what was learned could not be saved", error)


def _parts(batch: Sequence[Ticket]) -> list[_Part]:
    by_stream: dict[ServedStream, list[Ticket]] = {}
    for ticket in batch:
        by_stream.setdefault(ticket.stream, []).append(ticket)
    return [_Part(stream, tickets) for stream, tickets in by_stream.items()]


def _resolve(tickets: Sequence[Ticket], answers: Sequence[StreamAnswer]) -> None:
    rest = iter(answers)
    for ticket in tickets:
        ticket.future.set_result([next(rest) for _ in range(len(ticket))])


def _batch_sizes(settings: EngineSettings, device: torch.device) -> tuple[int, ...]:
    """Sizes of the passes: few on a GPU, where each is compiled; whatever comes on a CPU.

    An invariant CPU passes each image alone: with several threads, rows of a larger batch differ in rounding.
    """
    if settings.invariant:
        return (1,) if device.type == "cpu" else (settings.max_batch,)
    if device.type == "cpu":
        return ()
    sizes = [1]
    while sizes[-1] < settings.max_batch:
        sizes.append(min(2 * sizes[-1], settings.max_batch))
    return tuple(sizes)
