"""Answers for a batch of images, whatever happens to the method.

An exception while the method adapts costs the batch its adaptation, not its answers: the classifier answers
zero-shot. The error is logged when it first happens, and then at every power of ten.
"""

import logging
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.methods import Method, entropy
from ramen.methods._answers import Prediction
from ramen.serve.result import Result
from ramen.utils.numerics import finite_or_zero, plain_numerics

_TOP = 5
_NOT_ADAPTED = "adaptation failed, so that a batch was answered zero-shot"
_log = logging.getLogger("ramen")


@dataclass(frozen=True)
class BatchResults:
    """What is said about the images of a batch.

    Attributes:
        results: One per image.
        zero_shot_fallbacks: How many of them the method failed to answer.
        probabilities: One per result, of all classes; empty unless they were asked for, None for an error.
    """

    results: list[Result]
    zero_shot_fallbacks: int = 0
    probabilities: list[NDArray[np.float32] | None] = field(default_factory=list)


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
    """

    def __init__(
        self, method: Method, failures: FailureLog | None = None, *, all_probabilities: bool = False
    ) -> None:
        self.method = method
        self._failures = failures or FailureLog()
        self._all_probabilities = all_probabilities

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
            return self._adapted(keys, self._predict(pixels))
        except Exception as error:
            self._failures.add(_NOT_ADAPTED, error)
        # not above: the error keeps its frames alive, and with them what filled the memory
        return self.zero_shot(keys, pixels)

    def adapted(self, keys: Sequence[str], pixels: Tensor) -> list[Result]:
        """Results for a batch, which may be empty in a group of processes; errors are raised."""
        prediction = self._predict(pixels)
        return self._adapted(keys, prediction).results if keys else []

    def _predict(self, pixels: Tensor) -> Prediction:
        return self.method.predict(self.images(pixels), return_support=self.method.retrieves)

    def predicted(
        self, keys: Sequence[str], pixels: Tensor, prediction: Prediction | Exception
    ) -> BatchResults:
        """Results for a batch that the method has answered already, or failed to."""
        try:
            if isinstance(prediction, Exception):
                raise prediction
            return self._adapted(keys, prediction)
        except Exception as error:
            self._failures.add(_NOT_ADAPTED, error)
        return self.zero_shot(keys, pixels)

    def _adapted(self, keys: Sequence[str], prediction: Prediction) -> BatchResults:
        results = self._results(keys, _numbers(prediction))
        return BatchResults(results, probabilities=self._probabilities(prediction))

    def zero_shot(self, keys: Sequence[str], pixels: Tensor) -> BatchResults:
        """The classifier's own answers for a batch that ``stack`` returned."""
        results: list[Result] = []
        probabilities: list[NDArray[np.float32] | None] = []
        self._answer_zero_shot(keys, pixels, results, probabilities)
        return BatchResults(results, sum(result.error is None for result in results), probabilities)

    def _answer_zero_shot(
        self,
        keys: Sequence[str],
        pixels: Tensor,
        results: list[Result],
        probabilities: list[NDArray[np.float32] | None],
    ) -> None:
        """Append the classifier's own answers; in halves, if there is not enough memory for all."""
        classifier = self.method.classifier
        try:
            with plain_numerics(), torch.no_grad():
                logits = finite_or_zero(classifier.logits(classifier.encode(self.images(pixels))))
                fallback = torch.ones_like(logits[:, 0], dtype=torch.bool)
                prediction = Prediction(logits, logits, fallback)
                answered, all_probabilities = _numbers(prediction), self._probabilities(prediction)
            results.extend(self._results(keys, answered))
            probabilities.extend(all_probabilities)
            return
        except Exception as error:
            self._failures.add("the zero-shot answer failed", error)
            reason = f"{type(error).__name__}: {error}"
            divide = _is_out_of_memory(error) and len(keys) > 1
        if divide:
            half = len(keys) // 2
            self._answer_zero_shot(keys[:half], pixels[:half], results, probabilities)
            self._answer_zero_shot(keys[half:], pixels[half:], results, probabilities)
            return
        version = self.method.images_seen
        results.extend(Result.failed(key, f"{key} cannot be answered: {reason}", version) for key in keys)
        probabilities.extend([None] * len(keys))

    def images(self, pixels: Tensor) -> Tensor:
        """A batch that ``stack`` returned as the classifier takes it, on its device."""
        classifier = self.method.classifier
        pinned = classifier.device.type == "cuda"
        return classifier.preprocess.normalise(pixels.to(classifier.device, non_blocking=pinned))

    def _results(self, keys: Sequence[str], numbers: list[list[float]]) -> list[Result]:
        version, retrieves = self.method.images_seen, self.method.retrieves
        return [self._result(key, row, version, retrieves) for key, row in zip(keys, numbers, strict=True)]

    def _result(self, key: str, row: list[float], version: int, retrieves: bool) -> Result:
        own_entropy, zero_shot_entropy, zero_shot, zero_shot_probability, fallback, support, *top = row
        classes = self.method.classifier.classes
        best = [(classes[int(index)], value) for index, value in zip(top[::2], top[1::2], strict=True)]
        return Result(
            key,
            label=best[0][0],
            probability=best[0][1],
            zero_shot_label=classes[int(zero_shot)],
            zero_shot_probability=zero_shot_probability,
            top=tuple(best),
            adapted=not fallback,
            support=(0 if fallback else int(support)) if retrieves else None,
            state_version=version,
            entropy=own_entropy,
            zero_shot_entropy=zero_shot_entropy,
        )

    @plain_numerics()
    @torch.no_grad()
    def _probabilities(self, prediction: Prediction) -> list[NDArray[np.float32] | None]:
        if not self._all_probabilities:
            return []
        return list(prediction.logits.float().softmax(1).cpu().numpy())


@plain_numerics()
@torch.no_grad()
def _numbers(prediction: Prediction) -> list[list[float]]:
    """All that results need, one row per image, in one copy from the device.

    Each row: both entropies; the zero-shot class and its probability; fallback; support; then class and
    probability for each of the top classes. Doubles hold every class number and every fp32 exactly.
    """
    logits, zero_shot_logits = prediction.logits.float(), prediction.zero_shot_logits.float()
    # stable: of equal logits the first comes first, as in argmax
    top = logits.sort(dim=1, descending=True, stable=True).indices[:, :_TOP]
    probabilities = logits.softmax(1).gather(1, top)
    zero_shot_class = zero_shot_logits.argmax(1, keepdim=True)
    support = prediction.support
    columns = [
        entropy(logits),
        entropy(zero_shot_logits),
        zero_shot_class,
        zero_shot_logits.softmax(1).gather(1, zero_shot_class),
        prediction.fallback,
        torch.zeros_like(zero_shot_class) if support is None else support.valid.sum(1),
        torch.stack([top.double(), probabilities.double()], 2),
    ]
    rows: list[list[float]] = torch.cat([c.double().reshape(len(logits), -1) for c in columns], 1).tolist()
    return rows


def _is_out_of_memory(error: Exception) -> bool:
    # a CPU's allocator raises a plain RuntimeError
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)
