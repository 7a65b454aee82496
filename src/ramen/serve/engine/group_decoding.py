"""Decodes a few images of a ticket into their rows, in the thread that asks or in a process of its own.

Much of what decoding does needs Python's lock, which all threads of a process share: from some thousand files
a second on, more threads do not decode more of them. Processes do. A file that crashes a decoder ends its
process, not the service.
"""

import ctypes
import json
import multiprocessing
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from ramen.serve.decoders import Decoder
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.pixel_rows import Pixels, put_ready
from ramen.serve.sources import Source
from ramen.utils.worker_processes import start_worker

FILES_PER_MESSAGE = 4
_LONGEST_REPLY = 2**20  # bytes
_STARTING = threading.Lock()


class GroupDecoder(Protocol):
    """What a decoding thread works with."""

    def decode_into(self, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
        """Fill a row ``(height, width, 3)`` per image; why there is nothing in it, or None, for each."""

    def close(self) -> None:
        """It is not needed any more."""


class InThread:
    """Decodes where it is called.

    Args:
        decoder: Decodes one image.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode_into(self, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
        """Fill a row per image; errors are returned."""
        ready = [image.data for image in images if self._decoder.is_ready(image.data)]
        if len(ready) == len(images):
            put_ready(ready, rows)  # type: ignore[arg-type]
            return [None] * len(images)
        return [decode_one(self._decoder, image, row) for image, row in zip(images, rows, strict=True)]

    def close(self) -> None:
        """Nothing to do."""


def decode_one(decoder: Decoder, image: SentImage, row: Pixels) -> str | None:
    """Fill a row; returns an error, if there is one."""
    decoded = decoder.decode(Source(image.key, image.data))
    if decoded.pixels is not None:
        np.copyto(row, decoded.pixels.transpose(1, 2, 0))
    return decoded.error


class InProcess:
    """Decodes files in a process, which starts when the first one comes; until it is there, this thread does.

    Args:
        decoder: Decodes one image.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._here = decoder, InThread(decoder)
        self._process: _Process | None = None

    def decode_into(self, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
        """Fill a row per image; errors are returned."""
        if all(self._decoder.is_ready(image.data) for image in images):
            return self._here.decode_into(images, rows)
        if self._process is None:
            self._process = _Process(self._decoder)
        if not self._process.has_started(wait=False):
            return self._here.decode_into(images, rows)
        found: list[str | None] = []
        for start in range(0, len(images), FILES_PER_MESSAGE):
            piece = slice(start, start + FILES_PER_MESSAGE)
            found += self._in_process(images[piece], rows[piece])
        return found

    def _in_process(self, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
        assert self._process is not None
        try:
            return self._process.decode_into(images, rows)
        except (OSError, EOFError):  # it has ended
            self._process.end()
            self._process = _Process(self._decoder)
        if len(images) > 1:
            pieces = [slice(place, place + 1) for place in range(len(images))]
            return [error for one in pieces for error in self._alone(images[one], rows[one])]
        return [f"{images[0].key} cannot be decoded: the process died of it, or memory ran out"]

    def _alone(self, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
        assert self._process is not None
        if not self._process.has_started(wait=True):  # never here: one of these files ends processes
            return [f"{images[0].key} cannot be decoded: no process for it can be started"]
        return self._in_process(images, rows)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()


class _Process:
    """A process that decodes into memory that it shares with this one."""

    def __init__(self, decoder: Decoder) -> None:
        spawning = multiprocessing.get_context("spawn")
        shape = (FILES_PER_MESSAGE, *decoder.preprocess.size, 3)
        memory: Any = spawning.RawArray(ctypes.c_uint8, int(np.prod(shape)))
        self._rows: Pixels = np.frombuffer(memory, np.uint8).reshape(shape)
        self._connection, other = spawning.Pipe()
        self._process = spawning.Process(
            target=_work, args=(other, memory, shape, decoder), name="ramen-decoding", daemon=True
        )
        with _STARTING:  # what multiprocessing notes of its processes is not made for several threads
            self._process.start()
        other.close()
        self._started = False

    def has_started(self, *, wait: bool) -> bool:
        """Whether it can work; one that has ended cannot."""
        try:
            if not self._started and (wait or self._connection.poll()):
                self._connection.recv_bytes(_LONGEST_REPLY)
                self._started = True
        except (OSError, EOFError):
            return False
        return self._started

    def decode_into(self, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
        """Fill a row per image; OSError or EOFError if the process ends."""
        self._connection.send([(image.key, image.data) for image in images])
        # JSON, as whoever decodes what strangers send is not to be trusted with more
        errors = json.loads(self._connection.recv_bytes(_LONGEST_REPLY))
        np.copyto(rows, self._rows[: len(images)])
        return [None if error is None else str(error) for error in errors]

    def end(self) -> None:
        """End it now."""
        self._connection.close()
        self._process.kill()
        self._process.join()


def _work(connection: Connection, memory: Any, shape: tuple[int, ...], decoder: Decoder) -> None:
    start_worker()
    rows = np.frombuffer(memory, np.uint8).reshape(shape)
    connection.send_bytes(b"ready")
    while True:
        try:
            images = [SentImage(key, data) for key, data in connection.recv()]
        except EOFError:
            return
        errors = [decode_one(decoder, image, row) for image, row in zip(images, rows, strict=False)]
        connection.send_bytes(json.dumps(errors).encode())
