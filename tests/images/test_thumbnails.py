import base64
import io

import numpy as np
import pytest
from PIL import Image

from ramen.images.decoding import decode
from ramen.images.file_checks import DecodingSettings
from ramen.images.thumbnails import SIDE, make_thumbnail, make_thumbnails

SETTINGS = DecodingSettings()


def picture(width, height):
    """A smooth image, red on the left and blue at the bottom, that small copies of it resemble."""
    red, blue = np.linspace(255, 0, width), np.linspace(0, 255, height)
    pixels = np.stack([np.broadcast_to(red, (height, width)), np.full((height, width), 60.0)], 2)
    pixels = np.concatenate([pixels, np.broadcast_to(blue[:, None, None], (height, width, 1))], 2)
    return Image.fromarray(pixels.astype(np.uint8))


def content(thumbnail):
    head, data = thumbnail.source.split(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_it_looks_like_what_the_predictor_sees(tmp_path, suffix, orientation):
    """The quick way for JPEG gives the same image, upright, as decoding everything."""
    path = tmp_path / f"a.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture(1600, 900).save(path, exif=exif)
    found = content(make_thumbnail(str(path), SETTINGS))
    assert found.size == ((256, 144) if orientation == 1 else (144, 256))
    whole = decode(path, SETTINGS).resize(found.size)
    difference = np.asarray(found, dtype=float) - np.asarray(whole, dtype=float)
    assert np.abs(difference).mean() < 4


def test_orientation_can_be_ignored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(800, 400).save(tmp_path / "a.jpg", exif=exif)
    settings = DecodingSettings(orient=False)
    assert content(make_thumbnail(str(tmp_path / "a.jpg"), settings)).size == (256, 128)


def test_small_images_keep_their_size_and_pixels(tmp_path):
    picture(32, 32).save(tmp_path / "small.png")
    picture(SIDE, 100).save(tmp_path / "large.png")
    small, large = make_thumbnails([str(tmp_path / "small.png"), str(tmp_path / "large.png")], SETTINGS)
    assert (small.pixelated, large.pixelated) == (True, False)
    assert content(small).size == (32, 32)


def test_what_cannot_be_read_has_none(tmp_path):
    (tmp_path / "nonsense.jpg").write_bytes(b"nonsense")
    picture(64, 64).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:400])
    picture(100, 100).save(tmp_path / "large.jpg")
    small = DecodingSettings(max_pixels=5000)
    for name in ("gone.jpg", "nonsense.jpg", "cut.jpg", "large.jpg"):
        assert make_thumbnail(str(tmp_path / name), small) is None
    assert make_thumbnail(str(tmp_path / "large.jpg"), DecodingSettings(formats=("PNG",))) is None
