"""Small images for a page."""

import base64
import io
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from PIL import Image, ImageOps

from ramen.images.decoding import decode
from ramen.images.file_checks import DecodingSettings

SIDE = 256  # pixels of the longer side
_SMALL = 96  # up to here an image is shown with its own pixels
_QUALITY = 80


@dataclass(frozen=True)
class Thumbnail:
    """A small image."""

    source: str  # what an ``img`` element refers to; the image itself
    pixelated: bool  # whether it is so small that its pixels should be seen


def make_thumbnails(paths: Iterable[str], settings: DecodingSettings) -> Iterator[Thumbnail | None]:
    """A thumbnail of each file, in order; None if the file is gone or can no longer be read."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        yield from threads.map(lambda path: make_thumbnail(path, settings), paths)


def make_thumbnail(path: str, settings: DecodingSettings) -> Thumbnail | None:
    try:
        image = _reduced_jpeg(path, settings) or decode(path, settings)
    except ValueError:
        return None
    small = max(image.size) <= _SMALL
    encoded = base64.b64encode(small_jpeg(image)).decode()
    return Thumbnail(f"data:image/jpeg;base64,{encoded}", small)


def small_jpeg(image: Image.Image, side: int = SIDE) -> bytes:
    """An RGB image as a JPEG file with at most ``side`` pixels per side; it may change the image itself."""
    small = max(image.size) <= _SMALL
    image.thumbnail((side, side), reducing_gap=2.0)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95 if small else _QUALITY, subsampling=0 if small else 2)
    return buffer.getvalue()


def _reduced_jpeg(path: str, settings: DecodingSettings) -> Image.Image | None:
    """A JPEG file decoded at a fraction of its size, several times as quick; None for any other file."""
    try:
        with Image.open(path, formats=("JPEG",)) as image:
            if image.format != "JPEG" or image.mode != "RGB" or _exceeds(path, image, settings):
                return None
            image.draft("RGB", (SIDE, SIDE))
            image.load()
            return ImageOps.exif_transpose(image) if settings.orient else image.copy()
    except Exception:  # decoders raise errors of all kinds; ``decode`` then says whether it can be read
        return None


def _exceeds(path: str, image: Image.Image, settings: DecodingSettings) -> bool:
    pixels, size = image.width * image.height, os.path.getsize(path)
    return "JPEG" not in settings.formats or pixels > settings.max_pixels or size > settings.max_bytes
