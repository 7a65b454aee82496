"""From what callers hand over to what is sent: a file's bytes as they are, or pixels."""

import io
import numbers
import os
from typing import Any

import numpy as np
from PIL import Image

from ramen.images.file_reading import check_bytes, read_file, read_object
from ramen.serve.client.served_answer import ServedAnswer
from ramen.serve.engine.answers import SentImage

MAX_BYTES = 2**26  # of one image, as services accept by default
_PNG_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16")


def load_image(source: object, place: int, stream: str, max_bytes: int) -> SentImage | ServedAnswer:
    """The image to send, or the answer of one that cannot be read, which names it and the reason.

    Args:
        source: A path, ``bytes``, a binary file object, a PIL image, a uint8 array ``(H, W, 3)``, or a pair
            of a key and one of these. TypeError for something else.
        place: In the sequence of sources, for the key of those that have none.
        stream: The stream that it is for.
        max_bytes: The most bytes that are read from a file.
    """
    key, value = _named(source, place)
    try:
        return SentImage(key, _data(value, max_bytes))
    except (OSError, ValueError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else _reason(error)
        return ServedAnswer.failed(stream, key, f"{key} cannot be read as an image: {why}")


def _named(source: object, place: int) -> tuple[str, Any]:
    if isinstance(source, tuple):
        if len(source) != 2 or not isinstance(source[0], str | numbers.Integral):
            raise TypeError(
                f"sources: a tuple must be a key (text or a whole number) and an image, got {source!r}"
            )
        return str(source[0]), source[1]
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source), source
    return f"image {place}", source


def _data(value: Any, max_bytes: int) -> Any:
    if isinstance(value, str | os.PathLike):
        return read_file(value, max_bytes)
    if isinstance(value, bytes | bytearray | memoryview):
        check_bytes(memoryview(value).nbytes, max_bytes)
        return bytes(value)
    if isinstance(value, np.ndarray):
        return _pixels(value)
    if isinstance(value, Image.Image):
        return _encoded(value)
    if hasattr(value, "read"):
        return read_object(value, max_bytes)
    raise TypeError(
        "sources must be paths, bytes, binary file objects, PIL images, uint8 arrays, or pairs of a key and "
        f"one of these, got {type(value).__name__}"
    )


def _pixels(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"an array must be uint8 of shape (H, W, 3), got {array.dtype} {array.shape}")
    return array.copy()  # the caller may write the next frame into the same array


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    plain = image if image.mode in _PNG_MODES else image.convert("RGB")
    # with the EXIF data, which say how the image is to be turned
    plain.save(file, "PNG", compress_level=1, exif=image.getexif())
    return file.getvalue()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
