"""Computes batches: the images of all streams share the passes, each stream keeps to its own memory.

One thread has the device and the methods. A batch is begun, which a GPU continues by itself, and finished,
which waits for what it has computed: in a thread of its own if the next batch is to be begun meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor

from ramen.client.operations import Answers
from ramen.client.result import Result
from ramen.kernels.graphs import CALLS_TO_RECORD
from ramen.methods import Method, predict_together
from ramen.methods._passes import Prediction
from ramen.predict.answers import BatchAnswers, BatchNumbers, FailureLog, PendingAnswers, begin_together
from ramen.serve.engine.scheduler import Request
from ramen.serve.engine.stream import LoadedStream, Stream
from ramen.serve.pixels import DecodedImages, PixelBatches, PixelGroup
from ramen.serve.settings import EngineSettings

_WARM_UP_SECONDS = 15.0  # after which batches that are not necessary are left out
_MOST_COUNTS = 128  # of images for which a batch is computed, beside the sizes of the passes

Value = TypeVar("Value")


class Part:
    """The images of one stream in a batch.

    Args:
        stream: The stream.
        requests: Its requests, in order.

    Attributes:
        images: Those of each request.
        keys: Of the images that have pixels.
        pending: What is on its way from the device; None if nothing could be computed, or there is no image.
        version: How many images its method had seen after them.
        numbers: The answers for the images that have pixels.
        bytes: What the stream's memory takes now.
    """

    def __init__(self, stream: Stream, requests: Sequence[Request]) -> None:
        assert stream.loaded is not None
        self.stream, self.requests = stream, requests
        self.loaded: LoadedStream = stream.loaded
        self.images: list[DecodedImages] = [request.decoded for request in requests if request.decoded]
        self.keys = [
            key
            for request, images in zip(requests, self.images, strict=True)
            for place, key in enumerate(request.keys)
            if place not in images.errors
        ]
        self.pixels: Tensor | None = None  # all of these, as soon as they are on the device
        self.pending: PendingAnswers | Exception | None = None
        self.numbers: BatchNumbers | None = None
        self.version = self.bytes = 0

    def __len__(self) -> int:
        return len(self.keys)

    def groups(self) -> list[list[PixelGroup]]:
        """The pixels of each request that has some."""
        return [groups for images in self.images if (groups := images.groups())]


def parts_of(batch: Sequence[Request]) -> list[Part]:
    """The images of a batch by stream."""
    by_stream: dict[Stream, list[Request]] = {}
    for request in batch:
        by_stream.setdefault(request.stream, []).append(request)
    return [Part(stream, requests) for stream, requests in by_stream.items()]


class Computing:
    """The thread of the device; what is awaited is done there.

    Args:
        settings: How batches are computed.
        device: Where.
        batches: Makes batches of pixels.
        failures: Where errors are logged.
        overlapping: Whether a batch may be begun while the one before is being computed.

    Attributes:
        batch_sizes: That passes through the encoder have, the smallest first; empty for whatever comes.
    """

    def __init__(
        self,
        settings: EngineSettings,
        device: torch.device,
        batches: PixelBatches,
        failures: FailureLog,
        *,
        overlapping: bool,
    ) -> None:
        self._invariant, self._batches, self._failures = settings.invariant, batches, failures
        self._overlapping = overlapping
        self.batch_sizes = _batch_sizes(settings, device)
        self._device, self._answering = (
            ThreadPoolExecutor(1, thread_name_prefix=f"ramen-{name}") for name in ("device", "answers")
        )

    async def compute(self, parts: Sequence[Part]) -> float:
        """Give each part its numbers, and return when that began."""
        started = await _in(self._device, self._begin, parts)
        if self._overlapping:
            await _in(self._answering, self._finish, parts)
            if any(len(part) and part.numbers is None for part in parts):
                await _in(self._device, self._answer_zero_shot, parts)
        return started

    async def save(self, answered: Sequence[tuple[Part, Sequence[Answers]]]) -> None:
        """Hand what was learned to the stores, which write it in threads of their own if it is time to."""
        await _in(self._device, self._save, answered)

    def warm_up(self, answers: BatchAnswers) -> None:
        """Compute blank batches with a fresh method, which is of no use afterwards."""
        self._device.submit(_warm_up, self, answers).result()

    def close(self) -> None:
        """End the threads."""
        for threads in (self._device, self._answering):
            threads.shutdown()

    def _begin(self, parts: Sequence[Part]) -> float:
        """Compute answers, and return when that began; does not wait for a GPU."""
        started, filled = time.monotonic(), [part for part in parts if len(part)]
        try:
            if filled:
                predictions = self._predict(filled)
                begun = begin_together([part.loaded.answers for part in filled], predictions)
                for part, pending in zip(filled, begun, strict=True):
                    part.pending = pending
        except Exception as error:
            self._failures.add("a batch failed, so that it was answered zero-shot", error)
        for part in parts:
            method = part.loaded.method
            part.version, part.bytes = method.images_seen, method.state.allocated_bytes()
        if not self._overlapping:
            self._finish(parts)
            self._answer_zero_shot(parts)
        return started

    def _predict(self, parts: Sequence[Part]) -> Sequence[Prediction | Exception]:
        """A prediction per part, or why its method has none."""
        counts = [len(part) for part in parts]
        pixels = self._batches.on_device([groups for part in parts for groups in part.groups()])
        for part, piece in zip(parts, pixels.split(counts), strict=True):
            part.pixels = piece
        pieces = parts[0].loaded.answers.images(pixels).split(counts)
        return self._predict_together(
            [(part.loaded.method, piece) for part, piece in zip(parts, pieces, strict=True)]
        )

    def _predict_together(self, parts: Sequence[tuple[Method, Tensor]]) -> Sequence[Prediction | Exception]:
        return predict_together(
            parts,
            return_support=any(method.retrieves for method, _ in parts),
            batch_sizes=self.batch_sizes,
            invariant=self._invariant,
        )

    @staticmethod
    def _finish(parts: Sequence[Part]) -> None:
        """Wait for the answers, in a thread of its own if the device computes the next batch meanwhile."""
        for part in parts:
            if part.pending is not None:
                part.numbers = part.loaded.answers.finish(part.pending)
                part.pending = None

    def _answer_zero_shot(self, parts: Sequence[Part]) -> None:
        """Answer parts whose methods have failed."""
        for part in parts:
            if len(part) and part.numbers is None:
                pixels = self._batches.on_device(part.groups()) if part.pixels is None else part.pixels
                part.numbers = part.loaded.answers.zero_shot(pixels, part.version)

    def _save(self, answered: Sequence[tuple[Part, Sequence[Answers]]]) -> None:
        for part, answers in answered:
            if part.loaded.store is not None and len(part):
                try:
                    part.loaded.store.save(_Results(answers))
                except Exception as error:
                    self._failures.add("what was learned could not be saved", error)

    def begin_blank(self, answers: BatchAnswers, requests: Sequence[int]) -> PendingAnswers | Exception:
        """Compute blank images as if they had been sent, for nobody; does not wait for a GPU.

        Args:
            answers: Of a method that is used for nothing else.
            requests: How many images each request has.
        """
        pixels = self._batches.on_device([[self._batches.blank(count)] for count in requests])
        predictions = self._predict_together([(answers.method, answers.images(pixels))])
        return begin_together([answers], predictions)[0]


class _Results(Sequence[Result]):
    """The results of a batch, made when they are written."""

    def __init__(self, answers: Sequence[Answers]) -> None:
        self._answers = answers

    def __len__(self) -> int:
        return sum(map(len, self._answers))

    def __iter__(self) -> Iterator[Result]:
        return (answer.result for answers in self._answers for answer in answers)

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


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


# -- before the first request ---------------------------------------------------------------------------


def _warm_up(computing: Computing, answers: BatchAnswers) -> None:
    """Compute blank batches: what a GPU does for the first time takes long.

    Kernels are loaded, compiled and recorded, memory of the device is allocated and memory of the host
    pinned. Each of these may hold up all computing, for a quarter of a second in the worst case.
    What remains is that of a stream itself: its memory, which grows a few times, and the recording of its
    steps. On a CPU there are no sizes to get ready for, and nothing is done.

    Args:
        computing: Computes batches.
        answers: Of a fresh method, which is of no use afterwards.
    """
    started, sizes = time.monotonic(), computing.batch_sizes
    if not sizes:
        return
    for size in reversed(sizes):  # the largest first: batches of the others find room in its memory
        # one more than are needed to record: pinned memory for as many answers that are on their way
        _compute_blank(computing, answers, [_divided(size, n) for n in range(CALLS_TO_RECORD + 1)])
    with ExitStack() as stack:  # other kernels are the best for a memory that is full
        for memory in answers.method.state.memories.values():
            stack.enter_context(memory.rehearsal())
        _compute_blank(computing, answers, [_divided(size) for size in sizes])
    for count in _other_counts(sizes):  # they pass in one of these sizes, but are copied as they are
        if time.monotonic() - started > _WARM_UP_SECONDS:
            break
        _compute_blank(computing, answers, [_divided(count)])


def _divided(images: int, number: int = 0) -> list[int]:
    """Images per request: all in one for odd numbers, else in two, which are joined on their way."""
    return [images] if images == 1 or number % 2 else [1, images - 1]


def _other_counts(sizes: Sequence[int]) -> Iterable[int]:
    most = max(sizes, default=0)
    return [count for count in range(most, 0, -max(1, most // _MOST_COUNTS)) if count not in sizes]


def _compute_blank(computing: Computing, answers: BatchAnswers, batches: Iterable[Sequence[int]]) -> None:
    begun = [computing.begin_blank(answers, requests) for requests in batches]
    for pending in begun:
        if isinstance(pending, PendingAnswers):  # a method that fails is no reason not to start
            pending.wait()


async def _in(thread: ThreadPoolExecutor, work: Callable[..., Value], *given: Any) -> Value:
    return await asyncio.get_running_loop().run_in_executor(thread, work, *given)
