"""What must be known of an image file before Pillow parses and decodes it.

Few bytes can keep a decoder busy for hours, or make it allocate memory before anybody has seen how large the
image is. These are the cases that Pillow leaves to its caller.
"""

import ctypes
import io
import os
import re
import stat
import struct
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ramen.utils import checks
from ramen.utils.checks import readable_bytes

MAX_READS = 2**14  # while a file is parsed, beside those that its size justifies
_BYTES_PER_READ = 512  # a PNG file in chunks of 8 KiB takes three reads for each
MAX_SCANS = 32  # of a JPEG file; encoders write about ten
MAX_TEXTS = 32  # of a PNG file; Pillow decompresses up to 1 MiB of each
MAX_SIDE = 2**16 - 1  # pixels, as in a JPEG file
MAX_NUMBERS = 2**14  # of one tag of a TIFF file, such as the places of its strips

# A marker with its code, but not the ones within a scan: a stuffed byte, a restart marker.
_JPEG_MARKER = re.compile(rb"\xff+([^\xff\x00\x01\xd0-\xd7])")
_START_OF_IMAGE, _END_OF_IMAGE, _START_OF_SCAN = b"\xd8", b"\xd9", b"\xda"
_BYTE_TYPES = (1, 2, 7)  # of the tags of a TIFF file: bytes, text, undefined
_COMMENT, _APPLICATION = b"\xfe", b"\xff"  # extensions of a GIF file


class LimitedReads(io.BytesIO):
    """The bytes of a file, which may be read in a limited number of pieces.

    Pillow reads chunks, segments and tags one by one in Python, and a file may have millions of empty ones.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._allowed = self._left = MAX_READS + len(data) // _BYTES_PER_READ

    def allow(self, pieces: int) -> None:
        self._left += pieces

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it has too many parts: more than {self._allowed:,} pieces were read")
        return super().read(size)


def check_scans(data: bytes) -> None:
    """Refuse a JPEG file of more than ``MAX_SCANS`` scans.

    A scan of a few bytes takes as long as one over the whole image, and a file may repeat it without end.
    """
    if data.count(b"\xff" + _START_OF_SCAN) <= MAX_SCANS:  # quickly, with those in metadata
        return
    position = scans = 0
    while (marker := _JPEG_MARKER.search(data, position)) and marker[1] != _END_OF_IMAGE:
        position = marker.end()
        if marker[1] == _START_OF_IMAGE:
            continue
        scans += marker[1] == _START_OF_SCAN
        if scans > MAX_SCANS:
            raise ValueError(f"it has more than {MAX_SCANS} scans")
        position += max(2, int.from_bytes(data[position : position + 2]))


def check_chunks(data: bytes) -> None:
    """Refuse a PNG file with more compressed data beside its pixels than one profile and ``MAX_TEXTS`` texts.

    Pillow decompresses up to 1 MiB of every profile and text, and keeps the last profile.
    """
    if data.count(b"iCCP") <= 1 and data.count(b"zTXt") + data.count(b"iTXt") <= MAX_TEXTS:  # quickly
        return
    position, profiles, texts = 8, 0, 0
    while position + 8 <= len(data):  # Pillow gives up at the first chunk that is damaged
        length, kind = int.from_bytes(data[position : position + 4]), data[position + 4 : position + 8]
        profiles, texts = profiles + (kind == b"iCCP"), texts + (kind in (b"zTXt", b"iTXt"))
        position += 12 + length
    if profiles > 1:
        raise ValueError(f"it has {profiles} colour profiles, more than one")
    if texts > MAX_TEXTS:
        raise ValueError(f"it has {texts} compressed texts, more than {MAX_TEXTS}")


def is_heif(data: bytes) -> bool:
    """Whether a file is of the HEIF family, but for AVIF, which has a decoder of its own.

    >>> is_heif(b"\\0\\0\\0\\x18ftypheic\\0\\0\\0\\0mif1heic"), is_heif(b"\\0\\0\\0\\x18ftypavif\\0\\0\\0\\0")
    (True, False)
    """
    return data[4:8] == b"ftyp" and data[8:12] not in (b"avif", b"avis")


def declared_size(data: bytes) -> tuple[int, int] | None:
    """Width and height as the header of a PNG, GIF, WebP or BMP file has them; None for any other file.

    Before Pillow opens it, which allocates memory for some of them.
    """
    if data.startswith(b"GIF8"):
        return gif_size(data)
    if data.startswith(b"\x89PNG"):
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp_size(data[12:30])
    if data.startswith(b"BM") and len(data) >= 26 and data[14] >= 40:
        width, height = struct.unpack_from("<ii", data, 18)
        return abs(width), abs(height)
    return None


def _webp_size(chunk: bytes) -> tuple[int, int] | None:
    if len(chunk) < 18:
        return None
    if chunk[:4] == b"VP8X":
        return 1 + int.from_bytes(chunk[12:15], "little"), 1 + int.from_bytes(chunk[15:18], "little")
    if chunk[:4] == b"VP8L":
        bits = int.from_bytes(chunk[9:13], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return _pair(chunk, 14)[0] & 0x3FFF, _pair(chunk, 14)[1] & 0x3FFF


def check_tags(data: bytes) -> None:
    """Refuse a TIFF file if a tag of its first image has more than ``MAX_NUMBERS`` numbers.

    Pillow makes Python objects of them, and a loop over each strip. A damaged file is left to Pillow.
    """
    order = "<" if data.startswith(b"II") else ">"
    is_big = b"\x2b" in data[2:4]
    where, number, entry = ("8xQ", "Q", "HHQ8x") if is_big else ("4xI", "H", "HHI4x")
    try:
        (start,) = struct.unpack_from(order + where, data)
        (count,) = struct.unpack_from(order + number, data, start)
        start += struct.calcsize(order + number)
        for index in range(min(count, MAX_READS)):
            tag, kind, numbers = struct.unpack_from(
                order + entry, data, start + index * struct.calcsize(order + entry)
            )
            if kind not in _BYTE_TYPES and numbers > MAX_NUMBERS:
                raise ValueError(f"its tag {tag} has {numbers} numbers, more than {MAX_NUMBERS}")
    except (struct.error, OverflowError):
        return


def gif_size(data: bytes) -> tuple[int, int]:
    """Width and height of a GIF file with its first frame, which may be larger than its screen.

    Pillow fills an area of that size when it opens a file. Zeros if there is no frame. Blocks are read as
    Pillow reads them, also those that break the rules.
    """
    file = LimitedReads(data)
    header = file.read(13)
    if len(header) < 13:
        return 0, 0
    if header[10] & 128:
        file.read(3 << ((header[10] & 7) + 1))  # the palette
    width, height = _pair(header, 6)
    while (kind := file.read(1)) not in (b"", b";"):
        if kind == b"!":
            _skip_extension(file)
        elif kind == b",":
            frame = file.read(8)
            (left, top), (across, down) = _pair(frame, 0), _pair(frame, 4)
            return max(width, left + across), max(height, top + down)
    return 0, 0


def _pair(data: bytes, position: int) -> tuple[int, int]:
    first, second = data[position : position + 2], data[position + 2 : position + 4]
    return int.from_bytes(first, "little"), int.from_bytes(second, "little")


def _skip_extension(file: LimitedReads) -> None:
    label, block = file.read(1), _block(file)
    if label == _COMMENT and not block:
        return
    if label == _APPLICATION and block.startswith(b"NETSCAPE2.0"):
        _block(file)
    while _block(file):
        pass


def _block(file: LimitedReads) -> bytes:
    length = file.read(1)
    return file.read(length[0]) if length and length[0] else b""


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """All bytes of a regular file; ValueError if it is something else or has more than ``max_bytes``."""
    _check_is_file(os.stat(path))  # before it is opened, which is already an action for some devices
    # Without waiting for a writer, should it have become a FIFO meanwhile.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        _check_is_file(status)
        check_bytes(status.st_size, max_bytes)
        return read_object(file, max_bytes)


def _check_is_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")


def check_bytes(count: int, max_bytes: int) -> None:
    """ValueError if ``count`` is more than ``max_bytes``."""
    if count > max_bytes:
        raise ValueError(f"it has {readable_bytes(count)}, more than {readable_bytes(max_bytes)}")


def read_object(file: Any, max_bytes: int) -> bytes:
    """All bytes of a file object; no more than one beyond ``max_bytes`` is ever read."""
    if getattr(file, "seekable", lambda: False)():
        file.seek(0)
    parts: list[bytes] = []
    missing = max_bytes + 1
    while missing > 0 and (part := file.read(missing)):
        if not isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"its file must be opened in binary mode, but it gave {type(part).__name__}")
        parts.append(bytes(part))
        missing -= len(part)
    if missing <= 0:
        raise ValueError(f"it has more than {readable_bytes(max_bytes)}")
    return b"".join(parts)


# Of data sets. GIF is not among them, as in the loaders that published results were measured with.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")

# Of photographs: by the formats that ``ramen.images.decoding`` reads.
SUFFIXES_BY_FORMAT = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "HEIF": (".heic", ".heif", ".hif"),
    "AVIF": (".avif",),
}


DEFAULT_FORMATS = tuple(SUFFIXES_BY_FORMAT)
MAX_PIXELS = 2**25  # an 8K frame has 33.2 million
MAX_BYTES = 2**26


@dataclass(frozen=True)
class DecodingSettings:
    """What may be decoded, and how.

    Args:
        formats: Those of ``DEFAULT_FORMATS`` that are accepted; no other decoder is ever tried.
        max_pixels: The most pixels that an image may have; a WebP file, whose decoder takes 16 bytes for
            each, half as many. Decoding others takes about 4 bytes for each, and as much again if colours
            are converted or the image is turned.
        max_bytes: The most bytes that a file may have.
        orient: Turn images as their EXIF orientation says. TIFF files are turned in any case, by Pillow.
    """

    formats: tuple[str, ...] = DEFAULT_FORMATS
    max_pixels: int = MAX_PIXELS
    max_bytes: int = MAX_BYTES
    orient: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "formats", _check_formats(self.formats))
        checks.integer("max_pixels", self.max_pixels, 1)
        checks.integer("max_bytes", self.max_bytes, 1)
        checks.flag("orient", self.orient)


def _check_formats(formats: object) -> tuple[str, ...]:
    if not isinstance(formats, tuple | list) or not formats:
        raise ValueError(f"formats must be some of {', '.join(DEFAULT_FORMATS)}, got {formats!r}")
    return tuple(checks.choice("formats", str(name).upper(), DEFAULT_FORMATS) for name in formats)


def has_image_suffix(name: str) -> bool:
    """Whether a file of that name counts as an image, in upper or lower case.

    >>> has_image_suffix("cat.JPEG"), has_image_suffix("cat.txt"), has_image_suffix(".jpg")
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and (dot + suffix).lower() in IMAGE_SUFFIXES


def has_suffix_of(name: str, formats: Iterable[str]) -> bool:
    """Whether a file of that name should be in one of these formats, in upper or lower case.

    >>> has_suffix_of("cat.GIF", ["GIF"]), has_suffix_of("cat.gif", ["PNG"]), has_suffix_of(".gif", ["GIF"])
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and any((dot + suffix).lower() in SUFFIXES_BY_FORMAT[known] for known in formats)


_FROM_PILLOW = r"PIL\b"
_lock = threading.Lock()
_inside = 0  # threads that are in such a block
_outer = ExitStack()  # the filters as they were before the first of them


@contextmanager
def no_pillow_warnings() -> Iterator[None]:
    """Ignore warnings that come from Pillow's modules; all others pass, also those of other threads.

    Python's filters belong to the whole process. Threads that saved and restored them on their own could
    restore those of each other, so the first one to enter saves them and the last one to leave restores them.
    """
    if getattr(sys.flags, "context_aware_warnings", False):  # each thread has its own
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=_FROM_PILLOW)
            yield
        return
    global _inside
    with _lock:
        if _inside == 0:
            _outer.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=_FROM_PILLOW)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _outer.close()


@cache
def silence_libtiff() -> None:
    """Let the copies of libtiff in this process say nothing; does nothing where they cannot be found."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not on Linux
        return
    for path in {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libtiff" in line}:
        try:
            library = ctypes.CDLL(path)
            for name in ("TIFFSetWarningHandler", "TIFFSetErrorHandler"):
                setter = getattr(library, name)
                setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
                setter(None)
        except (OSError, AttributeError):
            continue
