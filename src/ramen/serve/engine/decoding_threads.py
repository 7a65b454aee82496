"""Decoding of what is sent, in threads; streams take turns, and no more is decoded than is soon needed."""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from ramen.client.operations import SentImage
from ramen.images.file_checks import declared_size
from ramen.predict.decoding import DecodedSource
from ramen.serve.engine.group_decoding import DecodedSlot, GroupDecoder
from ramen.serve.engine.pixel_rows import PixelGroup, PixelRows, Pixels, Size
from ramen.serve.engine.scheduler import Request
from ramen.serve.engine.stream import Stream

_LOOK = 0.05  # seconds after which is looked whether decoded requests have gone unanswered
_MOST_BYTES = 2**29  # that files may take while they are decoded; beyond it, threads wait for each other
_PIXEL_BYTES = 8  # that a decoder takes for a pixel, if colours are converted or the image is turned
_HEADER = 4096  # bytes
_PIXELS_PER_BYTE = 100  # of a file whose header was not read; photographs have about ten

_log = logging.getLogger("ramen")


class DecodingMemory:
    """Memory for all decoders: a thread waits until others have given back what its image needs.

    A file of a few kilobytes may decode to a hundred megabytes, and each core may decode one at a time.

    Args:
        most: Bytes; an image that needs more is decoded alone.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = self._free = most
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """A block with so many bytes, begun when they are free."""
        nbytes = min(nbytes, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= nbytes)
            self._free -= nbytes
        try:
            yield
        finally:
            with self._changed:
                self._free += nbytes
                self._changed.notify_all()


def decoding_bytes(image: SentImage) -> int:
    """What it takes to decode an image, as far as its header says; nothing for pixels."""
    if isinstance(image.data, np.ndarray) and image.data.ndim > 1:
        return 0
    try:
        size = declared_size(bytes(image.data[:_HEADER]))
    except (ValueError, IndexError):  # it is damaged, or its header is longer
        size = None
    return _PIXEL_BYTES * (size[0] * size[1] if size is not None else _PIXELS_PER_BYTE * image.nbytes)


class _Decoding:
    """A request whose images are being decoded, each into its slot.

    Args:
        request: The request.
        slots: Memory for each image.
        unresized: Images of this size are left as they are.
        resized: The size of the others.
    """

    def __init__(self, request: Request, slots: Pixels, unresized: Size | None, resized: Size) -> None:
        self.request, self.images, self.slots = request, request.images, slots
        self.unresized, self._resized = unresized, resized
        self._found = [DecodedSlot("not decoded")] * len(request)
        self._missing, self._lock = len(request), threading.Lock()

    def put(self, images: slice, found: Sequence[DecodedSlot]) -> bool:
        """Whether these were the last ones."""
        with self._lock:
            self._found[images] = found
            self._missing -= len(found)
            return not self._missing

    @property
    def usual_size(self) -> Size | None:
        """That of the first image."""
        return next((found.size for found in self._found if found.error is None), None)

    def finish(self) -> list[DecodedSource]:
        """Give the request the pixels of its images; returns what became of each image."""
        good = [place for place, found in enumerate(self._found) if found.error is None]
        groups = []
        for is_resized, size in ((False, self.unresized), (True, self._resized)):
            places = [n for n, place in enumerate(good) if self._found[place].is_resized is is_resized]
            if size is not None and places:
                pixels = torch.from_numpy(self._pixels([good[n] for n in places], size))
                groups.append(PixelGroup(pixels, places))
        self.request.pixels = groups
        shown = {
            good[place]: row
            for group in groups
            for place, row in zip(group.places, group.pixels.numpy(), strict=True)
        }
        return [
            DecodedSource(
                image.key, shown[place].transpose(2, 0, 1) if found.error is None else None, found.error
            )
            for place, (image, found) in enumerate(zip(self.images, self._found, strict=True))
        ]

    def _pixels(self, places: Sequence[int], size: Size) -> Pixels:
        """The images in some slots ``(n, h, w, 3)``; without a copy if these are all, and just as large."""
        slots = self.slots if len(places) == len(self.slots) else self.slots[places]
        height, width = size
        return slots[:, : 3 * height * width].reshape(len(places), height, width, 3)


def _start(decoder: GroupDecoder) -> None:
    try:
        decoder.start()
    except Exception as error:  # such as no memory for a process
        _log.error("a thread decodes, as no process could be started for it: %s", error)


def _found(decoder: GroupDecoder, decoding: _Decoding, images: slice) -> list[DecodedSlot]:
    """Fill slots; what is in each."""
    sent = decoding.images[images]
    try:
        return decoder.decode_into(sent, decoding.slots[images], decoding.unresized)
    except Exception as error:  # such as no memory for a process: the thread goes on
        reason = str(error) or type(error).__name__
        return [DecodedSlot(f"{image.key} cannot be decoded: {reason}") for image in sent]


def even_pieces(images: int, most: int, threads: int) -> list[slice]:
    """Images in pieces that keep all threads busy until the last turn, if all take as long.

    Args:
        images: How many.
        most: The most in a piece.
        threads: That take a piece each in a turn.
    """
    turns = -(-images // (most * threads))
    step = -(-images // (turns * threads))
    return [slice(start, start + step) for start in range(0, images, step)]


class DecodingThreads:
    """Decodes the images of requests.

    Under overload most of what waits is not answered soon, or ever. Decoding it ahead would take the time of
    those that are.

    Args:
        decoders: One for each thread: from bytes or pixels to pixels.
        rows: Where these are put.
        files_per_turn: How many files a thread decodes at a time, at most.
        ahead: How many images may be decoded and still wait, beside those of the last request.
        done: Called with a request and its decoded images, in order.
    """

    def __init__(
        self,
        decoders: Sequence[GroupDecoder],
        rows: PixelRows,
        files_per_turn: int,
        ahead: int,
        done: Callable[[Request, list[DecodedSource]], None],
    ) -> None:
        self._rows, self._files_per_turn, self._most, self._done = rows, files_per_turn, ahead, done
        self._memory = DecodingMemory()
        self._changed = threading.Condition()
        self._lines: OrderedDict[Stream, deque[Request]] = OrderedDict()  # in the order of their turns
        self._pieces: deque[tuple[_Decoding, slice]] = deque()  # of requests that were begun
        self._begun: list[Request] = []  # some of these are being answered, or gone
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(decoder,), name=f"ramen-decoding-{number}", daemon=True)
            for number, decoder in enumerate(decoders)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, request: Request) -> None:
        """Decode a request's images in due course; at once, if there is nothing to do."""
        whole = self._rows.view_of(request.images)
        if whole is not None:
            request.pixels = [PixelGroup(whole, range(len(whole)))]
            rows = zip(request.images, whole.numpy(), strict=True)
            self._done(request, [DecodedSource(image.key, row.transpose(2, 0, 1)) for image, row in rows])
            return
        with self._changed:
            self._lines.setdefault(request.stream, deque()).append(request)
            self._changed.notify()

    def answering(self) -> None:
        """Some of what was decoded waits no more."""
        with self._changed:
            self._changed.notify_all()

    def _run(self, decoder: GroupDecoder) -> None:
        _start(decoder)
        while (item := self._next()) is not None:
            self._decode(decoder, *item)
            del item  # which would keep the images until the next ones come
        decoder.close()

    def _decode(self, decoder: GroupDecoder, decoding: _Decoding, images: slice) -> None:
        if not decoding.request.is_waiting:
            return  # nobody wants it any more
        with self._memory.taken(max(map(decoding_bytes, decoding.images[images]))):
            found = _found(decoder, decoding, images)
        if decoding.put(images, found):
            self._done(decoding.request, decoding.finish())
            size = decoding.usual_size
            is_left = size is not None and self._rows.is_resized_later(size)
            decoding.request.stream.usual_size = size if is_left else None

    def _next(self) -> tuple[_Decoding, slice] | None:
        """Wait for the next images; None when there will be none."""
        with self._changed:
            while not self._pieces:
                if self._closed and not self._lines:
                    return None
                if not (self._lines and (self._closed or self._has_room()) and self._begin()):
                    self._changed.wait(_LOOK if self._lines else None)
            return self._pieces.popleft()

    def _has_room(self) -> bool:
        self._begun = [request for request in self._begun if request.is_waiting]
        return sum(map(len, self._begun)) < self._most

    def _begin(self) -> bool:
        """Begin with the first request of the stream whose turn it is; False without memory for it."""
        stream, line = next(iter(self._lines.items()))
        request = line[0]
        if request.is_waiting:
            unresized = stream.usual_size
            slots = self._rows.slots(len(request), unresized)
            if slots is None:
                return False
            self._begun.append(request)
            decoding = _Decoding(request, slots, unresized, self._rows.size)
            pieces = even_pieces(len(request), self._files_per_turn, len(self._threads))
            self._pieces.extend((decoding, piece) for piece in pieces)
            self._changed.notify(len(pieces) - 1)  # this thread takes one
        line.popleft()
        if line:
            self._lines.move_to_end(stream)
        else:
            del self._lines[stream]
        return True

    def close(self) -> None:
        """Decode what is left, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
