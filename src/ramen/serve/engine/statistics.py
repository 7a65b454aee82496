"""What was answered lately, in bounded memory: rates, the last answers of a stream, ids for true labels.

All of it belongs to the engine's event loop. Answers come as rows of numbers, a batch at a time.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.client.operations import ChangedImage, FeedbackCounts, StreamActivity
from ramen.client.result import LABEL, ZERO_SHOT_LABEL

SECONDS = 10
_SAMPLES = 2000  # latencies and batches that are kept per second
_PERCENTILES = (50, 90, 99)
_ANSWERS = 1000  # of a stream
_CLASSES = 20
_FINDABLE, _FINDABLE_IN_ALL = 10_000, 1_000_000  # answers whose true label may still come


@dataclass
class Counters:
    """What was answered since the engine was started."""

    images: int = 0
    requests: int = 0
    batches: int = 0
    changed: int = 0
    fallbacks: int = 0
    undecodable: int = 0


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
    """How much was answered in the last ten seconds, and how long it took.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._seconds: deque[_Second] = deque()

    def add(self, images: int, computed_ms: float, latencies_ms: Sequence[float]) -> None:
        """A batch was answered."""
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

    def _sum(self, value: Callable[[_Second], int]) -> int:
        self._forget(self._clock())
        return sum(map(value, self._seconds))

    def images_per_second(self) -> float:
        """Images answered."""
        images = self._sum(lambda second: second.images)
        return images / min(SECONDS, max(1.0, self._clock() - self._started))

    def recent_rate(self) -> float:
        """The same since the first answer that counts, for estimates under load."""
        images = self._sum(lambda second: second.images)
        return images / max(0.1, self._clock() - self._seconds[0].start) if images else 0.0

    def usual_step_seconds(self) -> float:
        """How long the longest batch of a second usually takes; 0 if nothing was answered lately.

        Over seconds rather than batches, so that asking costs little: every request that comes does.
        """
        self._forget(self._clock())
        return median(second.longest_ms for second in self._seconds) / 1000 if self._seconds else 0.0

    def mean_batch(self) -> float | None:
        """Images per batch."""
        batches = self._sum(lambda second: second.batches)
        return self._sum(lambda second: second.images) / batches if batches else None

    def latency_ms(self) -> dict[str, float]:
        """Percentiles of the time from arrival to answer."""
        return self._percentiles(lambda second: second.latencies)

    def compute_ms(self) -> dict[str, float]:
        """Percentiles of the time that a batch took."""
        return self._percentiles(lambda second: second.computed)

    def _percentiles(self, values: Callable[[_Second], list[float]]) -> dict[str, float]:
        self._forget(self._clock())
        found = [value for second in self._seconds for value in values(second)]
        if not found:
            return {}
        numbers = np.percentile(found, _PERCENTILES)
        return {f"p{which}": float(value) for which, value in zip(_PERCENTILES, numbers, strict=True)}


class RecentAnswers:
    """The last answers of a stream.

    Args:
        classes: Of the stream.
        keep_changed: How many images are kept that adaptation gave another label.
    """

    def __init__(self, classes: Sequence[str], keep_changed: int) -> None:
        self._classes = tuple(classes)
        self._rows = np.empty((0, 4))  # both entropies, both labels
        self.images: deque[ChangedImage] = deque(maxlen=keep_changed)

    def add(self, rows: NDArray[np.float64]) -> None:
        """What was answered, a row per image."""
        new = rows[:, [0, 1, LABEL, ZERO_SHOT_LABEL]]
        self._rows = np.concatenate([self._rows, new])[-_ANSWERS:]

    def clear(self) -> None:
        """Forget all of it."""
        self._rows = self._rows[:0]
        self.images.clear()

    def activity(self) -> StreamActivity:
        """Means and counts over what is known."""
        images = tuple(self.images)
        if not len(self._rows):
            return StreamActivity(None, None, None, (), images)
        entropies, zero_shot, labels, zero_shot_labels = self._rows.T
        counts = np.bincount(labels.astype(np.int64), minlength=len(self._classes))
        best = sorted(np.flatnonzero(counts).tolist(), key=lambda number: -counts[number])[:_CLASSES]
        mix = tuple((self._classes[number], int(counts[number])) for number in best)
        entropy, before = float(entropies.mean()), float(zero_shot.mean())
        changed = float((labels != zero_shot_labels).mean())
        return StreamActivity(entropy, before, changed, mix, images, len(self._rows))


class AnswerIds:
    """Numbers answers and finds them: the last 10,000 of a stream, the last million of all.

    An id is what identifies this start of the engine, and a number.

    Args:
        per_stream: How many answers of a stream can be found.
        in_all: How many answers of all streams can be found.

    Attributes:
        start: The first part of all ids.
    """

    _KNOWN = np.dtype(
        [("number", "i8"), ("stream", "i8"), ("place", "i8"), ("label", "i4"), ("before", "i4")]
    )

    def __init__(self, per_stream: int = _FINDABLE, in_all: int = _FINDABLE_IN_ALL) -> None:
        self._per_stream, self._in_all = per_stream, in_all
        self.start = secrets.token_hex(6)
        self._next = 1
        self._answered: dict[int, int] = {}  # by stream
        self._known = np.zeros(min(in_all, 1024), self._KNOWN)  # a ring, once it has its full size

    def add(self, stream: int, labels: NDArray[Any], zero_shot_labels: NDArray[Any]) -> int:
        """Number new answers, and return the first number.

        Args:
            stream: A number for the stream and its classes.
            labels: The numbers of the classes that were answered.
            zero_shot_labels: The same without adaptation.
        """
        first, count = self._next, len(labels)
        self._next += count
        place = self._answered.get(stream, 0) + 1
        self._answered[stream] = place + count - 1
        while self._next > len(self._known) and len(self._known) < self._in_all:
            larger = np.zeros(min(self._in_all, 4 * len(self._known)), self._KNOWN)
            larger[: len(self._known)] = self._known
            self._known = larger
        numbers = np.arange(first, first + count)
        new = np.zeros(count, self._KNOWN)
        new["number"], new["stream"], new["place"] = numbers, stream, np.arange(place, place + count)
        new["label"], new["before"] = labels, zero_shot_labels
        self._known[numbers % len(self._known)] = new
        return first

    def forget(self, stream: int) -> None:
        """No answer of the stream will be found any more."""
        self._answered.pop(stream, None)

    def compare(self, stream: int, answer: str, label: int, counts: FeedbackCounts) -> FeedbackCounts:
        """``counts`` after the true label of an answer has come; each answer counts once."""
        known = self._find(stream, answer)
        if known is None:
            return replace(counts, unknown=counts.unknown + 1)
        known["stream"] = -1
        return replace(
            counts,
            labels=counts.labels + 1,
            correct=counts.correct + int(known["label"] == label),
            zero_shot_correct=counts.zero_shot_correct + int(known["before"] == label),
        )

    def _find(self, stream: int, answer: str) -> Any:
        start, _, text = answer.partition("-")
        if start != self.start or not text.isascii() or not text.isdigit() or len(text) > 18:
            return None
        number = int(text)
        known = self._known[number % len(self._known)]
        is_same = known["number"] == number and known["stream"] == stream and number > 0
        recent = self._answered.get(stream, 0) - int(known["place"]) < self._per_stream
        return known if is_same and recent else None
