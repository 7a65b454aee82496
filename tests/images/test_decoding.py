"""Images of every kind are decoded rightly or refused; limits, sources and errors."""

import io
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from image_corpus import (
    drawing,
    good_files,
    hostile_files,
    orientation,
    run_length_bmp,
    save,
    sixteen_bit_values,
)
from PIL import Image, ImageFile

from ramen.images.decoding import MissingImageError, UnreadableImageError, decode
from ramen.images.file_checks import DecodingSettings

GOOD = {file.name: file for file in good_files()}
HOSTILE = {file.name: file for file in hostile_files()}


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# -- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_every_orientation(suffix: str) -> None:
    """As the standard has it: which sides of the upright image the first row and the first column are."""
    first_row_and_column = {
        1: ("top", "left"),
        2: ("top", "right"),
        3: ("bottom", "right"),
        4: ("bottom", "left"),
        5: ("left", "top"),
        6: ("right", "top"),
        7: ("right", "bottom"),
        8: ("left", "bottom"),
    }
    options = {"webp": {"lossless": True}}.get(suffix, {})
    name = {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper())
    stored = pixels(decode(save(drawing(), name, **options)))
    height, width = stored.shape[:2]
    for value, (row_side, column_side) in first_row_and_column.items():
        rows_go_down = row_side in ("top", "bottom")
        upright = np.zeros((height, width, 3) if rows_go_down else (width, height, 3), dtype=np.uint8)
        for row in range(height):
            for column in range(width):
                down, across = (row, column) if rows_go_down else (column, row)
                down = upright.shape[0] - 1 - down if "bottom" in (row_side, column_side) else down
                across = upright.shape[1] - 1 - across if "right" in (row_side, column_side) else across
                upright[down, across] = stored[row, column]
        data = save(drawing(), name, exif=orientation(value), **options)
        assert np.array_equal(pixels(decode(data)), upright), value
        assert np.array_equal(pixels(decode(decode(data))), upright), "turned twice"
        if suffix != "tif":  # which Pillow itself turns
            assert np.array_equal(pixels(decode(data, DecodingSettings(orient=False))), stored)


@pytest.mark.parametrize("exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0"])
def test_exif_data_that_cannot_be_read_turn_nothing(exif: bytes) -> None:
    plain, odd = save(drawing(), "JPEG"), save(drawing(), "JPEG", exif=exif)
    assert np.array_equal(pixels(decode(odd)), pixels(decode(plain)))


def test_a_pil_image_is_turned_like_its_file_and_stays_as_it_was() -> None:
    data = save(drawing(), "JPEG", exif=orientation(6))
    image = Image.open(io.BytesIO(data))
    assert np.array_equal(pixels(decode(image)), pixels(decode(data)))
    assert image.size == drawing().size
    assert image.getexif()[274] == 6
    plain = drawing()
    decode(plain).putpixel((0, 0), (1, 2, 3))
    assert plain.tobytes() == drawing().tobytes()


@pytest.mark.parametrize(
    "name", ["16 bits.png", "16 bits.tif", "16 bits, big-endian.tif", "16 bits, packed.tif"]
)
def test_sixteen_bits(name: str) -> None:
    expected = np.round(sixteen_bit_values() / 257)
    assert expected.min() == 0
    assert expected.max() == 255
    assert np.array_equal(pixels(decode(GOOD[name].data)), np.stack([expected] * 3, -1))


@pytest.mark.parametrize("name", ["unit floats.tif", "floats.tif"])
def test_floats(name: str) -> None:
    expected = np.round(sixteen_bit_values() / 257)
    assert np.array_equal(pixels(decode(GOOD[name].data)), np.stack([expected] * 3, -1))


def test_the_first_frame_is_decoded() -> None:
    for name in ("animated.png", "pages.tif"):
        assert np.array_equal(pixels(decode(GOOD[name].data)), pixels(drawing())), name
    for name in ("animated.gif", "animated.webp", "multi picture.jpg"):  # not exactly, in these formats
        distances = [
            np.abs(pixels(decode(GOOD[name].data)) - 1.0 * pixels(drawing(seed=s))).mean() for s in range(3)
        ]
        assert distances[0] < min(distances[1:]), name


@pytest.mark.parametrize(
    "name",
    [
        "cmyk.jpg",
        "ycbcr.jpg",
        "l.jpg",
        "la.png",
        "1.png",
        "rgba.png",
        "palette.png",
        "one clear.png",
        "some clear.png",
        "clear.gif",
        "clear.webp",
        "p.bmp",
        "cmyk.tif",
        "ycbcr.tif",
        "zip appended.jpg",
    ],
)
def test_other_modes_are_converted_as_by_pillow(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = Image.open(io.BytesIO(GOOD[name].data)).convert("RGB")
    assert np.array_equal(pixels(decode(GOOD[name].data)), pixels(expected))


# -- sources ----------------------------------------------------------------------------------------


class Trickle(io.RawIOBase):
    """A file object that cannot seek and gives a few bytes at a time, as a socket does."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self.given = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = self._data.read(min(size, 1000))
        self.given += len(part)
        return part


def test_sources_of_every_kind_agree(tmp_path: Path) -> None:
    image = drawing()
    data, array = save(image, "PNG"), np.asarray(image)
    path = tmp_path / "image.png"
    path.write_bytes(data)
    (tmp_path / "link").symlink_to(path)
    at_its_end = io.BytesIO()
    at_its_end.write(data)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    sources = [path, str(path), tmp_path / "link", data, bytearray(data), memoryview(data), Trickle(data)]
    sources += [at_its_end, image, array, np.asfortranarray(array), tensor]
    sources += [Image.open(path), array.astype(np.float32), array / 255.0, array.astype(np.float16)]
    sources += [array.astype(np.uint16) * 257, array.astype(">u2") * 257, np.dstack([array, array[:, :, 0]])]
    with path.open("rb") as file:
        sources.append(file)
        for source in sources:
            assert np.array_equal(pixels(decode(source)), array), type(source)
    grey = array[:, :, 0]
    for source in (grey, grey[:, :, None], grey.astype(np.uint16) * 257, grey / 255):
        assert np.array_equal(pixels(decode(source)), np.stack([grey] * 3, -1))


@pytest.mark.parametrize(
    ("source", "came"),
    [
        (3, "int"),
        (None, "NoneType"),
        (io.StringIO("text"), "str"),
        (np.zeros((3, 40, 50), np.uint8), r"\(3, 40, 50\)"),
        (np.zeros((4, 4), np.int64), "int64"),
        (np.zeros((4, 4), bool), "bool"),
        (np.zeros((0, 4), np.uint8), "4 x 0"),
        (np.full((2, 2), 256.0), "from 256 to 256"),
        (np.array([[0, -1.0]]), "from -1 to 0"),
        (np.array([[0, np.nan]]), "not finite"),
        (np.array([[0, np.inf]]), "not finite"),
        (torch.zeros(3, 4, 4), r"torch.float32 \(3, 4, 4\)"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), r"torch.uint8 \(4, 4, 3\)"),
        ("nul\0.png", "null"),
        (b"", "empty"),
    ],
    ids=lambda given: given if isinstance(given, str) and given.isprintable() else type(given).__name__,
)
def test_what_is_no_image(source: object, came: str) -> None:
    with pytest.raises(UnreadableImageError, match=came):
        decode(source)


def test_a_missing_file_is_both_kinds_of_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^no image file at .*missing\.png$") as caught:
        decode(tmp_path / "missing.png")
    assert isinstance(caught.value, UnreadableImageError)
    with pytest.raises(MissingImageError, match=r"^camera 7: no image file at .*missing\.png$"):
        decode(tmp_path / "missing.png", name="camera 7")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, reason in (
        (tmp_path, "it is a directory"),
        (tmp_path / "fifo", "it is not a regular file"),  # and nobody ever writes to it
        (Path("/dev/zero"), "it is not a regular file"),
        (tmp_path / "loop", "symbolic links"),
    ):
        with pytest.raises(UnreadableImageError, match=f"{path} cannot be read as an image: .*{reason}"):
            decode(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(save(drawing(), "PNG"))

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableImageError, match=r"secret\.png cannot be read .*Permission denied"):
        decode(path)


class Failing(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise RuntimeError("the connection was reset")


def test_any_error_of_a_file_object_is_one_of_the_image() -> None:
    with pytest.raises(UnreadableImageError, match=r"image 3 cannot be read .*the connection was reset"):
        decode(Failing(), name="image 3")


# -- limits -----------------------------------------------------------------------------------------


def test_bytes_are_counted_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.truncate(10**10)  # takes no space
    with pytest.raises(UnreadableImageError, match=r"it has 9.31 GiB, more than 64.00 MiB"):
        decode(path)
    endless = Trickle(bytes(10**6))
    with pytest.raises(UnreadableImageError, match=r"it has more than 4\.88 KiB"):
        decode(endless, DecodingSettings(max_bytes=5000))
    assert endless.given == 5001
    data = save(drawing(), "PNG")
    assert decode(data, DecodingSettings(max_bytes=len(data)))
    for source in (data, memoryview(data), io.BytesIO(data)):
        with pytest.raises(UnreadableImageError, match="more than"):
            decode(source, DecodingSettings(max_bytes=len(data) - 1))


@pytest.mark.parametrize("kind", ["file", "pil", "array", "tensor"])
def test_pixels_are_counted_before_they_are_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = drawing()
    sources = {
        "file": save(image, "PNG"),
        "pil": Image.open(io.BytesIO(save(image, "PNG"))),
        "array": np.asarray(image),
        "tensor": torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1),
    }
    count = image.width * image.height
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(UnreadableImageError, match=f"it has 48 x 36 pixels, more than {count - 1}"):
        decode(sources[kind], DecodingSettings(max_pixels=count - 1))
    monkeypatch.undo()
    assert decode(sources[kind], DecodingSettings(max_pixels=count)).size == image.size


def test_an_image_beyond_pillows_own_warning_is_decoded_if_the_limit_allows_it() -> None:
    data = save(Image.new("1", (10_000, 9_000)), "PNG")
    with no_warnings():
        assert decode(data, DecodingSettings(max_pixels=10**8)).size == (10_000, 9_000)


def test_only_chosen_formats_are_tried() -> None:
    only_jpeg = DecodingSettings(formats=["jpeg"])
    assert only_jpeg.formats == ("JPEG",)
    assert decode(GOOD["rgb.jpg"].data, only_jpeg)
    assert decode(GOOD["multi picture.jpg"].data, only_jpeg)
    for name in ("rgb.png", "lossless.webp", "rgb.bmp", "grey.gif", "rgb.tif"):
        with pytest.raises(UnreadableImageError, match="it is none of JPEG, or its header is damaged"):
            decode(GOOD[name].data, only_jpeg)
    with pytest.raises(UnreadableImageError, match="its format is PNG, none of JPEG"):
        decode(Image.open(io.BytesIO(GOOD["rgb.png"].data)), only_jpeg)
    postscript = Image.open(io.BytesIO(HOSTILE["postscript.jpg"].data))
    with pytest.raises(UnreadableImageError, match="its format is EPS, none of"):
        decode(postscript)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("formats", ("JPEG", "EPS"), ValueError),
        ("formats", (), ValueError),
        ("formats", "JPEG", ValueError),
        ("max_pixels", 0, ValueError),
        ("max_bytes", 0, ValueError),
        ("orient", "yes", TypeError),
    ],
)
def test_bad_settings(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        DecodingSettings(**{name: value})


# -- many at once -----------------------------------------------------------------------------------


def test_threads_decode_alike_and_leave_the_filters_of_warnings_alone() -> None:
    names = ["some clear.png", "rgb.jpg", "pages.tif", "bomb.png"]
    results: list[object] = []
    before = list(warnings.filters)

    def work(seed: int) -> None:
        for index in range(30):
            name = names[(seed + index) % len(names)]
            try:
                results.append((name, decode((GOOD | HOSTILE)[name].data).tobytes()))
            except UnreadableImageError as error:
                results.append((name, str(error)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 * 30
    assert len(set(results)) == len(names)
    assert warnings.filters == before


def test_a_run_length_encoded_bmp_file_of_many_codes() -> None:
    values = np.random.default_rng(0).integers(0, 256, (300, 300), dtype=np.uint8)
    codes = b"".join(b"".join(bytes((1, value)) for value in row) + b"\0\0" for row in values) + b"\0\1"
    image = decode(run_length_bmp(300, 300, codes))
    assert np.array_equal(np.asarray(image)[..., 0], values[::-1])


def test_libtiff_says_nothing_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    data = save(drawing(), "TIFF", compression="tiff_lzw")
    with pytest.raises(UnreadableImageError):
        decode(data[:8] + bytes(len(data) // 3) + data[8 + len(data) // 3 :])
    assert capfd.readouterr().err == ""
