"""Decoding of what is sent, in threads; streams take turns."""

import threading
from collections.abc import Callable

from ramen.serve.decoders import DecodedSource, Decoder
from ramen.serve.engine.fair_queue import FairQueue
from ramen.serve.engine.ticket import Ticket, TicketState
from ramen.serve.sources import Source


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

    Args:
        decoder: From bytes or pixels to pixels of the encoder's size.
        threads: How many images at a time.
        done: Called with a ticket and its decoded images, in order.
    """

    def __init__(
        self, decoder: Decoder, threads: int, done: Callable[[Ticket, list[DecodedSource]], None]
    ) -> None:
        self._decoder, self._done = decoder, done
        self._queue: FairQueue[tuple[_Decoding, int]] = FairQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"ramen-decoding-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, ticket: Ticket) -> None:
        """Decode a ticket's images in due course."""
        decoding = _Decoding(ticket)
        self._queue.put(ticket.stream, [(decoding, place) for place in range(len(ticket))])

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            decoding, place = item
            ticket = decoding.ticket
            if ticket.state is not TicketState.WAITING:
                continue  # nobody wants it any more
            image = ticket.images[place]
            if decoding.put(place, self._decoder.decode(Source(image.key, image.data))):
                self._done(ticket, [source for source in decoding.decoded if source is not None])

    def close(self) -> None:
        """Decode what is left, and end."""
        self._queue.close()
        for thread in self._threads:
            thread.join()
