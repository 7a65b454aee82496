"""Batches of a stream, read and preprocessed, while the device works on those before."""

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.run.measure import Stopwatch
from ramen.models.classifier import ZeroShotClassifier

_MOST_WORKERS = 8


def workers_for(device: torch.device) -> int:
    """How many threads prepare batches: none where that would take the cores that compute."""
    return 0 if device.type == "cpu" else min(_MOST_WORKERS, os.cpu_count() or 1)


class Feed:
    """Prepared images of each batch, in the stream's order whatever the number of threads.

    Args:
        stream: Where they come from.
        classifier: Its preprocessing is used.
        clock: Counts reading and preprocessing.
        workers: Batches that are prepared ahead, each in a thread; 0 to prepare each when it is asked for.
    """

    def __init__(
        self, stream: Stream, classifier: ZeroShotClassifier, clock: Stopwatch, workers: int = 0
    ) -> None:
        self._stream, self._classifier, self._clock, self._workers = stream, classifier, clock, workers
        self._reading = threading.Lock()  # data sets need not stand two readers

    def batches(self, batches: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Each of the batches with its images."""
        if not self._workers:
            for batch in batches:
                yield batch, self._prepare(batch)
            return
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="ramen-feed")
        try:
            ahead: deque[Future[Tensor]] = deque(
                pool.submit(self._prepare, b) for b in batches[: self._workers]
            )
            for number, batch in enumerate(batches):
                images = ahead.popleft().result()
                if number + self._workers < len(batches):
                    ahead.append(pool.submit(self._prepare, batches[number + self._workers]))
                yield batch, images
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(self, batch: slice) -> Tensor:
        with self._reading, self._clock.stage("read"):
            pictures = self._stream.read(batch)
        with self._clock.stage("preprocess"):
            return self._classifier.preprocess(pictures)
