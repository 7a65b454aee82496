"""Who gives way in a full waiting room: what came last to the longest line, unless it has waited for a while.

So streams that send more than their share are refused first, and a refusal comes at once or not at all.
"""

import time
from collections import deque
from collections.abc import Mapping

from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.ticket import Ticket

_REFUSED_WITHIN = 0.03  # seconds after it came, a ticket may still give way


class Line:
    """The tickets of a stream that wait, and how many images these are."""

    def __init__(self) -> None:
        self.tickets: deque[Ticket] = deque()
        self.images = 0

    def ready(self) -> Ticket | None:
        """The first ticket, if it is decoded."""
        first = self.tickets[0] if self.tickets else None
        return first if first is not None and first.decoded is not None else None


def giving_way(
    lines: Mapping[ServedStream, Line],
    stream: ServedStream,
    images: int,
    images_too_many: int,
    bytes_too_many: int,
) -> list[Ticket] | None:
    """Tickets without which there is room for another one; None if there would be none.

    Args:
        lines: All that wait.
        stream: The stream that the new ticket belongs to.
        images: How many images the new ticket has.
        images_too_many: How many images would have to go.
        bytes_too_many: Likewise in bytes.
    """
    if images_too_many <= 0 and bytes_too_many <= 0:
        return []
    own = lines.get(stream)
    length = images + (own.images if own is not None else 0)
    # Under overload this is asked for every request: lines that are too short are left out at once.
    left = {
        other: line.images for other, line in lines.items() if line.images > length and other is not stream
    }
    ends = {other: reversed(lines[other].tickets) for other in left}
    chosen: list[Ticket] = []
    since = time.monotonic() - _REFUSED_WITHIN
    while images_too_many > 0 or bytes_too_many > 0:
        longest = max(left, key=left.__getitem__, default=None)
        if longest is None or (last := next(ends[longest], None)) is None or last.arrived < since:
            return None
        left[longest] -= len(last)
        if left[longest] < length:
            return None
        images_too_many, bytes_too_many = images_too_many - len(last), bytes_too_many - last.nbytes
        chosen.append(last)
    return chosen
