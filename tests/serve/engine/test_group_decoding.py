"""Images are decoded into their rows: the same pixels in a thread and in a process, which may die."""

import io
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image

from ramen.images.decoding import DecodingSettings
from ramen.images.preprocess import Preprocess
from ramen.serve.decoders import DecodedSource, Decoder
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.group_decoding import FILES_PER_MESSAGE, InProcess, InThread
from ramen.serve.engine.pixel_rows import PixelRows, put_ready
from ramen.serve.sources import Source

SIZE = (8, 6)
DEADLY = b"deadly"
PATIENCE = 60.0


class FragileDecoder(Decoder):
    """Some files end the process, as a defect of a decoder would."""

    def decode(self, source: Source) -> DecodedSource:
        if isinstance(source.value, bytes) and source.value == DEADLY:
            os._exit(1)
        return super().decode(source)


def drawn(seed: int, size: tuple[int, int] = (20, 30)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(drawn(seed)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return FragileDecoder(Preprocess(SIZE), DecodingSettings())


@pytest.fixture(scope="module")
def process(decoder: Decoder) -> Iterator[InProcess]:
    """One that has started."""
    made = InProcess(decoder)
    made.decode_into([SentImage("a", png(0))], np.empty((1, *SIZE, 3), np.uint8))
    assert made._process is not None
    assert made._process.has_started(wait=True)
    yield made
    made.close()
    assert not made._process._process.is_alive()


def expected(decoder: Decoder, seed: int) -> np.ndarray:
    return decoder.preprocess.pixels(Image.fromarray(drawn(seed)))[0].numpy().transpose(1, 2, 0)


@pytest.mark.parametrize("where", ["thread", "process"])
def test_rows_are_what_preprocessing_gives(decoder: Decoder, process: InProcess, where: str) -> None:
    """Files, an array of another size and one of the right size, more than fit into one message."""
    files = [SentImage(str(seed), png(seed)) for seed in range(2 * FILES_PER_MESSAGE + 1)]
    images = [*files, SentImage("large", drawn(50)), SentImage("ready", drawn(51, SIZE))]
    images.insert(3, SentImage("bad", b"no image"))
    rows = np.empty((len(images), *SIZE, 3), np.uint8)
    errors = (InThread(decoder) if where == "thread" else process).decode_into(images, rows)
    by_key = {image.key: (row, error) for image, row, error in zip(images, rows, errors, strict=True)}
    assert (by_key.pop("bad")[1] or "").startswith("bad cannot be read as an image")
    assert [error for _, error in by_key.values()] == [None] * len(by_key)
    assert np.array_equal(by_key.pop("ready")[0], drawn(51, SIZE))
    assert np.array_equal(by_key.pop("large")[0], expected(decoder, 50))
    for seed, (row, _) in by_key.items():
        assert np.array_equal(row, expected(decoder, int(seed))), seed


def test_a_file_that_ends_the_process_gets_an_error_and_no_other(
    decoder: Decoder, process: InProcess
) -> None:
    images = [SentImage(str(seed), png(seed)) for seed in range(FILES_PER_MESSAGE)]
    images[1] = SentImage("deadly", DEADLY)
    rows = np.empty((len(images), *SIZE, 3), np.uint8)
    errors = process.decode_into(images, rows)
    assert errors[1] == "deadly cannot be decoded: the process died of it, or memory ran out"
    assert [error for place, error in enumerate(errors) if place != 1] == [None] * (len(images) - 1)
    for seed in (0, *range(2, len(images))):
        assert np.array_equal(rows[seed], expected(decoder, seed))
    end = time.monotonic() + PATIENCE  # the next process starts beside the work
    while not process._process.has_started(wait=False):  # type: ignore[union-attr]
        assert process.decode_into(images[:1], rows[:1]) == [None]
        assert time.monotonic() < end
    assert process.decode_into(images[2:3], rows[:1]) == [None]
    assert np.array_equal(rows[0], expected(decoder, 2))


def test_arrays_of_one_body_and_of_several() -> None:
    """Neighbours in memory are copied at once; the result is that of copying one by one."""
    body = np.random.default_rng(0).integers(0, 256, (5, *SIZE, 3), np.uint8)
    other = np.random.default_rng(1).integers(0, 256, (3, *SIZE, 3), np.uint8)
    backwards = np.ascontiguousarray(body[:, :, ::-1])[:, :, ::-1]
    for images in (list(body), [body[1], body[2], body[0], other[0], other[1], body[4]], list(backwards), []):
        rows = np.zeros((len(images), *SIZE, 3), np.uint8)
        put_ready(images, rows)
        assert np.array_equal(rows, np.array(images, np.uint8).reshape(rows.shape))


def test_batches_are_joined_in_order() -> None:
    rows = PixelRows(SIZE, torch.device("cpu"), 4)
    batches = [torch.from_numpy(drawn(seed, SIZE)[None].repeat(2, 0)) for seed in range(3)]
    joined = rows.joined(batches)
    assert joined.is_contiguous()
    assert torch.equal(joined, torch.cat(batches).permute(0, 3, 1, 2))
    assert torch.equal(rows.joined(batches[:1]), batches[0].permute(0, 3, 1, 2))
    assert rows.empty(4).shape == (4, *SIZE, 3)
