"""Every kind of source becomes the pixels that preprocessing gives, and does not depend on its caller."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ramen.images.file_checks import DecodingSettings
from ramen.images.preprocess import Preprocess
from ramen.predict.decoding import Decoder
from ramen.predict.sources import NoImage, Source
from tests.helpers.photos import encoded


@pytest.fixture
def decoder() -> Decoder:
    return Decoder(Preprocess((8, 8)), DecodingSettings(max_bytes=20_000, max_pixels=2_000))


@pytest.fixture
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))


class Drip(io.RawIOBase):
    """Gives few bytes at a time, and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self.rest = data
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        part, self.rest = self.rest[: min(size, 1000)], self.rest[min(size, 1000) :]
        self.given += len(part)
        return part


def kinds(image: Image.Image, folder: Path) -> dict[str, Any]:
    path = folder / "image.png"
    image.save(path)
    array = np.asarray(image)
    return {
        "path": str(path),
        "bytes": encoded(image),
        "bytearray": bytearray(encoded(image)),
        "memoryview": memoryview(encoded(image)),
        "file": path.open("rb"),
        "raw file": Drip(encoded(image)),
        "PIL": image,
        "PIL, not loaded": Image.open(path),
        "array": array,
        "array backwards": np.ascontiguousarray(array[::-1])[::-1],
        "floats": array / 255,
        "tensor": torch.from_numpy(array.copy()).permute(2, 0, 1),
    }


def test_every_kind_gives_the_same_pixels(decoder: Decoder, picture: Image.Image, tmp_path: Path) -> None:
    expected = decoder.preprocess.pixels(picture)[0].numpy()
    for kind, value in kinds(picture, tmp_path).items():
        detached = decoder.detach(Source(kind, value))
        sent = pickle.loads(pickle.dumps((decoder, detached)))
        for key, pixels, error in (decoder.decode(detached), sent[0].decode_all([sent[1]])[0]):
            assert (key, error) == (kind, None)
            assert pixels.dtype == np.uint8
            assert np.array_equal(pixels, expected), kind


def test_a_detached_source_does_not_change_with_the_callers(
    decoder: Decoder, picture: Image.Image, tmp_path: Path
) -> None:
    """Callers write frame after frame into one array, and close their files."""
    expected = decoder.preprocess.pixels(picture)[0].numpy()
    values = kinds(picture.copy(), tmp_path)
    values["array"] = np.array(values["array"])
    detached = {kind: decoder.detach(Source(kind, value)) for kind, value in values.items() if kind != "path"}
    for kind in ("array", "array backwards", "floats", "tensor"):
        values[kind][...] = 0
    values["bytearray"][:] = bytes(len(values["bytearray"]))
    values["PIL"].paste(0, (0, 0, 30, 20))
    values["file"].close()
    values["PIL, not loaded"].close()
    for kind, source in detached.items():
        assert np.array_equal(decoder.decode(source).pixels, expected), kind


def test_metadata_are_read_once(decoder: Decoder) -> None:
    """A phone's image in mode RGB that is turned before it is sent must not be turned again."""
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    file = io.BytesIO()
    Image.linear_gradient("L").resize((30, 20)).convert("RGB").save(file, "JPEG", exif=exif, quality=95)
    upright = Image.open(file).rotate(180)
    expected = decoder.preprocess.pixels(upright)[0].numpy()
    for value in (file.getvalue(), Image.open(file)):
        assert np.array_equal(decoder.decode(decoder.detach(Source("x", value))).pixels, expected)


class Unreadable:
    def read(self, size: int = -1) -> bytes:
        raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (NoImage("x: no such thing"), "x: no such thing"),
        ("/no/such/file.jpg", "x: no image file at /no/such/file.jpg"),
        (b"", "x cannot be read as an image: it is empty"),
        (b"junk", "x cannot be read as an image: it is none of JPEG, PNG"),
        (bytes(20_001), "x cannot be read as an image: it has "),
        (memoryview(bytes(20_001)), "x cannot be read as an image: it has "),
        (np.zeros((60, 50, 4), np.uint8), "x cannot be read as an image: it has 50 x 60 pixels"),
        (torch.zeros(3, 60, 50, dtype=torch.uint8), "x cannot be read as an image: it has 50 x 60 pixels"),
        (io.StringIO("text"), "x cannot be read as an image: its file must be opened in binary mode"),
        (Unreadable(), "x cannot be read as an image: the disk is gone"),
        (Image.new("RGB", (50, 41)), "x cannot be read as an image: it has 50 x 41 pixels, more than 2000"),
        (np.zeros((5, 5, 2)), "x cannot be read as an image: an array must have the shape"),
        (np.array(["x"]), "x cannot be read as an image: an array must have the shape"),
        (torch.zeros(3, 4, 4), "x cannot be read as an image: a tensor must be uint8 of shape"),
        (
            torch.zeros(4, 4, dtype=torch.uint8),
            "x cannot be read as an image: a tensor must be uint8 of shape",
        ),
    ],
    ids=range(15),
)
def test_errors_name_the_key_and_the_reason(value: object, error: str) -> None:
    decoder = Decoder(Preprocess(8), DecodingSettings(max_bytes=20_000, max_pixels=2_000))
    key, pixels, found = decoder.decode(decoder.detach(Source("x", value)))
    assert key == "x"
    assert pixels is None
    assert found.startswith(error)


def test_an_image_that_cannot_be_resized() -> None:
    decoder = Decoder(Preprocess(4, resize_mode="longest"), DecodingSettings())
    found = decoder.decode(decoder.detach(Source("x", np.zeros((1, 2000), np.uint8))))
    expected = "x of 2000 x 1 pixels is too elongated for 4 x 4: it would be resized to 4 x 0"
    assert found == ("x", None, expected)


def test_no_more_is_read_than_the_limit(decoder: Decoder) -> None:
    endless = Drip(bytes(10**6))
    found = decoder.decode(decoder.detach(Source("x", endless)))
    assert found.error.startswith("x cannot be read as an image: it has more than ")
    assert endless.given == 20_001


def test_what_is_too_large_is_not_sent_anywhere(decoder: Decoder) -> None:
    for value in (
        bytes(20_001),
        np.zeros((50, 60, 4), np.uint8),
        torch.zeros(3, 50, 60, dtype=torch.uint8),
        Image.new("RGB", (50, 60)),
    ):
        assert isinstance(decoder.detach(Source("x", value)).value, NoImage)


def test_one_bad_source_of_several(decoder: Decoder, picture: Image.Image) -> None:
    sources = [decoder.detach(Source(key, picture if key != "b" else b"?")) for key in "abc"]
    found = decoder.decode_all(sources)
    assert [source.key for source in found] == ["a", "b", "c"]
    assert [source.error is None for source in found] == [True, False, True]
