"""By when each waiting request must be begun."""

import heapq
import itertools

from ramen.serve.engine.ticket import Ticket, TicketState

_FEW = 256  # that are kept, whether or not their tickets still wait


class LastStarts:
    """A heap of times and tickets, of which up to half may be gone already.

    Deadlines are far away: at some thousand requests a second, garbage collections would look through a
    million objects of requests that were answered long ago, for a quarter of a second each, if all of them
    were kept until then.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []
        self._most = _FEW
        self._numbers = itertools.count()  # tickets cannot be compared

    @property
    def first(self) -> float:
        """The first of the times; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def add(self, time: float, ticket: Ticket) -> bool:
        """Add a ticket that waits; whether it comes first."""
        heapq.heappush(self._heap, (time, next(self._numbers), ticket))
        if len(self._heap) > self._most:
            self._heap = [one for one in self._heap if one[2].state is TicketState.WAITING]
            heapq.heapify(self._heap)
            self._most = max(_FEW, 2 * len(self._heap))
        return self._heap[0][2] is ticket

    def take(self, now: float) -> list[Ticket]:
        """Take out the tickets that still wait though their time has come."""
        late = []
        while self.first <= now:
            ticket = heapq.heappop(self._heap)[2]
            if ticket.state is TicketState.WAITING:
                late.append(ticket)
        return late
