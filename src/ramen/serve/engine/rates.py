"""Rates and percentiles over the last ten seconds, in bounded memory."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

SECONDS = 10
_SAMPLES = 2000  # latencies and batches that are kept per second
_PERCENTILES = (50, 90, 99)


@dataclass
class _Second:
    """What happened in one second."""

    start: float
    images: int = 0
    batches: int = 0
    latencies: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    longest_ms: float = 0.0  # batch


class Rates:
    """How much was answered lately, and how long it took.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._seconds: deque[_Second] = deque()
        self._lock = threading.Lock()

    def add(self, images: int, computed_ms: float, latencies_ms: Sequence[float]) -> None:
        """A batch was answered."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            if not self._seconds or now - self._seconds[-1].start >= 1:
                self._seconds.append(_Second(now))
            second = self._seconds[-1]
            second.images += images
            second.batches += 1
            second.latencies += latencies_ms[: _SAMPLES - len(second.latencies)]
            second.computed += [computed_ms][: _SAMPLES - len(second.computed)]
            second.longest_ms = max(second.longest_ms, computed_ms)

    def _forget(self, now: float) -> None:
        while self._seconds and now - self._seconds[0].start > SECONDS:
            self._seconds.popleft()

    def images_per_second(self) -> float:
        """Images answered."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            images = sum(second.images for second in self._seconds)
            if not images:
                return 0.0
            return images / min(SECONDS, max(1.0, now - self._started))

    def recent_rate(self) -> float:
        """The same since the first answer that counts, for estimates under load."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            images = sum(second.images for second in self._seconds)
            return images / max(0.1, now - self._seconds[0].start) if images else 0.0

    def usual_step_seconds(self) -> float:
        """How long the longest batch of a second usually takes; 0 if nothing was answered lately.

        Over seconds rather than batches, so that asking costs little: every request that comes does.
        """
        with self._lock:
            self._forget(self._clock())
            return median(second.longest_ms for second in self._seconds) / 1000 if self._seconds else 0.0

    def mean_batch(self) -> float | None:
        """Images per batch."""
        with self._lock:
            self._forget(self._clock())
            batches = sum(second.batches for second in self._seconds)
            return sum(second.images for second in self._seconds) / batches if batches else None

    def latency_ms(self) -> dict[str, float]:
        """Percentiles of the time from arrival to answer."""
        return self._percentiles(lambda second: second.latencies)

    def compute_ms(self) -> dict[str, float]:
        """Percentiles of the time that a batch took."""
        return self._percentiles(lambda second: second.computed)

    def _percentiles(self, values: Callable[[_Second], list[float]]) -> dict[str, float]:
        with self._lock:
            self._forget(self._clock())
            found = [value for second in self._seconds for value in values(second)]
        if not found:
            return {}
        numbers = np.percentile(found, _PERCENTILES)
        return {f"p{which}": float(value) for which, value in zip(_PERCENTILES, numbers, strict=True)}
