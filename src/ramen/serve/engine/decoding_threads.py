"""Decoding of what is sent, in threads; streams take turns, and no more is decoded than is soon needed."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from ramen.serve.decoders import DecodedSource, Decoder
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.ticket import Ticket, TicketState
from ramen.serve.sources import Source

_LOOK = 0.05  # seconds after which is looked whether decoded tickets have gone unanswered


class _Decoding:
    """A ticket whose images are being decoded."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.decoded: list[DecodedSource | None] = [None] * len(ticket)
        self._missing, self._lock = len(ticket), threading.Lock()

    def put(self, place: int, decoded: DecodedSource) -> bool:
        """Whether this was the last one."""
        with self._lock:
            self.decoded[place] = decoded
            self._missing -= 1
            return not self._missing


class DecodingThreads:
    """Decodes the images of tickets.

    Under overload most of what waits is not answered soon, or ever. Decoding it ahead would take the time of
    those that are.

    Args:
        decoder: From bytes or pixels to pixels of the encoder's size.
        threads: How many images at a time.
        ahead: How many images may be decoded and still wait, beside those of the last ticket.
        done: Called with a ticket and its decoded images, in order.
    """

    def __init__(
        self,
        decoder: Decoder,
        threads: int,
        ahead: int,
        done: Callable[[Ticket, list[DecodedSource]], None],
    ) -> None:
        self._decoder, self._most, self._done = decoder, ahead, done
        self._changed = threading.Condition()
        self._lines: OrderedDict[ServedStream, deque[Ticket]] = OrderedDict()  # in the order of their turns
        self._places: deque[tuple[_Decoding, int]] = deque()  # of tickets that were begun
        self._begun: list[Ticket] = []  # some of these are being answered, or gone
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"ramen-decoding-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, ticket: Ticket) -> None:
        """Decode a ticket's images in due course."""
        with self._changed:
            self._lines.setdefault(ticket.stream, deque()).append(ticket)
            self._changed.notify(len(ticket))

    def answering(self) -> None:
        """Some of what was decoded waits no more."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            decoding, place = item
            ticket = decoding.ticket
            if ticket.state is not TicketState.WAITING:
                continue  # nobody wants it any more
            image = ticket.images[place]
            if decoding.put(place, self._decoder.decode(Source(image.key, image.data))):
                self._done(ticket, [source for source in decoding.decoded if source is not None])

    def _next(self) -> tuple[_Decoding, int] | None:
        """Wait for the next image; None when there will be none."""
        with self._changed:
            while not self._places:
                if self._lines and self._has_room():
                    self._begin()
                elif self._closed and not self._lines:
                    return None
                else:
                    self._changed.wait(_LOOK if self._lines else None)
            return self._places.popleft()

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
            decoding = _Decoding(ticket)
            self._places.extend((decoding, place) for place in range(len(ticket)))
            self._changed.notify(len(ticket))

    def close(self) -> None:
        """Decode what is left, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
