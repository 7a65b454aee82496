"""What happened in a stream lately, in bounded memory."""

import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen.serve.changes_page.thumbnails import small_jpeg
from ramen.serve.engine.stream_info import ChangedImage, StreamActivity
from ramen.serve.result import Result

_ANSWERS = 1000
_CLASSES = 20
_SIDE = 128  # pixels of a thumbnail's longer side


class RecentAnswers:
    """The last answers of a stream.

    Args:
        classes: Of the stream.
        keep_changed: How many images are kept that adaptation gave another label.

    Attributes:
        class_numbers: By the name of a class.
    """

    def __init__(self, classes: Sequence[str], keep_changed: int) -> None:
        self._classes = tuple(classes)
        self.class_numbers = {name: number for number, name in enumerate(classes)}
        self._answers: deque[tuple[float, float, int, bool]] = deque(maxlen=_ANSWERS)
        self._images: deque[ChangedImage] = deque(maxlen=keep_changed)
        self._lock = threading.Lock()

    @property
    def keeps_images(self) -> bool:
        """Whether images that changed are kept."""
        return self._images.maxlen != 0

    def add(self, results: Sequence[Result]) -> None:
        """What was answered."""
        with self._lock:
            for result in results:
                if result.error is None:
                    assert result.label is not None
                    assert result.entropy is not None
                    assert result.zero_shot_entropy is not None
                    number = self.class_numbers[result.label]
                    self._answers.append((result.entropy, result.zero_shot_entropy, number, result.changed))

    def keep(self, result: Result, pixels: NDArray[np.uint8]) -> None:
        """Keep a thumbnail of an image ``(3, H, W)`` whose label changed."""
        thumbnail = small_jpeg(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))), _SIDE)
        assert result.label is not None
        assert result.probability is not None
        assert result.zero_shot_label is not None
        assert result.zero_shot_probability is not None
        changed = ChangedImage(
            result.key,
            result.label,
            result.probability,
            result.zero_shot_label,
            result.zero_shot_probability,
            time.time(),
            thumbnail,
        )
        with self._lock:
            self._images.appendleft(changed)

    def clear(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._answers.clear()
            self._images.clear()

    def activity(self) -> StreamActivity:
        """Means and counts over what is known."""
        with self._lock:
            answers, images = list(self._answers), tuple(self._images)
        if not answers:
            return StreamActivity(None, None, None, (), images)
        entropies, zero_shot, numbers, changed = (np.array(column) for column in zip(*answers, strict=True))
        counts = np.bincount(numbers.astype(np.int64), minlength=len(self._classes))
        best = sorted(np.flatnonzero(counts).tolist(), key=lambda number: -counts[number])[:_CLASSES]
        mix = tuple((self._classes[number], int(counts[number])) for number in best)
        entropy, before, share = (float(values.mean()) for values in (entropies, zero_shot, changed))
        return StreamActivity(entropy, before, share, mix, images, len(answers))


NO_ACTIVITY = StreamActivity(None, None, None, (), ())
