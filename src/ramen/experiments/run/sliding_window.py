"""A window over the stream, for methods that need more images than a small batch has."""

import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.models.classifier import ZeroShotClassifier


class SlidingWindow:
    """The images that a method gets: those of a batch after the ones that came before it.

    It never reaches across a reset, and is shorter after one until enough images have come.

    Args:
        size: Images in a full window, those of the batch included.
        stream: Where the images come from.
        classifier: Prepares them.
    """

    def __init__(self, size: int, stream: Stream, classifier: ZeroShotClassifier) -> None:
        self.size, self._stream, self._classifier = size, stream, classifier
        self._held: Tensor | None = None  # the previous window
        self._end = 0  # where it ended in the stream

    def positions(self, batch: slice) -> slice:
        """The part of the stream that the method gets, given the batch at the end of it."""
        begin = max((reset for reset in self._stream.resets if reset <= batch.start), default=0)
        return slice(max(begin, batch.stop - self.size), batch.stop)

    def repetition(self, batch: int) -> float:
        """How often the method gets an image, on average over the stream, if batches have that size."""
        windows = map(self.positions, self._stream.batches(batch))
        images: int = sum(window.stop - window.start for window in windows)
        return images / len(self._stream)

    def extended(self, batch: slice, images: Tensor) -> Tensor:
        """The images of a batch, after those that come before it in the window.

        Args:
            batch: The positions of the images, after those of the previous call, or after a gap.
            images: Preprocessed, on the classifier's device.
        """
        before = slice(self.positions(batch).start, batch.start)
        if before.start < before.stop:
            images = torch.cat([self._images(before), images])
        self._held, self._end = images, batch.stop
        return images

    def _images(self, positions: slice) -> Tensor:
        count = positions.stop - positions.start
        if self._held is not None and self._end == positions.stop and len(self._held) >= count:
            return self._held[len(self._held) - count :]
        # a run that resumes: what it had seen before is read again
        return self._classifier.preprocess(self._stream.read(positions)).to(self._classifier.device)
