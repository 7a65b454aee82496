"""A request on its way through the engine: images of one stream that are answered together."""

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from enum import Enum
from typing import TYPE_CHECKING

from ramen.serve.decoders import DecodedSource
from ramen.serve.engine.answers import SentImage, StreamAnswer
from ramen.serve.engine.errors import DeadlineError
from ramen.serve.engine.pixel_rows import PixelGroup

if TYPE_CHECKING:
    from ramen.serve.engine.served_stream import ServedStream
    from ramen.serve.engine.waiting_room import WaitingRoom


class TicketState(Enum):
    """Where a ticket is; the waiting room alone changes that."""

    WAITING = "waiting"
    COMPUTING = "computing"
    DONE = "done"


class Ticket:
    """Images that wait for their answers.

    Args:
        stream: The stream they belong to.
        images: In the order of their answers.
        timeout: Seconds from now after which nobody wants the answers any more.
        room: Where it will wait.

    Attributes:
        future: The answers, one per image, in order; an image that cannot be decoded has a result with an
            error. Its own ``cancel`` does nothing: the ticket's does.
        images: As they were sent; gone as soon as the ticket is answered or withdrawn.
        arrived: When it was created, on the monotonic clock.
        deadline: When nobody wants the answers any more, on the same clock.
        decoded: The pixels of each image, or why there are none; None until all of them are decoded.
        pixels: Those of all images that could be decoded; empty until then.
        state: Where it is.
    """

    def __init__(
        self, stream: "ServedStream", images: Sequence[SentImage], timeout: float | None, room: "WaitingRoom"
    ) -> None:
        self.stream, self.images = stream, tuple(images)
        self._count = len(self.images)
        self.nbytes = sum(image.nbytes for image in self.images)
        self.arrived = time.monotonic()
        self.deadline = None if timeout is None else self.arrived + timeout
        self.decoded: list[DecodedSource] | None = None
        self.pixels: Sequence[PixelGroup] = ()
        self.state = TicketState.WAITING
        self.future: Future[list[StreamAnswer]] = Future()
        self.future.set_running_or_notify_cancel()
        self._room = room

    def __len__(self) -> int:
        return self._count

    def forget_images(self) -> None:
        """Nobody needs them here any more: whoever does, has them."""
        self.images, self.decoded, self.pixels = (), None, ()

    def cancel(self) -> bool:
        """Drop the images if they still wait: nothing is learned from them, the future is cancelled."""
        return self._room.withdraw(self, CancelledError("the request was cancelled"))

    def expire(self) -> bool:
        """The same because time is up: the future gets a DeadlineError."""
        return self._room.withdraw(self, self.too_late())

    @staticmethod
    def too_late() -> DeadlineError:
        """What a ticket gets whose time is up."""
        return DeadlineError("the request could not be answered in time; nothing was learned from it")
