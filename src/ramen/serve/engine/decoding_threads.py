"""Decoding of what is sent, in threads; streams take turns, and no more is decoded than is soon needed."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import numpy as np

from ramen.serve.decoders import DecodedSource
from ramen.serve.engine.answers import SentImage
from ramen.serve.engine.group_decoding import GroupDecoder
from ramen.serve.engine.pixel_rows import PixelRows, Pixels
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.ticket import Ticket, TicketState

_LOOK = 0.05  # seconds after which is looked whether decoded tickets have gone unanswered
_ARRAYS_PER_TURN = 32  # that a thread copies at a time


class _Decoding:
    """A ticket whose images are being decoded, each into its row."""

    def __init__(self, ticket: Ticket, rows: PixelRows) -> None:
        self.ticket = ticket
        self._batch = rows.empty(len(ticket))
        self.rows = self._batch.numpy()
        self._errors: list[str | None] = [None] * len(ticket)
        self._missing, self._lock = len(ticket), threading.Lock()

    def is_ready(self) -> bool:
        """Whether all images are pixels of the right size, which need only be copied."""
        size = self.rows.shape[1:]
        return all(
            isinstance(image.data, np.ndarray) and image.data.shape == size for image in self.ticket.images
        )

    def put(self, images: slice, errors: Sequence[str | None]) -> bool:
        """Whether these were the last ones."""
        with self._lock:
            self._errors[images] = errors
            self._missing -= len(errors)
            return not self._missing

    def finish(self) -> list[DecodedSource]:
        """Give the ticket its pixels, those of images without an error; returns what became of each image."""
        good = [place for place, error in enumerate(self._errors) if error is None]
        if good:
            self.ticket.pixels = self._batch if len(good) == len(self._errors) else self._batch[good]
        return [
            DecodedSource(image.key, None if error is not None else row.transpose(2, 0, 1), error)
            for image, row, error in zip(self.ticket.images, self.rows, self._errors, strict=True)
        ]


def _errors(decoder: GroupDecoder, images: Sequence[SentImage], rows: Pixels) -> list[str | None]:
    """Fill rows; why there is nothing in some of them."""
    try:
        return decoder.decode_into(images, rows)
    except Exception as error:  # such as no memory for a process: the thread goes on
        return [f"{image.key} cannot be decoded: {str(error) or type(error).__name__}" for image in images]


class DecodingThreads:
    """Decodes the images of tickets.

    Under overload most of what waits is not answered soon, or ever. Decoding it ahead would take the time of
    those that are.

    Args:
        decoders: One for each thread: from bytes or pixels to pixels of the encoder's size.
        rows: Where these are put.
        files_per_turn: How many files a thread decodes at a time.
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
        """Decode a ticket's images in due course."""
        with self._changed:
            self._lines.setdefault(ticket.stream, deque()).append(ticket)
            self._changed.notify()

    def answering(self) -> None:
        """Some of what was decoded waits no more."""
        with self._changed:
            self._changed.notify_all()

    def _run(self, decoder: GroupDecoder) -> None:
        while (item := self._next()) is not None:
            decoding, images = item
            ticket = decoding.ticket
            if ticket.state is not TicketState.WAITING:
                continue  # nobody wants it any more
            if decoding.put(images, _errors(decoder, ticket.images[images], decoding.rows[images])):
                self._done(ticket, decoding.finish())
        decoder.close()

    def _next(self) -> tuple[_Decoding, slice] | None:
        """Wait for the next images; None when there will be none."""
        with self._changed:
            while not self._pieces:
                if self._lines and (self._closed or self._has_room()):
                    self._begin()
                elif self._closed and not self._lines:
                    return None
                else:
                    self._changed.wait(_LOOK if self._lines else None)
            return self._pieces.popleft()

    def _has_room(self) -> bool:
        self._begun = [ticket for ticket in self._begun if ticket.state is TicketState.WAITING]
        return sum(map(len, self._begun)) < self._most

    def _begin(self) -> None:
        """Begin with the first ticket of the stream whose turn it is."""
        stream, line = next(iter(self._lines.items()))
        ticket = line.popleft()
        if line:
            self._lines.move_to_end(stream)
        else:
            del self._lines[stream]
        if ticket.state is TicketState.WAITING:
            self._begun.append(ticket)
            decoding = _Decoding(ticket, self._rows)
            step = _ARRAYS_PER_TURN if decoding.is_ready() else self._files_per_turn
            pieces = [slice(start, start + step) for start in range(0, len(ticket), step)]
            self._pieces.extend((decoding, piece) for piece in pieces)
            self._changed.notify(len(pieces) - 1)  # this thread takes one

    def close(self) -> None:
        """Decode what is left, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
