"""Answers for a batch of images, whatever happens to the method.

An exception while the method adapts costs the batch its adaptation, not its answers: the classifier answers
zero-shot. The error is logged when it first happens, and then at every power of ten.
"""

import logging
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.client.result import LABEL, Result
from ramen.methods import Method, entropy
from ramen.methods._passes import Prediction
from ramen.utils.numerics import finite_or_zero, plain_numerics

_TOP = 5
_NOT_ADAPTED = "adaptation failed, so that a batch was answered zero-shot"
_log = logging.getLogger("ramen")


@dataclass(frozen=True)
class BatchResults:
    """What is said about the images of a batch."""

    results: list[Result]  # one per image
    zero_shot_fallbacks: int = 0  # how many of them the method failed to answer


@dataclass(frozen=True)
class BatchNumbers:
    """The answers for a batch as numbers."""

    rows: NDArray[np.float64]  # one per image, as ``Result.from_row`` reads it; anything for an error
    # Of all classes, one row per image; None unless they were asked for
    probabilities: NDArray[np.float32] | None
    version: int  # how many images the method had seen after this batch
    errors: Mapping[int, str] = field(default_factory=dict)  # why an image has no answer, by its place
    zero_shot_fallbacks: int = 0  # how many images the method failed to answer


@dataclass(frozen=True)
class PendingAnswers:
    """What is on its way from the device about a batch that was predicted."""

    numbers: Tensor  # what ``_numbers`` returns, in memory of the host
    probabilities: Tensor | None  # of all classes, likewise; None unless they were asked for
    version: int  # how many images the method had seen after this batch
    arrived: torch.cuda.Event | None  # when both are there; None if they are already

    def wait(self) -> None:
        """Return when everything is there; whatever went wrong on the device is raised here."""
        if self.arrived is not None:
            self.arrived.synchronize()


class FailureLog:
    """Logs errors when they first happen, and then at every power of ten."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()  # by what failed and the error's type

    def add(self, what: str, error: Exception) -> None:
        """Something failed."""
        kind = f"{what}: {type(error).__module__}.{type(error).__qualname__}"
        self._failures[kind] += 1
        times = self._failures[kind]
        if times == 1:
            # as text: a log record with the exception would keep its frames and their tensors alive
            trace = "".join(traceback.format_exception(error))
            _log.error("%s (logged again after 10, 100, ... such errors):\n%s", what, trace)
        elif str(times).rstrip("0") == "1":
            _log.error("%s, for the %dth time: %s: %s", what, times, type(error).__name__, error)


class BatchAnswers:
    """A method that answers every batch; one at a time.

    Args:
        method: What answers as long as it can.
        failures: Where errors are logged.
        all_probabilities: Also return the probabilities of all classes.

    Attributes:
        method: The same.
        all_probabilities: The same.
    """

    def __init__(
        self, method: Method, failures: FailureLog | None = None, *, all_probabilities: bool = False
    ) -> None:
        self.method = method
        self._failures = failures or FailureLog()
        self.all_probabilities = all_probabilities

    def stack(self, images: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Images of one size as a batch, in memory from which the device takes it without waiting.

        May be called by several threads at once.
        """
        pinned = self.method.classifier.device.type == "cuda"
        # Pillow's order of pixels is kept, if all have it: a GPU changes it faster
        pixels_last = pinned and all(image.strides[0] == image.itemsize for image in images)
        ordered = [image.transpose(1, 2, 0) for image in images] if pixels_last else images
        shape = (len(ordered), *ordered[0].shape)
        batch = torch.empty(shape, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        np.stack(ordered, out=batch.numpy())
        return batch.permute(0, 3, 1, 2) if pixels_last else batch

    def answer(self, keys: Sequence[str], pixels: Tensor) -> BatchResults:
        """Results for a batch that ``stack`` returned, of images of the encoder's size ``(3, H, W)``."""
        try:
            return self.results(keys, self._collected(_begin([self], [self._predict(pixels)])[0]))
        except Exception as error:
            self._failures.add(_NOT_ADAPTED, error)
        # not above: the error keeps its frames alive, and with them what filled the memory
        return self.results(keys, self.zero_shot(pixels))

    def _predict(self, pixels: Tensor) -> Prediction:
        return self.method.predict(self.images(pixels), return_support=self.method.retrieves)

    def finish(self, pending: PendingAnswers | Exception) -> BatchNumbers | None:
        """The answers for a batch that was begun; None, and a line in the log, if the method failed."""
        try:
            if isinstance(pending, Exception):
                raise pending
            return self._collected(pending)
        except Exception as error:
            self._failures.add(_NOT_ADAPTED, error)
        return None

    def _collected(self, pending: PendingAnswers) -> BatchNumbers:
        pending.wait()
        # copies: answers may be kept for long, and the pinned memory of these is wanted for the next ones
        chosen = None if pending.probabilities is None else pending.probabilities.numpy().copy()
        return BatchNumbers(pending.numbers.numpy().copy(), chosen, pending.version)

    def zero_shot(self, pixels: Tensor, version: int | None = None) -> BatchNumbers:
        """The classifier's own answers for a batch that ``stack`` returned.

        Args:
            pixels: The batch.
            version: How many images the method had seen after it, if others have come since.
        """
        version = self.method.images_seen if version is None else version
        parts = list(self._zero_shot_parts(pixels))
        errors: dict[int, str] = {}
        place = 0
        for part in parts:
            errors |= {place + n: error for n, error in part.errors.items()}
            place += len(part.rows)
        probabilities = None
        if self.all_probabilities:
            given = (part.probabilities for part in parts)
            probabilities = np.concatenate([one for one in given if one is not None])
        rows = np.concatenate([part.rows for part in parts])
        return BatchNumbers(rows, probabilities, version, errors, len(rows) - len(errors))

    def _zero_shot_parts(self, pixels: Tensor) -> Iterator[BatchNumbers]:
        """The classifier's own answers; in halves, if there is not enough memory for all."""
        classifier = self.method.classifier
        try:
            with plain_numerics(), torch.no_grad():
                logits = finite_or_zero(classifier.logits(classifier.encode(self.images(pixels))))
                fallback = torch.ones_like(logits[:, 0], dtype=torch.bool)
                found = self._collected(_begin([self], [Prediction(logits, logits, fallback)])[0])
        except Exception as error:
            self._failures.add("the zero-shot answer failed", error)
            reason = f"{type(error).__name__}: {error}"
            divide = _is_out_of_memory(error) and len(pixels) > 1
        else:
            yield found
            return
        if divide:
            half = len(pixels) // 2
            yield from self._zero_shot_parts(pixels[:half])
            yield from self._zero_shot_parts(pixels[half:])
            return
        count, classes = len(pixels), len(classifier.classes)
        errors = dict.fromkeys(range(count), f"cannot be answered: {reason}")
        rows = np.zeros((count, LABEL + 2 * min(_TOP, classes)))
        yield BatchNumbers(rows, np.zeros((count, classes), np.float32), 0, errors)

    def results(self, keys: Sequence[str], numbers: BatchNumbers) -> BatchResults:
        """What the numbers say."""
        classes, version, retrieves = self.method.classifier.classes, numbers.version, self.method.retrieves
        found = [
            Result.failed(key, f"{key} {numbers.errors[place]}", version)
            if place in numbers.errors
            else Result.from_row(key, row, classes, version, retrieves=retrieves)
            for place, (key, row) in enumerate(zip(keys, numbers.rows.tolist(), strict=True))
        ]
        return BatchResults(found, numbers.zero_shot_fallbacks)

    def images(self, pixels: Tensor) -> Tensor:
        """A batch that ``stack`` returned as the classifier takes it, on its device."""
        classifier = self.method.classifier
        pinned = classifier.device.type == "cuda"
        return classifier.preprocess.normalise(pixels.to(classifier.device, non_blocking=pinned))


def begin_together(
    answers: Sequence[BatchAnswers], predictions: Sequence[Prediction | Exception]
) -> list[PendingAnswers | Exception]:
    """Begin to fetch what methods have predicted, without waiting for the device; or why it cannot be.

    Those with as many classes are fetched together: on a GPU each would cost what its small kernels and its
    copy cost to start.

    Args:
        answers: Of each method.
        predictions: What it has predicted, or why it has not.
    """
    found: dict[int, PendingAnswers | Exception] = {}
    alike: dict[tuple[int, bool], list[int]] = {}
    for place, (own, prediction) in enumerate(zip(answers, predictions, strict=True)):
        if isinstance(prediction, Exception):
            found[place] = prediction
        else:
            alike.setdefault((prediction.logits.shape[1], own.all_probabilities), []).append(place)
    for places in alike.values():
        found |= zip(places, _begin_if_possible([(answers[n], predictions[n]) for n in places]), strict=True)
    return [found[place] for place in range(len(answers))]


def _begin_if_possible(pairs: Sequence[tuple[BatchAnswers, Any]]) -> Sequence[PendingAnswers | Exception]:
    try:
        return _begin([own for own, _ in pairs], [prediction for _, prediction in pairs])
    except Exception as error:
        if len(pairs) == 1:
            return [error]
    return [one for pair in pairs for one in _begin_if_possible([pair])]  # one may have failed, not all


@plain_numerics()
@torch.no_grad()
def _begin(answers: Sequence[BatchAnswers], predictions: Sequence[Prediction]) -> list[PendingAnswers]:
    counts = [len(prediction.logits) for prediction in predictions]
    logits = _joined([prediction.logits for prediction in predictions]).float()
    found = [_numbers(logits, predictions)]
    if answers[0].all_probabilities:
        found.append(logits.softmax(1))
    fetched = [tensor.to("cpu", non_blocking=True) for tensor in found]
    arrived = None
    if logits.is_cuda:
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(logits.device))
    return [
        PendingAnswers(parts[0], parts[1] if len(parts) > 1 else None, own.method.images_seen, arrived)
        for own, *parts in zip(answers, *(tensor.split(counts) for tensor in fetched), strict=True)
    ]


def _numbers(logits: Tensor, predictions: Sequence[Prediction]) -> Tensor:
    """All that results need, in one tensor, a row per image as ``Result.from_row`` reads it.

    Doubles hold every class number and every fp32 exactly.
    """
    zero_shot_logits = _joined([prediction.zero_shot_logits for prediction in predictions]).float()
    # stable: of equal logits the first comes first, as in argmax
    top = logits.sort(dim=1, descending=True, stable=True).indices[:, :_TOP]
    probabilities = logits.softmax(1).gather(1, top)
    zero_shot_class = zero_shot_logits.argmax(1, keepdim=True)
    columns = [
        entropy(logits),
        entropy(zero_shot_logits),
        zero_shot_class,
        zero_shot_logits.softmax(1).gather(1, zero_shot_class),
        _joined([prediction.fallback for prediction in predictions]),
        _joined([_support_sizes(prediction) for prediction in predictions]),
        torch.stack([top.double(), probabilities.double()], 2),
    ]
    return torch.cat([column.double().reshape(len(logits), -1) for column in columns], 1)


def _support_sizes(prediction: Prediction) -> Tensor:
    support = prediction.support
    return (
        torch.zeros_like(prediction.fallback, dtype=torch.int64) if support is None else support.valid.sum(1)
    )


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _is_out_of_memory(error: Exception) -> bool:
    # a CPU's allocator raises a plain RuntimeError
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)
