"""What must be known of an image file before Pillow parses and decodes it.

Few bytes can keep a decoder busy for hours, or make it allocate memory before anybody has seen how large the
image is. These are the cases that Pillow leaves to its caller.
"""

import io
import re
import struct

MAX_READS = 2**14  # while a file is parsed, beside those that its size justifies
_BYTES_PER_READ = 512  # a PNG file in chunks of 8 KiB takes three reads for each
MAX_SCANS = 32  # of a JPEG file; encoders write about ten
MAX_TEXTS = 32  # of a PNG file; Pillow decompresses up to 1 MiB of each
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

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
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


def check_texts(data: bytes) -> None:
    """Refuse a PNG file of more than ``MAX_TEXTS`` texts that may be compressed."""
    if data.count(b"zTXt") + data.count(b"iTXt") > MAX_TEXTS:
        raise ValueError(f"it has more than {MAX_TEXTS} compressed texts")


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
