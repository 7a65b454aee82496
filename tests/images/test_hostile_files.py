"""The whole corpus of image files, and random damage to it: each file is decoded rightly or refused."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from image_corpus import CorpusFile, drawing, good_files, hostile_files, mutated, save
from PIL import Image

from ramen.images.decoding import UnreadableImageError, decode
from ramen.images.file_checks import MAX_PIXELS
from tests.helpers.slow_tests import RUN_SLOW_TESTS

GOOD = {file.name: file for file in good_files()}
HOSTILE = {file.name: file for file in hostile_files()}


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("file", GOOD.values(), ids=list(GOOD))
def test_good_files_are_decoded(file: CorpusFile) -> None:
    with no_warnings():
        image = decode(file.data)
    assert (image.mode, image.size, image.info) == ("RGB", file.size, {})
    assert np.asarray(image).std() > 5 or image.size == (1, 1) or file.name == "run-length.bmp"


@pytest.mark.parametrize("file", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_files_are_refused(file: CorpusFile) -> None:
    with no_warnings(), pytest.raises(UnreadableImageError) as caught:
        decode(file.data, name=file.name)
    message = str(caught.value)
    assert message.startswith(f"{file.name} cannot be read as an image: ")
    assert file.refusal in message
    assert len(message) < 400
    assert "\n" not in message


def small_files() -> list[CorpusFile]:
    return [file for file in (GOOD | HOSTILE).values() if 0 < len(file.data) < 20_000]


@pytest.mark.parametrize("seed", range(20 if RUN_SLOW_TESTS else 2))
def test_damaged_files_are_decoded_or_refused(seed: int) -> None:
    """500 random mutations for each seed; 10,000 with the slow tests."""
    rng, files = random.Random(seed), small_files()
    decoded = refused = 0
    with no_warnings():
        for _ in range(500):
            data = mutated(rng.choice(files).data, rng)
            try:
                image = decode(data)
            except UnreadableImageError:
                refused += 1
            else:
                decoded += 1
                assert image.mode == "RGB"
                assert 1 <= image.width * image.height <= MAX_PIXELS
    assert decoded > 20
    assert refused > 200


@pytest.mark.parametrize("suffix", ["png", "webp", "bmp", "gif", "tif", "jpg"])
def test_a_truncated_file_is_refused_or_has_all_its_pixels(suffix: str) -> None:
    """Cut off at every byte; no image is ever half grey."""
    whole = save(drawing(), {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()))
    expected = pixels(decode(whole))
    refused = 0
    for length in range(len(whole)):
        try:
            image = decode(whole[:length])
        except UnreadableImageError:
            refused += 1
        else:
            assert np.array_equal(pixels(image), expected)
    assert refused > 0.9 * len(whole)
