"""Decodes a few images of a request into their memory, in the thread that asks or in a process of its own.

Much of what decoding does needs Python's lock, which all threads of a process share: from some thousand files
a second on, more threads do not decode more of them. Processes do. A file that crashes a decoder ends its
process, not the service.
"""

import json
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np

from ramen.client.operations import SentImage
from ramen.predict.decoding import Decoder
from ramen.serve.engine.pixel_rows import Pixels, Size
from ramen.serve.shared_memory import SharedRegions
from ramen.utils.workers import STARTING, start_worker

FILES_PER_MESSAGE = 16  # at most: each message costs about as much time as a file
_LONGEST_REPLY = 2**20  # bytes


class DecodedSlot(NamedTuple):
    """What is in the memory of an image.

    Attributes:
        error: Why there is nothing.
        size: Height and width of the image as it was sent.
        is_resized: Whether its pixels have the encoder's size, and not that.
    """

    error: str | None
    size: Size | None = None
    is_resized: bool = True


class GroupDecoder(Protocol):
    """What a decoding thread works with."""

    def start(self) -> None:
        """Images will come: get ready for them."""

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        """Put each image into the beginning of its slot ``(bytes,)``.

        Args:
            images: The images.
            slots: One for each.
            unresized: Images of this size are left as they are; others get the encoder's.
        """

    def close(self) -> None:
        """It is not needed any more."""


class InThread:
    """Decodes where it is called.

    Args:
        decoder: Decodes one image.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def start(self) -> None:
        """Nothing to do."""

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        """Fill a slot per image; errors are returned."""
        return [
            decode_one(self._decoder, one, slot, unresized) for one, slot in zip(images, slots, strict=True)
        ]

    def close(self) -> None:
        """Nothing to do."""


def decode_one(decoder: Decoder, image: SentImage, slot: Pixels, unresized: Size | None) -> DecodedSlot:
    """Fill a slot."""
    value = image.value
    if decoder.is_ready(value):
        return _put(value, slot, DecodedSlot(None, decoder.preprocess.size))  # type: ignore[arg-type]
    found = decoder.image(image.key, value)
    if isinstance(found, str):
        return DecodedSlot(found)
    size = found.height, found.width
    if size == unresized:
        return _put(np.asarray(found), slot, DecodedSlot(None, size, is_resized=False))
    resized = decoder.resized(image.key, found)
    if resized.pixels is None:
        return DecodedSlot(resized.error)
    return _put(resized.pixels.transpose(1, 2, 0), slot, DecodedSlot(None, size))


def _put(pixels: Pixels, slot: Pixels, about: DecodedSlot) -> DecodedSlot:
    np.copyto(slot[: pixels.size].reshape(pixels.shape), pixels)
    return about


class InProcess:
    """Decodes files in a process; until it is there, which takes seconds, this thread does.

    Args:
        decoder: Decodes one image.
        regions: Memory that the process shares. Slots must be in it; images that are in it need not be sent.
    """

    def __init__(self, decoder: Decoder, regions: SharedRegions) -> None:
        self._decoder, self._regions = decoder, regions
        self._here = InThread(decoder)
        self._process: _Process | None = None

    def start(self) -> None:
        """Start the process."""
        self._process = _Process(self._decoder, self._regions)

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        """Fill a slot per image; errors are returned."""
        if self._process is None or not self._process.has_started(wait=False):
            return self._here.decode_into(images, slots, unresized)
        found: list[DecodedSlot] = []
        for start in range(0, len(images), FILES_PER_MESSAGE):
            piece = slice(start, start + FILES_PER_MESSAGE)
            found += self._in_process(images[piece], slots[piece], unresized)
        return found

    def _in_process(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        assert self._process is not None
        try:
            return self._process.decode_into(images, slots, unresized)
        except (OSError, EOFError):  # it has ended
            self._process.end()
            self.start()
        if len(images) > 1:
            pieces = [slice(place, place + 1) for place in range(len(images))]
            return [found for one in pieces for found in self._alone(images[one], slots[one], unresized)]
        return [DecodedSlot(f"{images[0].key} cannot be decoded: the process died of it, or memory ran out")]

    def _alone(self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None) -> list[DecodedSlot]:
        assert self._process is not None
        if not self._process.has_started(wait=True):  # never here: one of these files ends processes
            return [DecodedSlot(f"{images[0].key} cannot be decoded: no process for it can be started")]
        return self._in_process(images, slots, unresized)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()


class _Process:
    """A process that decodes into memory that it shares with this one."""

    def __init__(self, decoder: Decoder, regions: SharedRegions) -> None:
        self._regions = regions
        spawning = multiprocessing.get_context("spawn")
        self._connection, other = spawning.Pipe()
        self._process = spawning.Process(
            target=_work, args=(other, regions, decoder), name="ramen-decoding", daemon=True
        )
        with STARTING:
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

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        """Fill a slot per image; OSError or EOFError if the process ends."""
        place = self._regions.place_of(slots)
        assert place is not None, "slots must be in memory that the process shares"
        listed = [(image.key, self._sent(image)) for image in images]
        self._connection.send((place, slots.shape, unresized, listed))
        # JSON, as whoever decodes what strangers send is not to be trusted with more
        found = json.loads(self._connection.recv_bytes(_LONGEST_REPLY))
        return [_checked(one, unresized) for one in found]

    def _sent(self, image: SentImage) -> Any:
        """Where an image is, if the process can see it there; else the image itself."""
        data = image.data
        place = self._regions.place_of(data) if isinstance(data, np.ndarray) else None
        return data if place is None else (place, data.shape)  # type: ignore[union-attr]

    def end(self) -> None:
        """End it now."""
        self._connection.close()
        self._process.kill()
        self._process.join()


def _checked(said: Sequence[Any], unresized: Size | None) -> DecodedSlot:
    """What a process says is in a slot; it may be wrong about the image, not about the memory."""
    error, size, is_resized = said
    found = None if size is None else (int(size[0]), int(size[1]))
    return DecodedSlot(None if error is None else str(error), found, bool(is_resized) or found != unresized)


def _work(connection: Connection, regions: SharedRegions, decoder: Decoder) -> None:
    start_worker()
    connection.send_bytes(b"ready")
    while True:
        try:
            place, shape, unresized, sent = connection.recv()
        except EOFError:
            return
        slots = regions.array_at(place, shape)
        images = [SentImage(key, _found(regions, data)) for key, data in sent]
        pairs = zip(images, slots, strict=True)
        found = [decode_one(decoder, image, slot, unresized) for image, slot in pairs]
        connection.send_bytes(json.dumps(found).encode())


def _found(regions: SharedRegions, data: Any) -> bytes | Pixels:
    return regions.array_at(*data) if isinstance(data, tuple) else data
