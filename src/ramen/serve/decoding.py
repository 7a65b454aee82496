"""Decoding of what is sent, where it has arrived; streams take turns.

Under overload most of what waits is not answered soon, or ever. Decoding it ahead would take the time of
those that are, so no more is decoded than is soon needed. Files of strangers are decoded in processes: one
that crashes its decoder, or takes too long, ends that process, and costs no other image.
"""

import asyncio
import json
import multiprocessing
import signal
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np

from ramen.client.operations import SentImage
from ramen.images.file_checks import declared_size
from ramen.predict.decoding import Decoder
from ramen.serve.arena import Arena, SharedRegion
from ramen.serve.pixels import DecodedImages, PixelRules, Pixels, Size
from ramen.utils.workers import STARTING, start_worker

LONGEST = 2.0  # seconds of a core that a process may spend on a file
_FILES_PER_TURN = 16  # at most: each message costs about as much time as a file
_STUCK = 60.0  # seconds without a sign of life, however little of the core a process gets
_LONGEST_REPLY = 2**20  # bytes
_LOOK = 0.05  # seconds after which is looked whether there is memory again
_MOST_BYTES = 2**29  # that files may take while they are decoded; beyond it, they wait for each other
_PIXEL_BYTES = 8  # that a decoder takes for a pixel, if colours are converted or the image is turned
_HEADER = 4096  # bytes
_PIXELS_PER_BYTE = 100  # of a file whose header was not read; photographs have about ten
BATCHES_AHEAD = 6  # that may be decoded: some wait, up to two are being answered
_MOST_STREAMS = 4096  # whose images are known to have some size


class DecodedSlot(NamedTuple):
    """What is in the memory of an image: why there is nothing, or the size of what is there.

    Attributes:
        error: Why there is nothing.
        size: Height and width of what is in the slot.
        sent: Height and width of the image as it was sent.
    """

    error: str | None
    size: Size | None = None
    sent: Size | None = None


class FileDecoder(Protocol):
    """What decodes a few images, one after the other, while the event loop does other things."""

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


class ThreadDecoder:
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
            _decode_one(self._decoder, one, slot, unresized) for one, slot in zip(images, slots, strict=True)
        ]

    def close(self) -> None:
        """Nothing to do."""


def _decode_one(decoder: Decoder, image: SentImage, slot: Pixels, unresized: Size | None) -> DecodedSlot:
    value = image.value
    if decoder.is_ready(value):
        return _put(value, slot, decoder.preprocess.size)  # type: ignore[arg-type]
    found = decoder.image(image.key, value)
    if isinstance(found, str):
        return DecodedSlot(found)
    sent = found.height, found.width
    if sent == unresized:
        return _put(np.asarray(found), slot, sent)
    resized = decoder.resized(image.key, found)
    if resized.pixels is None:
        return DecodedSlot(resized.error)
    return _put(resized.pixels.transpose(1, 2, 0), slot, sent)


def _put(pixels: Pixels, slot: Pixels, sent: Size) -> DecodedSlot:
    np.copyto(slot[: pixels.size].reshape(pixels.shape), pixels)
    return DecodedSlot(None, (pixels.shape[0], pixels.shape[1]), sent)


class ProcessDecoder:
    """Decodes in a process, which is replaced if a file ends it or takes too long.

    Args:
        decoder: Decodes one image.
        region: Memory that the process shares. Slots must be in it; images that are in it need not be sent.
    """

    def __init__(self, decoder: Decoder, region: SharedRegion) -> None:
        self._decoder, self._region = decoder, region
        self._process: _Process | None = None

    def start(self) -> None:
        """Start the process, and wait until it can work; OSError or EOFError if it cannot."""
        self.close()
        self._process = _Process(self._decoder, self._region)
        self._process.receive()

    def decode_into(
        self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None
    ) -> list[DecodedSlot]:
        """Fill a slot per image; errors are returned."""
        found: list[DecodedSlot] = []
        while len(found) < len(images):
            if self._process is None or not self._process.lives():
                self.start()
            assert self._process is not None
            try:
                self._process.send(images[len(found) :], slots[len(found) :], unresized)
                while len(found) < len(images):
                    found.append(_checked(self._process.receive(), slots.shape[1]))
            except (OSError, EOFError, ValueError, TypeError):
                why = self._process.end()
                found.append(DecodedSlot(f"{images[len(found)].key} cannot be decoded: {why}"))
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None


class _Process:
    """A process that decodes into memory that it shares with this one.

    It is a copy of one that has imported what is needed and has no threads: so it is there at once.
    """

    def __init__(self, decoder: Decoder, region: SharedRegion) -> None:
        self._region = region
        copying = multiprocessing.get_context("forkserver")
        copying.set_forkserver_preload([__name__])
        self._connection, other = copying.Pipe()
        self._process = copying.Process(
            target=_work, args=(other, region, decoder), name="ramen-decoding", daemon=True
        )
        with STARTING:
            self._process.start()
        other.close()

    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def send(self, images: Sequence[SentImage], slots: Pixels, unresized: Size | None) -> None:
        """Let it fill a slot per image."""
        place = self._region.offset_of(slots)
        assert place is not None, "slots must be in memory that the process shares"
        self._connection.send((place, slots.shape, unresized, [(one.key, self._sent(one)) for one in images]))

    def _sent(self, image: SentImage) -> Any:
        """Where an image is, if the process can see it there; else the image itself."""
        data = image.data
        place = self._region.offset_of(data) if isinstance(data, np.ndarray) else None
        return data if place is None else (place, data.shape)  # type: ignore[union-attr]

    def receive(self) -> Any:
        """What it says next, which is JSON: whoever decodes what strangers send is trusted with no more."""
        if not self._connection.poll(_STUCK):
            raise EOFError
        return json.loads(self._connection.recv_bytes(_LONGEST_REPLY))

    def end(self) -> str:
        """End it now; returns why it has ended."""
        self._connection.close()
        self._process.join(_LOOK)
        took_too_long = self._process.exitcode == -signal.SIGPROF
        self._process.kill()
        self._process.join()
        if took_too_long:
            return f"it takes more than {LONGEST:g} seconds"
        return "the process died of it, or memory ran out"


def _checked(said: Any, most: int) -> DecodedSlot:
    """What a process says of a slot; it may be wrong about the image, not about the memory."""
    error, size, sent = said
    if error is not None:
        return DecodedSlot(str(error))
    (height, width), (sent_height, sent_width) = size, sent
    if height < 1 or width < 1 or 3 * height * width > most:
        raise ValueError("an image is larger than its slot")
    return DecodedSlot(None, (int(height), int(width)), (int(sent_height), int(sent_width)))


def _work(connection: Connection, region: SharedRegion, decoder: Decoder) -> None:
    start_worker()
    connection.send_bytes(b"null")
    while True:
        try:
            place, shape, unresized, sent = connection.recv()
        except EOFError:
            return
        slots = region.bytes_at(place, shape[0] * shape[1]).reshape(shape)
        for slot, (key, data) in zip(slots, sent, strict=True):
            image = SentImage(key, _at(region, *data) if isinstance(data, tuple) else data)
            signal.setitimer(signal.ITIMER_PROF, LONGEST)  # its signal ends the process
            found = _decode_one(decoder, image, slot, unresized)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(json.dumps(found).encode())


def _at(region: SharedRegion, place: int, shape: tuple[int, ...]) -> Pixels:
    return region.bytes_at(place, int(np.prod(shape))).reshape(shape)


# -- requests ---------------------------------------------------------------------------------------------


class _Job:
    """A request whose images are decoded, each into its slot."""

    def __init__(
        self,
        stream: str,
        images: Sequence[SentImage],
        reply: "asyncio.Future[Any]",
        done: Callable[[DecodedImages], None],
    ) -> None:
        self.stream, self.images, self.reply, self.done = stream, images, reply, done
        self.slots: Pixels | None = None
        self.unresized: Size | None = None
        self.found: list[DecodedSlot | None] = [None] * len(images)


def decoding_bytes(image: SentImage) -> int:
    """What it takes to decode an image, as far as its header says; nothing for pixels."""
    if isinstance(image.data, np.ndarray) and image.data.ndim > 1:
        return 0
    try:
        size = declared_size(bytes(image.data[:_HEADER]))
    except (ValueError, IndexError):  # it is damaged, or its header is longer
        size = None
    return _PIXEL_BYTES * (size[0] * size[1] if size is not None else _PIXELS_PER_BYTE * image.nbytes)


class Decoding:
    """Decodes the images of requests; used on one event loop.

    Args:
        decoders: So many work at a time.
        rules: Which images are resized.
        ahead: How many images may be decoded and unanswered, beside those of the last request.
        arena: Memory for the pixels; None for that of this process.
        most_bytes: That files may take while they are decoded; one that needs more is decoded alone.
    """

    def __init__(
        self,
        decoders: Sequence[FileDecoder],
        rules: PixelRules,
        ahead: int,
        arena: Arena | None = None,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._rules, self._most, self._arena, self._most_bytes = rules, ahead, arena, most_bytes
        self._decoders, self._idle = tuple(decoders), list(decoders)
        self._lines: OrderedDict[str, deque[_Job]] = OrderedDict()  # in the order of their turns
        self._pieces: deque[tuple[_Job, slice]] = deque()  # of requests that were begun
        self._ahead = self._bytes = 0
        self._usual: OrderedDict[str, Size] = OrderedDict()  # sizes that are resized later, by stream
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(len(decoders), thread_name_prefix="ramen-decoding")
        self._looking: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Get ready; what a decoder raises if that cannot be."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, one.start) for one in self._decoders))

    def ready(self, images: Sequence[SentImage]) -> DecodedImages | None:
        """Images that need not be decoded, where the device finds them; None if they have to be."""
        found = self._rules.view(images)
        if found is not None and (
            self._arena is None or self._arena.region.offset_of(found.slots) is not None
        ):
            return found
        arrays = self._rules.ready(images)
        slots = None if arrays is None else self._memory(len(arrays), arrays[0].nbytes)
        if arrays is None or slots is None:
            return None
        for array, slot in zip(arrays, slots, strict=True):
            np.copyto(slot.reshape(array.shape), array)
        return DecodedImages(slots, [(arrays[0].shape[0], arrays[0].shape[1])] * len(arrays), {})

    def _memory(self, count: int, nbytes: int) -> Pixels | None:
        """Slots; None if others have to give theirs back first."""
        if self._arena is None:
            return np.empty((count, nbytes), np.uint8)
        lent = self._arena.lend(count * nbytes)
        return None if lent is None else lent.reshape(count, nbytes)

    def put(
        self,
        stream: str,
        images: Sequence[SentImage],
        reply: "asyncio.Future[Any]",
        done: Callable[[DecodedImages], None],
    ) -> None:
        """Decode images in due course.

        Args:
            stream: Streams take turns.
            images: The images.
            reply: Of the request; as soon as it is done, nobody wants the images any more.
            done: Called when all are decoded.
        """
        job = _Job(stream, images, reply, done)
        self._lines.setdefault(stream, deque()).append(job)
        reply.add_done_callback(partial(self._answered, job))
        self._go_on()

    def _answered(self, job: _Job, reply: object) -> None:
        if job.slots is not None:
            self._ahead -= len(job.images)
        self._go_on()

    def _go_on(self) -> None:
        """Give all decoders something to do."""
        while self._idle and self._has_piece():
            job, images = self._pieces[0]
            nbytes = 0 if job.reply.done() else max(map(decoding_bytes, job.images[images]))
            if self._bytes and self._bytes + nbytes > self._most_bytes:
                return  # until one of the others has ended
            self._pieces.popleft()
            if not job.reply.done():
                self._bytes += nbytes
                task = asyncio.create_task(self._decode(self._idle.pop(), job, images, nbytes))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _has_piece(self) -> bool:
        while not self._pieces:
            if not self._lines or self._ahead >= self._most:
                return False
            stream, line = next(iter(self._lines.items()))
            if not line[0].reply.done() and not self._begin(line[0]):
                self._look_again()
                return False
            line.popleft()
            if line:
                self._lines.move_to_end(stream)
            else:
                del self._lines[stream]
        return True

    def _look_again(self) -> None:
        """Memory comes back without a word."""
        if self._looking is None or self._looking.when() < asyncio.get_running_loop().time():
            self._looking = asyncio.get_running_loop().call_later(_LOOK, self._go_on)

    def _begin(self, job: _Job) -> bool:
        """Begin with a request; False without memory for it."""
        job.unresized = self._usual.get(job.stream)
        slots = self._memory(len(job.images), self._rules.slot_bytes(job.unresized))
        if slots is None:
            return False
        job.slots = slots
        self._ahead += len(job.images)
        pieces = even_pieces(len(job.images), _FILES_PER_TURN, len(self._decoders))
        self._pieces.extend((job, piece) for piece in pieces)
        return True

    async def _decode(self, decoder: FileDecoder, job: _Job, images: slice, nbytes: int) -> None:
        assert job.slots is not None
        sent, slots = job.images[images], job.slots[images]
        try:
            job.found[images] = await asyncio.get_running_loop().run_in_executor(
                self._threads, decoder.decode_into, sent, slots, job.unresized
            )
        except Exception as error:  # such as no memory for a process: the decoder goes on
            reason = str(error) or type(error).__name__
            job.found[images] = [DecodedSlot(f"{one.key} cannot be decoded: {reason}") for one in sent]
        self._idle.append(decoder)
        self._bytes -= nbytes
        found = [one for one in job.found if one is not None]
        try:
            if len(found) == len(job.found) and not job.reply.done():
                self._note_size(job.stream, found)
                errors = {place: one.error for place, one in enumerate(found) if one.error is not None}
                job.done(DecodedImages(job.slots, [one.size for one in found], errors))
        finally:
            self._go_on()

    def _note_size(self, stream: str, found: Sequence[DecodedSlot]) -> None:
        """A stream that has images of one size mostly goes on like that."""
        self._usual.pop(stream, None)
        sent = next((one.sent for one in found if one.sent is not None), None)
        if sent is not None and self._rules.is_resized_later(sent):
            self._usual[stream] = sent
            if len(self._usual) > _MOST_STREAMS:
                self._usual.popitem(last=False)

    async def close(self) -> None:
        """Finish what was begun, and end."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        for decoder in self._decoders:
            decoder.close()
        self._threads.shutdown()


def even_pieces(images: int, most: int, decoders: int) -> list[slice]:
    """Images in pieces that keep all decoders busy until the last turn, if all take as long.

    Args:
        images: How many.
        most: The most in a piece.
        decoders: That take a piece each in a turn.
    """
    turns = -(-images // (most * decoders))
    step = -(-images // (turns * decoders))
    return [slice(start, start + step) for start in range(0, images, step)]
