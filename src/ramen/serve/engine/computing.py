"""Answers a batch: the images of all its streams share the passes, each stream keeps to its own memory."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.kernels.cuda_graphs import CALLS_TO_RECORD
from ramen.methods import Method, predict_together
from ramen.methods._answers import Prediction
from ramen.serve.batch_answers import BatchResults, FailureLog
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
        self.batches = [ticket.pixels for ticket in tickets if ticket.pixels is not None]
        self.pixels: Tensor | None = None  # all of these, as soon as they are joined

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class _Answered:
    """A result for each image of a part, with its probabilities and its id."""

    results: list[Result]
    answers: list[StreamAnswer]
    fallbacks: int


class BatchComputing:
    """Answers batches, one at a time.

    Args:
        settings: How batches are computed.
        device: Where.
        rows: Makes batches of pixels.
        ids: Names answers.
        rates: Learns what was answered, and how quickly.
        failures: Where errors are logged.
        threads: For thumbnails.
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
        self._batch_sizes = _batch_sizes(settings, device)
        self._ids, self._rates, self._failures, self._threads = ids, rates, failures, threads
        self.counters = Counters()

    def answer(self, batch: Sequence[Ticket], computed: Callable[[], None]) -> None:
        """Answer all tickets of a batch, whose streams are in memory.

        Args:
            batch: Its tickets are resolved when this returns.
            computed: Called before that, as soon as the answers are known.
        """
        started = time.monotonic()
        parts = _parts(batch)
        outcomes = self._compute(parts)
        computed_ms = 1000 * (time.monotonic() - started)
        answered = [
            self._answered(part, outcome, started, computed_ms)
            for part, outcome in zip(parts, outcomes, strict=True)
        ]
        self._count(batch, answered, computed_ms)
        computed()
        for part, one in zip(parts, answered, strict=True):
            _resolve(part.tickets, one.answers)
        for part, one in zip(parts, answered, strict=True):
            self._save(part, one)

    def warm_up(self, method: Method) -> None:
        """Compute blank batches of every size until nothing is left to compile or record.

        Args:
            method: A fresh one, which is of no use afterwards.
        """
        preprocess = method.classifier.preprocess
        for size in self._batch_sizes:
            blank = torch.zeros(size, 3, *preprocess.size, dtype=torch.uint8, device=method.classifier.device)
            for _ in range(CALLS_TO_RECORD):
                self._predict_together([(method, preprocess.normalise(blank))])

    # -- numbers ------------------------------------------------------------------------------------

    def _compute(self, parts: Sequence[_Part]) -> list[BatchResults]:
        """What is said about the decoded images of each part."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return [BatchResults([]) for _ in parts]
        pixels = self._rows.joined([batch for part in filled for batch in part.batches])
        for part, piece in zip(filled, pixels.split([len(part) for part in filled]), strict=True):
            part.pixels = piece
        predictions = dict(zip(filled, self._predict(filled, pixels), strict=True))
        return [self._results(part, predictions.get(part)) for part in parts]

    def _predict(self, parts: Sequence[_Part], pixels: Tensor) -> Sequence[Prediction | Exception | None]:
        """A prediction per part, or why its method has none; None for all if nothing could be computed."""
        try:
            images = parts[0].resident.answers.images(pixels)
            pieces = images.split([len(part) for part in parts])
            return self._predict_together(
                [(part.resident.method, piece) for part, piece in zip(parts, pieces, strict=True)]
            )
        except Exception as error:
            self._failures.add("a batch failed, so that it was answered zero-shot", error)
        return [None] * len(parts)

    def _predict_together(self, parts: Sequence[tuple[Method, Tensor]]) -> Sequence[Prediction | Exception]:
        return predict_together(
            parts,
            return_support=any(method.retrieves for method, _ in parts),
            batch_sizes=self._batch_sizes,
            invariant=self._invariant,
        )

    def _results(self, part: _Part, prediction: Prediction | Exception | None) -> BatchResults:
        answers, pixels = part.resident.answers, part.pixels
        if pixels is None:
            return BatchResults([])
        if prediction is None:
            return answers.zero_shot(part.keys, pixels)
        return answers.predicted(part.keys, pixels, prediction)

    # -- answers ------------------------------------------------------------------------------------

    def _answered(self, part: _Part, outcome: BatchResults, started: float, computed_ms: float) -> _Answered:
        version = part.resident.method.images_seen
        found = iter(zip(outcome.results, outcome.probabilities, strict=True))
        numbers = part.resident.recent.class_numbers
        arrivals = [ticket.arrived for ticket in part.tickets for _ in range(len(ticket))]
        answers = []
        for source, arrived in zip(part.sources, arrivals, strict=True):
            if source.error is not None:
                result, probabilities = Result.failed(source.key, source.error, version), None
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
