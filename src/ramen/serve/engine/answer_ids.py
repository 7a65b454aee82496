"""Names of answers, and what is remembered of them until their true labels come."""

import secrets
import threading
from dataclasses import replace

import numpy as np

from ramen.serve.engine.stream_info import FeedbackCounts

_PER_STREAM = 10_000
_IN_ALL = 1_000_000
_WIDE, _NARROW = np.int64, np.int32
_KNOWN = np.dtype(
    [("number", _WIDE), ("stream", _WIDE), ("place", _WIDE), ("label", _NARROW), ("zero_shot", _NARROW)]
)


class AnswerIds:
    """Gives out ids and finds answers by them: the last 10,000 of a stream, the last million of all.

    An id is what identifies this start of the engine, and a number.

    Args:
        per_stream: How many answers of a stream can be found.
        in_all: How many answers of all streams can be found.
    """

    def __init__(self, per_stream: int = _PER_STREAM, in_all: int = _IN_ALL) -> None:
        self._per_stream, self._in_all = per_stream, in_all
        self._start = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._next = 1
        self._answered: dict[int, int] = {}  # by stream
        self._known = np.zeros(min(in_all, 1024), _KNOWN)  # a ring, once it has its full size

    def add(self, stream: int, label: int, zero_shot: int) -> str:
        """The id of a new answer.

        Args:
            stream: A number for the stream and its classes.
            label: The number of the class that was answered.
            zero_shot: The same without adaptation.
        """
        with self._lock:
            number, self._next = self._next, self._next + 1
            place = self._answered[stream] = self._answered.get(stream, 0) + 1
            if number >= len(self._known) and len(self._known) < self._in_all:
                larger = np.zeros(min(self._in_all, 4 * len(self._known)), _KNOWN)
                larger[: len(self._known)] = self._known
                self._known = larger
            self._known[number % len(self._known)] = (number, stream, place, label, zero_shot)
        return f"{self._start}-{number}"

    def forget(self, stream: int) -> None:
        """No answer of the stream will be found any more."""
        with self._lock:
            self._answered.pop(stream, None)

    def compare(self, stream: int, answer: str, label: int, counts: FeedbackCounts) -> FeedbackCounts:
        """``counts`` after the true label of an answer has come; each answer counts once."""
        with self._lock:
            known = self._find(stream, answer)
            if known is None:
                return replace(counts, unknown=counts.unknown + 1)
            known["stream"] = -1
            return replace(
                counts,
                labels=counts.labels + 1,
                correct=counts.correct + int(known["label"] == label),
                zero_shot_correct=counts.zero_shot_correct + int(known["zero_shot"] == label),
            )

    def _find(self, stream: int, answer: str) -> "np.void | None":
        start, _, text = answer.partition("-")
        if start != self._start or not text.isascii() or not text.isdigit() or len(text) > 18:
            return None
        number = int(text)
        known: np.void = self._known[number % len(self._known)]
        is_same = known["number"] == number and known["stream"] == stream and number > 0
        recent = self._answered.get(stream, 0) - int(known["place"]) < self._per_stream
        return known if is_same and recent else None
