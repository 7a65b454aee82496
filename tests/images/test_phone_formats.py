"""HEIC and AVIF files, as phones write them: decoded, turned, damaged, and larger than they may be."""

import io
import random
import struct
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from ramen.images.decoding import UnreadableImageError, decode
from ramen.images.file_checks import DecodingSettings

pillow_heif = pytest.importorskip("pillow_heif")
SIZE = (64, 40)


def photograph() -> Image.Image:
    """A bright patch in the upper left corner of a dark image."""
    image = Image.new("RGB", SIZE, (40, 60, 90))
    image.paste((220, 200, 60), (0, 0, 24, 16))
    return image


def saved(kind: str, turn: int = 1) -> bytes:
    pillow_heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x112] = turn
    file = io.BytesIO()
    photograph().save(file, kind, quality=90, exif=exif.tobytes())
    return file.getvalue()


def resized(data: bytes, width: int, height: int) -> bytes:
    """A file whose header declares another size."""
    place = data.index(b"ispe") + 8
    return data[:place] + struct.pack(">II", width, height) + data[place + 8 :]


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_pixels_are_those_that_were_saved(kind: str) -> None:
    image = decode(saved(kind))
    assert (image.mode, image.size, image.info) == ("RGB", SIZE, {})
    difference = np.abs(np.asarray(image, dtype=int) - np.asarray(photograph(), dtype=int))
    assert difference.mean() < 4


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
@pytest.mark.parametrize(
    ("turn", "is_above", "is_left"), [(1, True, True), (3, False, False), (6, True, False), (8, False, True)]
)
def test_photographs_taken_sideways_are_upright_once(
    kind: str, turn: int, is_above: bool, is_left: bool
) -> None:
    image = decode(saved(kind, turn))
    assert image.size == (SIZE[::-1] if turn in (6, 8) else SIZE)
    rows, columns = np.nonzero(np.asarray(image)[:, :, 0] > 150)  # of the patch
    assert (rows.mean() < image.height / 2) == is_above
    assert (columns.mean() < image.width / 2) == is_left


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
@pytest.mark.parametrize("side", [8_000, 60_000])
def test_a_file_that_declares_more_pixels_than_allowed_is_refused_at_once(kind: str, side: int) -> None:
    started = time.monotonic()
    with pytest.raises(UnreadableImageError):
        decode(resized(saved(kind), side, side))
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_a_format_that_is_not_accepted_is_refused(kind: str) -> None:
    with pytest.raises(UnreadableImageError, match="JPEG"):
        decode(saved(kind), DecodingSettings(formats=("JPEG",)))


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_damaged_files_are_decoded_or_refused(kind: str) -> None:
    rng, data = random.Random(0), saved(kind)
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            damaged = bytearray(data[: rng.randrange(1, len(data))] if rng.random() < 0.2 else data)
            for _ in range(rng.choice((1, 2, 8))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            try:
                assert decode(bytes(damaged)).mode == "RGB"
            except UnreadableImageError:
                refused += 1
    assert refused > 40
