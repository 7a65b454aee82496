"""Conversions to eight bits: the wide modes by their rules, all others by Pillow."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_corpus import drawing, good_files, save, sixteen_bit_values, tiff
from PIL import Image

from ramen.images import rgb
from ramen.images.rgb import float_scaling, sixteen_bits, to_eight_bits, to_rgb

GOOD = {file.name: file.data for file in good_files()}


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_every_value_of_sixteen_bits_is_rounded() -> None:
    values = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(sixteen_bits(values), np.round(values / 257))


@given(st.lists(st.floats(0, 255), min_size=1, max_size=20))
def test_floats_are_rounded(values: list[float]) -> None:
    white = 255 if max(values) <= 1 else 1
    result = float_scaling((min(values), max(values)))(np.array(values))
    assert np.abs(result - white * np.array(values)).max() <= 0.5


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I;16L"])
def test_modes_of_sixteen_bits(mode: str) -> None:
    values = sixteen_bit_values()
    raw = values.astype(">u2" if mode == "I;16B" else "<u2").tobytes()
    image = Image.frombytes(mode, values.shape[::-1], raw)
    assert np.array_equal(np.asarray(to_eight_bits(image)), np.round(values / 257))


def test_strips_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [opened(GOOD[name]) for name in ("16 bits.png", "unit floats.tif", "small integers.tif")]
    whole = [np.asarray(to_rgb(image)) for image in images]
    for count in (1, 100):  # one row at a time, two at a time
        monkeypatch.setattr(rgb, "_STRIP_PIXELS", count)
        assert all(np.array_equal(np.asarray(to_rgb(i)), w) for i, w in zip(images, whole, strict=True))


def test_the_range_is_that_of_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dark strip of an image up to 255 is not taken for one up to 1."""
    values = np.array([[0.25, 1], [7, 200]], dtype=np.float32)
    monkeypatch.setattr(rgb, "_STRIP_PIXELS", 1)
    assert np.asarray(to_eight_bits(Image.fromarray(values))).tolist() == [[0, 1], [7, 200]]


def test_twelve_bits() -> None:
    values = np.array([[0, 1, 2047, 2048], [4094, 4095, 256, 8]])
    assert np.array_equal(
        np.asarray(to_eight_bits(opened(GOOD["12 bits.tif"]))), np.round(values / 4095 * 255)
    )


def test_white_may_be_zero() -> None:
    upright, inverted = (opened(GOOD[name]) for name in ("16 bits.tif", "16 bits, white is 0.tif"))
    assert np.array_equal(np.asarray(to_eight_bits(inverted)), 255 - np.asarray(to_eight_bits(upright)))


def test_a_grey_map_of_sixteen_bits() -> None:
    """Pillow gives such files of data sets as 32-bit integers."""
    values = sixteen_bit_values()
    image = opened(b"P5 %d %d 65535 " % values.shape[::-1] + values.astype(">u2").tobytes())
    image.load()
    assert image.mode == "I"
    assert np.array_equal(np.asarray(to_eight_bits(image)), np.round(values / 257))


def test_integers_of_which_nothing_says_what_is_white() -> None:
    assert np.asarray(to_eight_bits(Image.fromarray(np.array([[0, 255]], np.int32)))).tolist() == [[0, 255]]
    for low, high in ((0, 256), (-1, 5), (0, 2**31 - 1)):
        with pytest.raises(ValueError, match=f"it has 32-bit integers from {low} to {high}: "):
            to_rgb(Image.fromarray(np.array([[low, high]], np.int32)))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0, 1.5, 256], "it has floats from 0 to 256: expected all within 0 to 1, or all within 0 to 255"),
        ([-0.1, 1], "it has floats from -0.1 to 1"),
        ([0, np.nan], "it has values that are not finite"),
        ([0, -np.inf], "it has values that are not finite"),
    ],
)
def test_floats_that_are_refused(values: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        to_rgb(Image.fromarray(np.array([values], np.float32)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"])
def test_modes_of_eight_bits_are_left_to_pillow(mode: str) -> None:
    image = drawing(mode)
    assert to_eight_bits(image) is image
    assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(image.convert("RGB")))


def test_lab_is_converted_or_refused_as_by_pillow() -> None:
    image = opened(save(Image.new("LAB", (4, 4), (128, 128, 128)), "TIFF"))
    assert image.mode == "LAB"
    try:
        expected = image.convert("RGB")
    except ValueError as error:  # before Pillow 13
        with pytest.raises(ValueError, match=str(error)):
            to_rgb(image)
    else:
        assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(expected))


def test_a_bilevel_file_is_not_inverted_twice() -> None:
    image = opened(tiff(8, 1, strips=[8], data=b"\xf0"))
    assert np.asarray(to_rgb(image))[0, :, 0].tolist() == [255] * 4 + [0] * 4
