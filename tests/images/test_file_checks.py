"""What is known of a file before Pillow decodes it, against Pillow itself."""

import io
import random
import re
import struct

import pytest
from image_corpus import chunk, drawing, good_files, mutated, png, save, tiff
from PIL import Image

from ramen.images import file_checks
from ramen.images.file_checks import (
    LimitedReads,
    check_chunks,
    check_scans,
    check_tags,
    declared_size,
    gif_size,
)

GOOD = {file.name: file.data for file in good_files()}


def scanned(count: int, side: int = 16) -> bytes:
    """A progressive JPEG file with that many scans."""
    data = save(Image.new("L", (side, side), 99), "JPEG", progressive=True)
    starts = [match.start() for match in re.finditer(rb"\xff\xda", data)]
    return data[:-2] + (count - len(starts)) * data[starts[-1] : -2] + data[-2:]


def test_scans_are_counted() -> None:
    check_scans(scanned(file_checks.MAX_SCANS))
    with pytest.raises(ValueError, match="it has more than 32 scans"):
        check_scans(scanned(file_checks.MAX_SCANS + 1))


def test_scans_beyond_the_image_and_in_metadata_do_not_count() -> None:
    many = scanned(20)
    check_scans(many + many)  # a second image, as of a multi-picture file
    check_scans(many[:2] + b"\xff\xe5\x00\x64" + 49 * b"\xff\xda" + many[2:])
    image = Image.open(io.BytesIO(many + many))
    image.load()


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xda", b"\xff\xd8\xff\xe1\xff"])
def test_what_is_hardly_a_jpeg_file_is_left_to_pillow(data: bytes) -> None:
    check_scans(data)
    check_scans(data + b"\xff\xd9" + 100 * b"\xff\xda")


@pytest.mark.parametrize("name", ["rgb.jpg", "progressive.jpg", "cmyk.jpg", "multi picture.jpg", "long.jpg"])
def test_common_jpeg_files(name: str) -> None:
    check_scans(GOOD[name])


def test_texts_are_counted() -> None:
    check_chunks(GOOD["rgb.png"])
    texts = b"".join(chunk(b"iTXt", b"%03d" % index) for index in range(33))
    with pytest.raises(ValueError, match="it has 33 compressed texts"):
        check_chunks(png(bytes(13), b"", before=texts))
    check_chunks(png(bytes(13), 40 * b"iTXt"))  # pixels that look like texts


def test_one_colour_profile_is_enough() -> None:
    profile = chunk(b"iCCP", b"profile\0\0")
    check_chunks(png(bytes(13), 9 * b"iCCP", before=profile))
    with pytest.raises(ValueError, match="it has 2 colour profiles"):
        check_chunks(png(bytes(13), b"", before=2 * profile))


@pytest.mark.parametrize("size", [(1, 1), (300, 200), (16_383, 1)])
def test_the_declared_size_is_the_one_that_pillow_finds(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size)
    files = [save(image, name) for name in ("PNG", "GIF", "BMP", "WEBP")]
    files += [
        save(image, "WEBP", lossless=True),
        save(image.convert("RGBA"), "WEBP", lossless=True, exif=b"x"),
    ]
    assert [declared_size(data) for data in files] == [size] * len(files)
    assert declared_size(save(image, "JPEG")) is None
    assert all(declared_size(data[:20]) in (None, (0, 0)) for data in files[2:])


def test_numbers_of_tags_are_counted() -> None:
    for name, data in GOOD.items():
        if name.endswith(".tif"):
            check_tags(data)
    check_tags(tiff(1, 1, strips=2**14 * [8], data=b"0"))
    with pytest.raises(ValueError, match="its tag 273 has 16385 numbers, more than 16384"):
        check_tags(tiff(1, 1, strips=(2**14 + 1) * [8], data=b"0"))
    head = struct.pack(">2sHHHQQ", b"MM", 43, 8, 0, 16, 1)  # the large variant, the other byte order
    with pytest.raises(ValueError, match="its tag 258 has 99999 numbers"):
        check_tags(head + struct.pack(">HHQQ", 258, 3, 99_999, 0) + bytes(8))
    check_tags(head + struct.pack(">HHQQ", 34675, 7, 99_999, 0) + bytes(8))  # bytes, as of a colour profile


@pytest.mark.parametrize("data", [b"II", b"II*\0", b"MM\0*" + 4 * b"\xff", b"II+\0\x08\0\0\0" + 8 * b"\xff"])
def test_what_is_hardly_a_tiff_file_is_left_to_pillow(data: bytes) -> None:
    check_tags(data)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_the_size_of_a_gif_file_is_the_one_that_pillow_finds() -> None:
    """Also of damaged ones, of which Pillow understands more than the standard allows."""
    rng = random.Random(0)
    sources = [data for name, data in GOOD.items() if name.endswith(".gif")]
    sources.append(save(drawing(), "GIF", comment=b"a long comment " * 50))
    agreed = 0
    for index in range(2_000):
        data = sources[index % len(sources)]
        data = data if index < len(sources) else mutated(data, rng)
        try:
            size = Image.open(io.BytesIO(data), formats=("GIF",)).size
        except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError):
            continue
        assert gif_size(data) == size
        agreed += 1
    assert agreed > 300


def test_a_gif_file_without_a_frame() -> None:
    assert gif_size(b"GIF89a") == (0, 0)
    assert gif_size(b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + b";") == (0, 0)


def test_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_checks, "MAX_READS", 3)
    file = LimitedReads(bytes(1024))  # whose size justifies two more
    assert [len(file.read(10)) for _ in range(5)] == [10] * 5
    with pytest.raises(ValueError, match="too many parts: more than 5 pieces were read"):
        file.read(10)


def test_a_large_file_in_ordinary_chunks_has_few_parts() -> None:
    data = save(Image.effect_noise((2_000, 2_000), 90), "PNG")
    assert data.count(b"IDAT") > 50
    file = LimitedReads(data)
    Image.open(file).load()
    assert file._left > 0.9 * file_checks.MAX_READS
