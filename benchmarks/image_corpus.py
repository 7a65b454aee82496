"""Image files of every kind, good and hostile, made when they are asked for, and random damage to them.

They are what ``ramen.images.decoding`` and the service are tested and measured with.
"""

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

WIDTH, HEIGHT = 48, 36


@dataclass(frozen=True)
class CorpusFile:
    """One file of the corpus.

    Attributes:
        name: What it is; the suffix is that of its format, or the one that it pretends to be.
        data: Its bytes.
        size: Width and height of the image; None if it must be refused.
        refusal: What the reason for that says.
    """

    name: str
    data: bytes
    size: tuple[int, int] | None
    refusal: str = ""


def good_files() -> Iterator[CorpusFile]:
    """Files that have to be decoded."""
    for name, image, options in _saved():
        size = (image.height, image.width) if "turned" in name else image.size
        yield CorpusFile(name, save(image, _format(name), **options), size)
    plain = save(drawing(), "JPEG")
    yield CorpusFile("zip appended.jpg", plain + _zip(), (WIDTH, HEIGHT))
    yield CorpusFile("multi picture.jpg", save(drawing(), "MPO", **_frames()), (WIDTH, HEIGHT))
    yield CorpusFile("run-length.bmp", run_length_bmp(WIDTH, HEIGHT, b"\x30\x07\x00\x00" * HEIGHT), (48, 36))
    yield CorpusFile("12 bits.tif", twelve_bit_tiff(), (4, 2))


def hostile_files() -> Iterator[CorpusFile]:
    """Files that have to be refused, quickly and without much memory."""
    yield CorpusFile("empty.png", b"", None, "it is empty")
    yield from _foreign()
    yield from _truncated()
    yield from _bombs()
    yield from _labyrinths()
    not_a_number = np.full((4, 4), np.nan, dtype=np.float32)
    for name, values, reason in (
        ("not finite.tif", not_a_number, "values that are not finite"),
        ("floats to 1000.tif", np.array([[0, 1000]], dtype=np.float32), "floats from 0 to 1000"),
        ("floats below 0.tif", np.array([[-0.5, 1]], dtype=np.float32), "floats from -0.5 to 1"),
        ("integers to 70000.tif", np.array([[0, 70000]], dtype=np.int32), "32-bit integers from 0 to 70000"),
    ):
        yield CorpusFile(name, save(Image.fromarray(values), "TIFF"), None, reason)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Random damage: bytes changed, cut out, repeated or replaced by numbers that break parsers."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        # metadata is at the beginning, where damage is worth more
        end = len(damaged) if rng.random() < 0.5 else min(len(damaged), 200)
        place = rng.randrange(end) if end else 0
        length = rng.choice((1, 2, 4, 16, 64))
        match rng.randrange(6):
            case 0:
                damaged[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                damaged[place : place + 4] = rng.choice(_AWKWARD)
            case 2:
                del damaged[place : place + length]
            case 3:
                damaged[place:place] = damaged[place : place + length] * rng.choice((1, 2, 100))
            case 4:
                del damaged[max(1, place) :]
            case _:
                damaged[place:place] = rng.randbytes(length)
    return bytes(damaged)


_AWKWARD = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1", b"\x80\0\0\0", b"\1\0\0\0")


# -- images -----------------------------------------------------------------------------------------


def drawing(mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A small image with gradients and noise."""
    rng = np.random.default_rng(seed)
    across, down = np.linspace(0, 190, WIDTH), np.linspace(0, 190, HEIGHT)[:, None]
    channels = [across + 0 * down, down + 0 * across, 0.5 * (across + down)]
    pixels = np.stack(channels, -1) + rng.integers(0, 60, (HEIGHT, WIDTH, 3))
    image = Image.fromarray(pixels.astype(np.uint8))
    return image if mode == "RGB" else image.convert(mode)


def sixteen_bit_values() -> NDArray[np.uint16]:
    """Grey values over the whole range of 16 bits."""
    return np.linspace(0, 65535, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16)


def orientation(value: int) -> Image.Exif:
    """EXIF data that say how an image is to be turned."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = value
    return exif


def save(image: Image.Image, format_name: str, **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, format_name, **options)
    return file.getvalue()


def _format(name: str) -> str:
    suffix = name.rsplit(".")[-1]
    return {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper())


def _frames() -> dict[str, Any]:
    return {"save_all": True, "append_images": [drawing(seed=1), drawing(seed=2)]}


def _saved() -> Iterator[tuple[str, Image.Image, dict[str, Any]]]:
    image, grey = drawing(), sixteen_bit_values()
    unit = (grey / 65535).astype(np.float32)
    transparent = drawing("RGBA")
    transparent.putalpha(drawing("L"))
    palette = image.quantize(16)
    yield from (("rgb.jpg", image, {}), ("progressive.jpg", image, {"progressive": True}))
    yield from ((f"{mode.lower()}.jpg", drawing(mode), {}) for mode in ("L", "CMYK", "YCbCr"))
    yield from (
        (f"turned {turn}.{suffix}", image, {"exif": orientation(turn)})
        for turn in (5, 6, 7, 8)
        for suffix in ("jpg", "png", "webp", "tif")
    )
    yield from (
        (f"flipped {turn}.{suffix}", image, {"exif": orientation(turn)})
        for turn in (2, 3, 4)
        for suffix in ("jpg", "png", "webp", "tif")
    )
    yield from ((f"{mode.lower()}.png", drawing(mode), {}) for mode in ("RGB", "L", "LA", "1"))
    yield from (("rgba.png", transparent, {}), ("16 bits.png", Image.fromarray(grey), {}))
    yield from (("palette.png", palette, {}), ("one clear.png", palette, {"transparency": 3}))
    yield ("some clear.png", palette, {"transparency": bytes(range(0, 160, 10))})
    yield from (("animated.png", image, _frames()), ("interlaced.gif", palette, {"interlace": True}))
    yield from (("lossy.webp", image, {}), ("lossless.webp", image, {"lossless": True}))
    yield from (("clear.webp", transparent, {"lossless": True}), ("animated.webp", image, _frames()))
    yield from ((f"{mode.lower()}.bmp", drawing(mode), {}) for mode in ("RGB", "L", "1", "P"))
    yield from (("grey.gif", drawing("L"), {}), ("animated.gif", image, _frames()))
    yield ("clear.gif", palette, {"transparency": 3})
    yield from ((f"{mode.lower()}.tif", drawing(mode), {}) for mode in ("RGB", "CMYK", "LA", "1"))
    # Pillow before 13 cannot read the plain one that it writes itself.
    yield ("ycbcr.tif", drawing("YCbCr"), {"compression": "tiff_lzw"})
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        yield (f"{compression.removeprefix('tiff_')}.tif", image, {"compression": compression})
    yield from (("pages.tif", image, _frames()), ("16 bits.tif", Image.fromarray(grey), {}))
    yield ("16 bits, big-endian.tif", Image.fromarray(grey.astype(">u2")), {})
    yield ("16 bits, white is 0.tif", Image.fromarray(grey), {"tiffinfo": {262: 0}})
    yield ("16 bits, packed.tif", Image.fromarray(grey), {"compression": "tiff_lzw"})
    yield from (
        ("unit floats.tif", Image.fromarray(unit), {}),
        ("floats.tif", Image.fromarray(unit * 255), {}),
    )
    yield ("small integers.tif", Image.fromarray((grey >> 8).astype(np.int32)), {})
    for suffix in ("jpg", "png", "gif", "tif", "webp", "bmp"):
        yield (f"one pixel.{suffix}", Image.new("RGB", (1, 1), (200, 100, 50)), {})
    long = image.resize((20_000, 10))
    yield from ((f"long.{suffix}", long, {}) for suffix in ("jpg", "png", "tif"))
    yield ("high.png", image.resize((10, 20_000)), {})


# -- hostile ones -----------------------------------------------------------------------------------


def _foreign() -> Iterator[CorpusFile]:
    """Other formats under the names of images."""
    contents = {
        "page.jpg": b"<!doctype html><html><body>404 Not Found</body></html>",
        "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\nshowpage\n",
        "document.png": b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
        "astronomy.tif": b"SIMPLE  =                    T".ljust(80)
        + b"BITPIX  =                    8".ljust(2800),
        "vectors.png": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "archive.jpg": _zip(),
        "grey map.png": b"P5 4 4 255 " + bytes(16),
        "icon.bmp": save(drawing(), "ICO"),
        "text.jpg": b"hello " * 100,
        "zeros.jpg": bytes(1000),
    }
    for name, data in contents.items():
        yield CorpusFile(name, data, None, "it is none of JPEG, PNG, WEBP, BMP, GIF, TIFF")


def _truncated() -> Iterator[CorpusFile]:
    options: dict[str, dict[str, Any]] = {"webp": {"lossless": True}}
    for suffix in ("jpg", "png", "webp", "bmp", "gif", "tif"):
        whole = save(drawing(), _format(suffix), **options.get(suffix, {}))
        for share in (0.3, 0.6, 0.9):
            yield CorpusFile(f"{share:.0%} of it.{suffix}", whole[: int(share * len(whole))], None)


def _bombs() -> Iterator[CorpusFile]:
    """Small files of large images."""
    side, refusal = 13_000, "it has 13000 x 13000 pixels"  # more than Pillow warns of, fewer than it refuses
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    yield CorpusFile("bomb.png", png(header, zlib.compress(bytes((side // 8 + 1) * side))), None, refusal)
    header = struct.pack(">IIBBBBB", 2**30, 2**30, 8, 2, 0, 0, 0)
    yield CorpusFile("giant.png", png(header, zlib.compress(bytes(100))), None, "no side may be longer")
    header = struct.pack(">IIBBBBB", 5793, 5793, 8, 2, 0, 0, 0)
    just_above = "5793 x 5793 pixels, more than 33554432"
    yield CorpusFile("just above.png", png(header, zlib.compress(bytes(100))), None, just_above)
    grey = save(drawing("L"), "JPEG")
    frame = grey.index(b"\xff\xc0") + 5
    yield CorpusFile("bomb.jpg", _patched(grey, frame, struct.pack(">HH", side, side)), None, refusal)
    screen = b"GIF89a" + struct.pack("<HHBBB", side, side, 0, 0, 0)
    frame_of = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\2\2\x4c\1\0;"
    yield CorpusFile("bomb.gif", screen + b"!\xf9\4\x08\0\0\0\0" + frame_of, None, refusal)
    small_screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
    beyond = small_screen + b"!\xfe\3abc\0" + b"!\xf9\4\x0d\0\0\0\0" + frame_of
    yield CorpusFile("beyond its screen.gif", beyond, None, refusal)
    lossless = save(drawing(), "WEBP", lossless=True)
    bits = struct.pack("<I", (side - 1) | (side - 1) << 14)
    yield CorpusFile("bomb.webp", _patched(lossless, lossless.index(b"VP8L") + 9, bits), None)
    yield CorpusFile(
        "bomb.bmp", _patched(save(drawing(), "BMP"), 18, struct.pack("<ii", side, side)), None, refusal
    )
    yield CorpusFile("bomb.tif", tiff(side, side, strips=[8], data=bytes(100)), None, refusal)
    square = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    zeros = zlib.compress(bytes(2**20))
    texts = b"".join(chunk(b"zTXt", b"key %d\0\0" % index + zeros) for index in range(200))
    yield CorpusFile(
        "texts.png", png(square, zlib.compress(bytes(72)), before=texts), None, "compressed texts"
    )
    profile = chunk(b"iCCP", b"profile\0\0" + zlib.compress(bytes(2**27)))
    exif = chunk(b"eXIf", b"II+\0\x08\0\0\0\x10" + bytes(2**21))
    yield CorpusFile(
        "exif.png", png(square, zlib.compress(bytes(72)), before=exif), None, "its EXIF data have"
    )
    yield CorpusFile("profile.png", png(square, zlib.compress(bytes(72)), before=profile), None)
    profiles = 200 * chunk(b"iCCP", b"profile\0\0" + zlib.compress(bytes(2**20)))
    many_profiles = png(square, zlib.compress(bytes(72)), before=profiles)
    yield CorpusFile("profiles.png", many_profiles, None, "200 colour profiles")
    header = struct.pack(">IIBBBBB", 1, 2**25, 8, 2, 0, 0, 0)
    yield CorpusFile("tall.png", png(header, zlib.compress(bytes(100))), None, "no side may be longer")
    bits = struct.pack("<I", 5791 | 5791 << 14)
    wide = _patched(lossless, lossless.index(b"VP8L") + 9, bits)
    yield CorpusFile("large.webp", wide, None, "5792 x 5792 pixels, more than 16777216")


def _labyrinths() -> Iterator[CorpusFile]:
    """Files that keep a decoder busy."""
    blank = save(Image.new("L", (2000, 2000), 77), "JPEG", progressive=True)
    scan = blank[blank.rindex(b"\xff\xda") : -2]
    yield CorpusFile("scans.jpg", blank[:-2] + 10_000 * scan + blank[-2:], None, "more than 32 scans")
    plain, many = save(drawing("L"), "JPEG"), 100_000
    too_many = "it has too many parts"
    yield CorpusFile("segments.jpg", plain[:2] + many * b"\xff\xfe\0\2" + plain[2:], None, too_many)
    square = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    chunks = png(square, zlib.compress(bytes(72)), before=many * chunk(b"teSt", b""))
    yield CorpusFile("chunks.png", chunks, None, too_many)
    image = save(drawing("L"), "GIF")
    start = image.index(b",")
    comments = image[:start] + many * b"!\xfe\1a\0" + image[start:]
    yield CorpusFile("comments.gif", comments, None, too_many)
    strips = tiff(2000, 2000, strips=1_000 * [8, 9], data=bytes(500_000), rows=1000)
    yield CorpusFile("strips.tif", strips, None, "its strips cover it too many times")
    places = tiff(2000, 2000, strips=list(range(8, 500_008)), data=bytes(500_000))
    yield CorpusFile("places.tif", places, None, "its tag 273 has 500000 numbers")
    yield CorpusFile("tags.tif", _big_tiff(many), None, too_many)
    lines = run_length_bmp(5_000, 5_000, 5_000 * b"\0\0")
    yield CorpusFile("lines.bmp", lines, None, "run-length encoded pixels")
    yield CorpusFile(
        "runs.bmp", run_length_bmp(2_000, 2_000, 2**20 * b"\1\7"), None, "run-length encoded pixels"
    )


# -- files written byte by byte ---------------------------------------------------------------------


def png(header: bytes, pixels: bytes, before: bytes = b"") -> bytes:
    """A PNG file of a header, the compressed pixels and the chunks that precede these."""
    ends = chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + ends


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def tiff(
    width: int, height: int, *, strips: list[int], data: bytes, rows: int | None = None, bits: int = 1
) -> bytes:
    """A grey TIFF file without compression; ``strips`` are the places where its strips begin."""
    places = struct.pack(f"<{len(strips)}I", *strips)
    where = 8 + len(data)
    numbers = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 277: 1, 278: rows or height}
    tags = {tag: (4, 1, value) for tag, value in numbers.items()}
    tags[273] = (4, len(strips), where if len(strips) > 1 else strips[0])
    directory = b"".join(struct.pack("<HHII", tag, *tags[tag]) for tag in sorted(tags))
    head = struct.pack("<2sHI", b"II", 42, where + len(places))
    return head + data + places + struct.pack("<H", len(tags)) + directory + bytes(4)


def twelve_bit_tiff() -> bytes:
    """A TIFF file of 4 x 2 pixels of 12 bits: 0, 1, 2047, 2048 and 4094, 4095, 256, 8."""
    rows = ((0, 1, 2047, 2048), (4094, 4095, 256, 8))
    packed = b"".join(
        ((first << 12) | second).to_bytes(3) for row in rows for first, second in (row[:2], row[2:])
    )
    return tiff(4, 2, strips=[8], data=packed, bits=12)


def _big_tiff(tags: int) -> bytes:
    tag = struct.pack("<HHQQ", 256, 4, 1, 8)
    return struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) + struct.pack("<Q", tags) + tags * tag + bytes(8)


def run_length_bmp(width: int, height: int, codes: bytes) -> bytes:
    """A BMP file of 256 greys whose pixels are run-length encoded."""
    palette = b"".join(bytes((grey, grey, grey, 0)) for grey in range(256))
    start = 14 + 40 + len(palette)
    head = struct.pack("<2sIHHI", b"BM", start + len(codes), 0, 0, start)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(codes), 2835, 2835, 256, 0)
    return head + info + palette + codes


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("program.py", "print('hello')")
    return file.getvalue()


def _patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]
