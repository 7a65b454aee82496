"""Decoding of what is sent, in threads; streams take turns, and no more is decoded than is soon needed."""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import torch

from ramen.serve.decoders import DecodedSource
from ramen.serve.engine.group_decoding import DecodedSlot, GroupDecoder
from ramen.serve.engine.pixel_rows import PixelGroup, PixelRows, Pixels, Size
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.ticket import Ticket, TicketState

_LOOK = 0.05  # seconds after which is looked whether decoded tickets have gone unanswered

_log = logging.getLogger("ramen")


class _Decoding:
    """A ticket whose images are being decoded, each into its slot.

    Args:
        ticket: The ticket.
        slots: Memory for each image.
        unresized: Images of this size are left as they are.
        resized: The size of the others.
    """

    def __init__(self, ticket: Ticket, slots: Pixels, unresized: Size | None, resized: Size) -> None:
        self.ticket, self.images, self.slots = ticket, ticket.images, slots
        self.unresized, self._resized = unresized, resized
        self._found = [DecodedSlot("not decoded")] * len(ticket)
        self._missing, self._lock = len(ticket), threading.Lock()

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
        """Give the ticket its pixels, those of images without an error; returns what became of each image."""
        good = [place for place, found in enumerate(self._found) if found.error is None]
        groups = []
        for is_resized, size in ((False, self.unresized), (True, self._resized)):
            places = [n for n, place in enumerate(good) if self._found[place].is_resized is is_resized]
            if size is not None and places:
                pixels = torch.from_numpy(self._pixels([good[n] for n in places], size))
                groups.append(PixelGroup(pixels, places))
        self.ticket.pixels = groups
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
    """Decodes the images of tickets.

    Under overload most of what waits is not answered soon, or ever. Decoding it ahead would take the time of
    those that are.

    Args:
        decoders: One for each thread: from bytes or pixels to pixels.
        rows: Where these are put.
        files_per_turn: How many files a thread decodes at a time, at most.
        ahead: How many images may be decoded and still wait, beside those of the last ticket.
        done: Called with a ticket and its decoded images, in order.
    """

    def __init__(
        self,
        decoders: Sequence[GroupDecoder],
        rows: PixelRows,
        files_per_turn: int,
        ahead: int,
        done: Callable[[Ticket, list[DecodedSource]], None],
    ) -> None:
        self._rows, self._files_per_turn, self._most, self._done = rows, files_per_turn, ahead, done
        self._changed = threading.Condition()
        self._lines: OrderedDict[ServedStream, deque[Ticket]] = OrderedDict()  # in the order of their turns
        self._pieces: deque[tuple[_Decoding, slice]] = deque()  # of tickets that were begun
        self._begun: list[Ticket] = []  # some of these are being answered, or gone
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(decoder,), name=f"ramen-decoding-{number}", daemon=True)
            for number, decoder in enumerate(decoders)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, ticket: Ticket) -> None:
        """Decode a ticket's images in due course; at once, if there is nothing to do."""
        whole = self._rows.view_of(ticket.images)
        if whole is not None:
            ticket.pixels = [PixelGroup(whole, range(len(whole)))]
            rows = zip(ticket.images, whole.numpy(), strict=True)
            self._done(ticket, [DecodedSource(image.key, row.transpose(2, 0, 1)) for image, row in rows])
            return
        with self._changed:
            self._lines.setdefault(ticket.stream, deque()).append(ticket)
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
        if decoding.ticket.state is not TicketState.WAITING:
            return  # nobody wants it any more
        if decoding.put(images, _found(decoder, decoding, images)):
            self._done(decoding.ticket, decoding.finish())
            size = decoding.usual_size
            is_left = size is not None and self._rows.is_resized_later(size)
            decoding.ticket.stream.usual_size = size if is_left else None

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
        self._begun = [ticket for ticket in self._begun if ticket.state is TicketState.WAITING]
        return sum(map(len, self._begun)) < self._most

    def _begin(self) -> bool:
        """Begin with the first ticket of the stream whose turn it is; False without memory for it."""
        stream, line = next(iter(self._lines.items()))
        ticket = line[0]
        if ticket.state is TicketState.WAITING:
            unresized = stream.usual_size
            slots = self._rows.slots(len(ticket), unresized)
            if slots is None:
                return False
            self._begun.append(ticket)
            decoding = _Decoding(ticket, slots, unresized, self._rows.size)
            pieces = even_pieces(len(ticket), self._files_per_turn, len(self._threads))
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
