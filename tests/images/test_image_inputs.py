"""Files of data sets: read as they are stored, in RGB without values that are cut off."""

from pathlib import Path

import numpy as np
import pytest
from image_corpus import drawing, orientation, sixteen_bit_values
from PIL import Image

from ramen.images.decoding import UnreadableImageError
from ramen.images.preprocess import open_image, open_rgb


def test_a_grey_map_of_sixteen_bits(tmp_path: Path) -> None:
    values = sixteen_bit_values()
    path = tmp_path / "wide.pgm"
    path.write_bytes(b"P5 %d %d 65535 " % values.shape[::-1] + values.astype(">u2").tobytes())
    assert np.array_equal(np.asarray(open_rgb(path))[:, :, 1], np.round(values / 257))


def test_images_stay_as_they_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "turned.png"
    drawing("L").save(path, exif=orientation(6))
    assert open_image(path).mode == "L"
    assert open_image(path).tobytes() == drawing("L").tobytes()


def test_a_file_of_numbers_that_are_no_colours_is_named(tmp_path: Path) -> None:
    path = tmp_path / "heights.tif"
    Image.fromarray(np.array([[0, 8848.86]], np.float32)).save(path)
    open_image(path)
    with pytest.raises(UnreadableImageError, match=r"heights\.tif cannot be read .* floats from 0 to 8848"):
        open_rgb(path)
