"""Where requests wait until they are decoded and it is their turn.

Each stream has a line of its own, first in, first out. Streams take turns, so that one that sends more than
its share does not delay the others; if the room is full, what came last to the longest line gives way, unless
it has waited for a while: a refusal has to come at once to be of use. The room also
says who may use a stream: nobody holds it while it is being answered, and nothing is answered while somebody
holds it.
"""

import itertools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ramen.serve.decoders import DecodedSource
from ramen.serve.engine.errors import DeadlineError, OverloadedError, StoppingError
from ramen.serve.engine.giving_way import Line, giving_way
from ramen.serve.engine.last_starts import LastStarts
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.ticket import Ticket, TicketState

_RETRY_AFTER = 0.1, 30.0  # seconds, the least and the most
_MOST_BATCHES = 2  # that are being answered at a time, if they may overlap


class WaitingRoom:
    """Takes tickets in, and gives them out in batches.

    Args:
        settings: Limits of the room and of a batch.
        rate: Images that are answered per second now, to estimate when there will be room.
        step_seconds: How long a batch takes now, to estimate whether answers would come in time; 0 if that is
            not known.
        overlapping: Whether a full batch may be taken while the one before is still being answered, also of
            the same streams: a device then always has something to do. One that is not full waits, as more
            images may come until then.

    Attributes:
        images: Images that wait or are being answered.
        bytes: Their bytes.
        overloaded: Tickets that were refused.
        expired: Tickets that were not answered in time.
        cancelled: Tickets that were withdrawn.
    """

    def __init__(
        self,
        settings: EngineSettings,
        rate: Callable[[], float],
        step_seconds: Callable[[], float] = lambda: 0.0,
        *,
        overlapping: bool = False,
    ) -> None:
        self._settings, self._rate, self._step_seconds = settings, rate, step_seconds
        self._overlapping = overlapping
        self._delay = settings.max_delay_ms / 1000
        self._changed = threading.Condition()
        self._lines: OrderedDict[ServedStream, Line] = OrderedDict()  # in the order of their turns
        self._held: set[ServedStream] = set()
        self._answering: Counter[ServedStream] = Counter()  # batches that these are in
        self._batches = 0  # that are being answered
        self._wanted: Counter[ServedStream] = Counter()  # to be held as soon as they are not busy
        self._last_starts = LastStarts()
        self._closed = False
        self.images = self.bytes = 0
        self.overloaded = self.expired = self.cancelled = 0

    # -- in -----------------------------------------------------------------------------------------

    def admit(self, ticket: Ticket) -> None:
        """Let a ticket wait; StoppingError if the room is closed, OverloadedError if it is full."""
        with self._changed:
            if self._closed:
                raise StoppingError("the server is being stopped and takes no more requests")
            given_up = self._giving_way(ticket.stream, len(ticket), ticket.nbytes)
            if given_up is None:
                self.overloaded += 1
                raise self._overload()
            for other in given_up:
                self._remove(other)
            self.overloaded += len(given_up)
            self._add(ticket)
            errors = [self._overload() for _ in given_up]
        for other, error in zip(given_up, errors, strict=True):
            other.future.set_exception(error)

    def _add(self, ticket: Ticket) -> None:
        line = self._lines.setdefault(ticket.stream, Line())
        line.tickets.append(ticket)
        line.images += len(ticket)
        self.images += len(ticket)
        self.bytes += ticket.nbytes
        if ticket.deadline is not None:
            last_start = self._last_start(ticket.arrived, ticket.deadline)
            if self._last_starts.add(last_start, ticket):
                self._changed.notify_all()

    def _last_start(self, arrived: float, deadline: float) -> float:
        """When it is too late to begin, as a batch takes its time.

        Not before half of the time is over: a request that asks for less time than a batch takes is still
        answered if nothing delays it, and if batches become faster, the estimate learns of it.
        """
        return max(deadline - self._step_seconds(), (arrived + deadline) / 2)

    def _giving_way(self, stream: ServedStream, images: int, nbytes: int) -> list[Ticket] | None:
        """Tickets without which there is room; None if there is no room."""
        images_too_many = self.images + images - self._settings.max_queue_images
        bytes_too_many = self.bytes + nbytes - self._settings.max_queue_bytes
        return giving_way(self._lines, stream, images, images_too_many, bytes_too_many)

    def refusal(self, stream: ServedStream, images: int, nbytes: int) -> OverloadedError | None:
        """Why a ticket would be refused now; None if it would be admitted.

        For requests of which only the size is known, so that nobody reads them in vain. Whoever refuses one
        calls ``count_refusal``.

        Args:
            stream: The stream it would belong to.
            images: How many images it would have, at least.
            nbytes: Likewise their bytes.
        """
        with self._changed:
            if self._closed or self._giving_way(stream, images, nbytes) is not None:
                return None
            return self._overload()

    def count_refusal(self) -> None:
        """A request was refused because of what ``refusal`` says."""
        with self._changed:
            self.overloaded += 1

    def _overload(self) -> OverloadedError:
        rate = self._rate()
        least, most = _RETRY_AFTER
        seconds = min(most, max(least, self.images / rate)) if rate else 1.0
        return OverloadedError(
            f"too many images are waiting ({self.images}, {self.bytes} bytes); try again in {seconds:.1f} s",
            seconds,
        )

    def decoded(self, ticket: Ticket, sources: list[DecodedSource]) -> None:
        """All images of a ticket are decoded."""
        with self._changed:
            if ticket.state is TicketState.WAITING:
                ticket.decoded = sources
                self._changed.notify_all()
            else:
                ticket.forget_images()

    def stream_opened(self) -> None:
        """Some stream can be answered now."""
        with self._changed:
            self._changed.notify_all()

    # -- out, unanswered ----------------------------------------------------------------------------

    def withdraw(self, ticket: Ticket, error: BaseException) -> bool:
        """Take out a ticket that still waits; its future gets ``error``."""
        with self._changed:
            if ticket.state is not TicketState.WAITING:
                return False
            self._remove(ticket)
            if isinstance(error, DeadlineError):
                self.expired += 1
            else:
                self.cancelled += 1
        ticket.future.set_exception(error)
        return True

    def withdraw_all(self, stream: ServedStream, error: Exception) -> None:
        """Take out all tickets of a stream."""
        with self._changed:
            line = self._lines.get(stream)
            tickets = list(line.tickets) if line is not None else []
            for ticket in tickets:
                self._remove(ticket)
        for ticket in tickets:
            ticket.future.set_exception(error)

    def _remove(self, ticket: Ticket) -> None:
        line = self._lines[ticket.stream]
        line.tickets.remove(ticket)
        line.images -= len(ticket)
        if not line.tickets:
            del self._lines[ticket.stream]
        self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        ticket.state = TicketState.DONE
        ticket.forget_images()
        self.images -= len(ticket)
        self.bytes -= ticket.nbytes
        self._changed.notify_all()

    def _take_expired(self, now: float) -> list[Ticket]:
        expired = self._last_starts.take(now)
        for ticket in expired:
            self._remove(ticket)
        self.expired += len(expired)
        return expired

    # -- out, in batches ----------------------------------------------------------------------------

    def take(self) -> list[Ticket] | None:
        """Wait for the next batch; None when the room is closed and empty.

        Its streams are busy until ``finish``.
        """
        while True:
            with self._changed:
                expired = self._take_expired(time.monotonic())
                if not expired:
                    batch = self._batch(time.monotonic())
                    if batch:
                        return batch
                    if self._closed and not self._lines:
                        return None
                    self._changed.wait(self._patience(time.monotonic()))
            for ticket in expired:
                ticket.future.set_exception(Ticket.too_late())

    def leave(self, batch: Sequence[Ticket]) -> None:
        """The tickets of a batch are answered, and count no more."""
        with self._changed:
            for ticket in batch:
                if ticket.state is TicketState.COMPUTING:
                    self._leave(ticket)

    def finish(self, batch: Sequence[Ticket]) -> None:
        """All is done about a batch: others may use its streams."""
        self.leave(batch)
        with self._changed:
            self._answering -= Counter({ticket.stream for ticket in batch})
            self._batches -= 1
            self._changed.notify_all()

    def _is_busy(self, stream: ServedStream) -> bool:
        return stream in self._held or stream in self._answering

    def _may_be_answered(self, stream: ServedStream) -> bool:
        busy = stream in self._held if self._overlapping else self._is_busy(stream)
        return stream.resident is not None and not busy and stream not in self._wanted

    def _ready(self) -> tuple[int, float]:
        """Images that could be answered now, at least as far as a batch needs, and when the first came."""
        images, oldest = 0, float("inf")
        for stream, line in self._lines.items():
            if not self._may_be_answered(stream):
                continue
            for ticket in itertools.takewhile(lambda one: one.decoded is not None, line.tickets):
                images += len(ticket)
                oldest = min(oldest, ticket.arrived)
                if images >= self._settings.max_batch:
                    return images, oldest
        return images, oldest

    def _patience(self, now: float) -> float | None:
        """How long nothing is to be done unless something changes."""
        last_start = self._last_starts.first
        must_be_full = self._overlapping and self._batches  # what else comes, notifies
        soonest = last_start if must_be_full else min(self._ready()[1] + self._delay, last_start)
        return None if soonest == float("inf") else max(0.0, soonest - now)

    def _batch(self, now: float) -> list[Ticket]:
        if self._overlapping and self._batches >= _MOST_BATCHES:
            return []
        images, oldest = self._ready()
        full = images >= self._settings.max_batch
        if self._overlapping and self._batches and not full:
            return []
        if not images or not (full or self._closed or now >= oldest + self._delay):
            return []
        return self._form()

    def _form(self) -> list[Ticket]:
        """One ticket of each stream in turn, until the batch is full."""
        batch: list[Ticket] = []
        left = self._settings.max_batch
        streams = [stream for stream in self._lines if self._may_be_answered(stream)]
        while streams and left:
            again = []
            for stream in streams:
                ticket = self._lines[stream].ready()
                if ticket is None or len(ticket) > left:
                    continue  # one that does not fit keeps its turn: the next batch begins with it
                self._lines[stream].tickets.popleft()
                self._lines[stream].images -= len(ticket)
                ticket.state = TicketState.COMPUTING
                left -= len(ticket)
                batch.append(ticket)
                again.append(stream)
            streams = again
        self._batches += 1
        for stream in dict.fromkeys(ticket.stream for ticket in batch):
            self._answering[stream] += 1
            if self._lines[stream].tickets:
                self._lines.move_to_end(stream)
            else:
                del self._lines[stream]
        return batch

    # -- who may use a stream -----------------------------------------------------------------------

    @contextmanager
    def held(self, stream: ServedStream) -> Iterator[None]:
        """A block in which nobody else uses the stream; waits for a batch that is being answered."""
        with self._changed:
            self._wanted[stream] += 1
            try:
                self._changed.wait_for(lambda: not self._is_busy(stream))
                self._held.add(stream)
            finally:
                self._wanted[stream] -= 1
                if not self._wanted[stream]:
                    del self._wanted[stream]
        try:
            yield
        finally:
            self.release(stream)

    def try_hold(self, stream: ServedStream) -> bool:
        """Hold a stream that nobody uses, until ``release``."""
        with self._changed:
            if self._is_busy(stream) or stream in self._wanted:
                return False
            self._held.add(stream)
            return True

    def release(self, stream: ServedStream) -> None:
        """Let others use it again."""
        with self._changed:
            self._held.discard(stream)
            self._changed.notify_all()

    def has_tickets(self, stream: ServedStream) -> bool:
        """Whether something waits for it."""
        with self._changed:
            return stream in self._lines

    def wait_for_change(self, seconds: float) -> None:
        """Wait until something happens here, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def close(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
