"""From sources to pixels of the size that the encoder takes, or to the reason why there are none.

A source is decoded in two steps. ``detach`` is done where sources are taken from the caller, before the next
one is asked for: afterwards the caller may close the file, or write the next frame into the same array.
``decode_all`` does the rest, in a thread or in a worker process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ramen.images.decoding import DecodingSettings, UnreadableImageError, decode
from ramen.images.file_reading import read_object
from ramen.images.preprocess import Preprocess
from ramen.serve.sources import Elsewhere, NoImage, Source

_MOST_CHANNELS = 4  # of an array
_UNNAMED = "image 0"  # what preprocessing calls a single image


class DecodedSource(NamedTuple):
    """A source with its pixels ``(3, H, W)``, or with an error that names it; neither if it is elsewhere."""

    key: str
    pixels: NDArray[np.uint8] | None
    error: str | None = None


@dataclass(frozen=True)
class Decoder:
    """Decodes sources: to the same pixels in whichever process it is.

    Args:
        preprocess: Resizes and crops.
        settings: What may be decoded, and how.
    """

    preprocess: Preprocess
    settings: DecodingSettings

    def detach(self, source: Source) -> Source:
        """The source in a form that does not depend on the caller and can be sent to another process."""
        try:
            return Source(source.key, self._detached(source.value, source.key))
        except Exception as error:  # file objects raise errors of all kinds
            return Source(source.key, NoImage(_describe(source.key, error)))

    def _detached(self, value: Any, key: str) -> Any:
        limits = self.settings
        if isinstance(value, str | NoImage | Elsewhere):
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            if memoryview(value).nbytes <= limits.max_bytes:
                return bytes(value)
        elif isinstance(value, np.ndarray):
            if value.size <= _MOST_CHANNELS * limits.max_pixels:
                return value.copy()
        elif isinstance(value, Tensor):
            if _is_rgb(value) and value.numel() <= 3 * limits.max_pixels:
                return value.detach().permute(1, 2, 0).cpu().numpy().copy()
        elif not isinstance(value, Image.Image):
            return read_object(value, limits.max_bytes)
        # PIL images, which may depend on a file; and what is refused, rather than copied and sent first
        return decode(value, limits, name=key)

    def decode(self, source: Source) -> DecodedSource:
        """The pixels of one source that is detached."""
        key, value = source
        if isinstance(value, NoImage):
            return DecodedSource(key, None, value.error)
        if isinstance(value, Elsewhere):
            return DecodedSource(key, None)
        if self.is_ready(value):
            return DecodedSource(key, value.transpose(2, 0, 1))
        image = self.image(key, value)
        return DecodedSource(key, None, image) if isinstance(image, str) else self.resized(key, image)

    def image(self, key: str, value: Any) -> Image.Image | str:
        """An image as it is, in RGB; or why it cannot be decoded."""
        try:
            return value if isinstance(value, Image.Image) else decode(value, self.settings, name=key)
        except Exception as error:
            return _describe(key, error)

    def resized(self, key: str, image: Image.Image) -> DecodedSource:
        """An image with the encoder's size."""
        try:
            return DecodedSource(key, self.preprocess.resized(image).transpose(2, 0, 1))
        except Exception as error:
            message = _describe(_UNNAMED, error).removeprefix("images: ")
            return DecodedSource(key, None, key + message.removeprefix(_UNNAMED))

    def is_ready(self, value: Any) -> bool:
        """Whether these are pixels of the encoder's size already, which nothing would change."""
        height, width = self.preprocess.size
        is_array = isinstance(value, np.ndarray) and value.dtype == np.uint8
        return is_array and value.shape == (height, width, 3) and height * width <= self.settings.max_pixels

    def decode_all(self, sources: Sequence[Source]) -> list[DecodedSource]:
        """The pixels of each source."""
        return [self.decode(source) for source in sources]

    def failed(self, key: str, error: str) -> DecodedSource:
        """A source that cannot be decoded."""
        return DecodedSource(key, None, error)


def _is_rgb(tensor: Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.ndim == 3 and len(tensor) == 3


def _describe(key: str, error: Exception) -> str:
    if isinstance(error, UnreadableImageError):
        return str(error)  # names the image
    return f"{key} cannot be read as an image: {str(error) or type(error).__name__}"
