"""Requests that wait for their turn: admission, fair turns between streams, deadlines, batches.

Each stream has a queue of its own, first in, first out, and streams take turns. How much a stream may have
waiting follows from how much room is left, as in switches that share one memory: one stream alone may fill
two thirds of the queue, and whoever comes later still finds room. So nothing admitted is ever shed.

The scheduler also says who may use a stream: nobody holds it while a batch of it is being answered, and none
is begun while somebody holds it. All of it belongs to the engine's event loop, and nothing here is locked.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from ramen.client.operations import (
    DeadlineExceededError,
    ServerOverloadedError,
    StoppingError,
    StreamAnswer,
)
from ramen.serve.engine.stream import Stream
from ramen.serve.pixels import DecodedImages
from ramen.serve.settings import EngineSettings

_SHARE = 2  # what a stream may have waiting, as a multiple of the room that is left
_RETRY_AFTER = 0.1, 30.0  # seconds, the least and the most


class Request:
    """Images of one stream that are answered together.

    Args:
        stream: The stream they belong to.
        keys: The clients' names of the images, in the order of their answers.
        nbytes: Of the images, as they were sent.
        timeout: Seconds after which nobody wants the answers any more; None if that never happens.
        reply: The answers, one per image, in order.

    Attributes:
        arrived: When it was created, on the monotonic clock.
        decoded: The images; None until all of them are decoded, and once it is answered or withdrawn.
        is_waiting: Whether it is still to be begun; False if it is being answered, or gone.
        timer: Withdraws it when it is too late to begin.
    """

    def __init__(
        self,
        stream: Stream,
        keys: Sequence[str],
        nbytes: int,
        timeout: float | None,
        reply: "asyncio.Future[Sequence[StreamAnswer]]",
    ) -> None:
        self.stream, self.keys, self.nbytes = stream, tuple(keys), nbytes
        self.timeout, self.reply = timeout, reply
        self.arrived = time.monotonic()
        self.decoded: DecodedImages | None = None
        self.is_waiting = True
        self.timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def fail(self, error: Exception) -> None:
        """Tell whoever still waits for the answers."""
        if not self.reply.done():
            self.reply.set_exception(error)


class Scheduler:
    """Takes requests in, and gives them out in batches.

    Args:
        settings: Limits of the queue and of a batch.
        rate: Images that are answered per second now, to estimate when there will be room.
        step_seconds: How long a batch takes now, to estimate whether answers would come in time; 0 if that is
            not known.
        overlapping: Whether a full batch may be begun while the one before is still being answered, also of
            the same streams: a device then always has something to do. One that is not full waits, as more
            images may come until then.

    Attributes:
        images: Images that wait or are being answered.
        nbytes: Their bytes.
        in_flight: Batches that are being answered.
        overloaded: Requests that were refused.
        expired: Requests that were not answered in time.
        cancelled: Requests that were withdrawn.
    """

    def __init__(
        self,
        settings: EngineSettings,
        rate: Callable[[], float] = lambda: 0.0,
        step_seconds: Callable[[], float] = lambda: 0.0,
        *,
        overlapping: bool = False,
    ) -> None:
        self._settings, self._rate, self._step_seconds = settings, rate, step_seconds
        self._most_in_flight = 2 if overlapping else 1
        self._delay = settings.max_delay_ms / 1000
        self._turns: OrderedDict[Stream, deque[Request]] = OrderedDict()
        self._changed, self._freed = asyncio.Event(), asyncio.Event()
        self._closed = False
        self.images = self.nbytes = self.in_flight = 0
        self.overloaded = self.expired = self.cancelled = 0

    # -- in -----------------------------------------------------------------------------------------

    def refusal(self, stream: Stream, images: int, nbytes: int) -> ServerOverloadedError | None:
        """Why a request would be refused now; None if it would be admitted.

        For requests of which only the size is known, so that nobody reads them in vain. Whoever refuses one
        adds to ``overloaded``.

        Args:
            stream: The stream it would belong to.
            images: How many images it would have, at least.
            nbytes: Likewise their bytes.
        """
        room = self._settings.max_queue_images - self.images
        free = self._settings.max_queue_bytes - self.nbytes
        if images <= min(room, _SHARE * room - stream.images) and nbytes <= min(
            free, _SHARE * free - stream.nbytes
        ):
            return None
        rate, (least, most) = self._rate(), _RETRY_AFTER
        seconds = min(most, max(least, self.images / rate)) if rate else 1.0
        return ServerOverloadedError(
            f"too many images are waiting ({self.images}, {self.nbytes} bytes); try again in {seconds:.1f} s",
            seconds,
        )

    def put(self, request: Request) -> None:
        """Let a request wait; StoppingError or ServerOverloadedError if that cannot be."""
        if self._closed:
            raise StoppingError("the server is being stopped and takes no more requests")
        error = self.refusal(request.stream, len(request), request.nbytes)
        if error is not None:
            self.overloaded += 1
            raise error
        self._turns.setdefault(request.stream, deque()).append(request)
        self._count(request, 1)
        if request.timeout is not None:
            # Not before half of the time is over: a request that asks for less time than a batch takes is
            # still answered if nothing delays it, and if batches become faster, the estimate learns of it.
            seconds = max(request.timeout - self._step_seconds(), request.timeout / 2)
            request.timer = asyncio.get_running_loop().call_later(seconds, self.expire, request)
        self._changed.set()

    def _count(self, request: Request, sign: int) -> None:
        for counted in (self, request.stream):
            counted.images += sign * len(request)
            counted.nbytes += sign * request.nbytes

    def decoded(self, request: Request, images: DecodedImages) -> None:
        """All images of a request are decoded."""
        if request.is_waiting:
            request.decoded = images
            self._changed.set()

    def loaded(self) -> None:
        """Some stream can be answered now."""
        self._changed.set()

    # -- out, unanswered ----------------------------------------------------------------------------

    def expire(self, request: Request) -> None:
        """Time is up for a request; nothing happens if it is being answered."""
        if self.withdraw(request):
            self.expired += 1
            request.fail(
                DeadlineExceededError(
                    "the request could not be answered in time; nothing was learned from it"
                )
            )

    def cancel(self, request: Request) -> None:
        """Nobody wants the answers any more; images that still wait are dropped."""
        if self.withdraw(request):
            self.cancelled += 1
            request.reply.cancel()

    def fail_all(self, stream: Stream, error: Exception) -> None:
        """Withdraw all requests of a stream."""
        for request in list(self._turns.get(stream, ())):
            self.withdraw(request)
            request.fail(error)

    def withdraw(self, request: Request) -> bool:
        """Take a request out; False if it is being answered, or gone."""
        if not request.is_waiting:
            return False
        queue = self._turns[request.stream]
        queue.remove(request)
        if not queue:
            del self._turns[request.stream]
        self._begin(request)
        self._leave(request)
        return True

    @staticmethod
    def _begin(request: Request) -> None:
        request.is_waiting = False
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _leave(self, request: Request) -> None:
        self._count(request, -1)
        request.decoded = None  # whoever needs them has them
        self._changed.set()

    # -- out, in batches ----------------------------------------------------------------------------

    async def next_batch(self) -> list[Request]:
        """Wait for the next batch; an empty one when the scheduler is closed and nothing waits.

        Its streams are busy until ``done`` and ``saved``.
        """
        while True:
            self._changed.clear()
            batch, seconds = self.take(time.monotonic())
            if batch or (self._closed and not self._turns):
                return batch
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    def take(self, now: float) -> tuple[list[Request], float | None]:
        """A batch, if it is time for one; else how many seconds that takes if nothing changes."""
        if self.in_flight >= self._most_in_flight:
            return [], None
        images, oldest = self._ready()
        if images < self._settings.max_batch and not (images and self._closed):
            if not images or self.in_flight:
                return [], None  # what else comes, or ends, changes that
            seconds = oldest + self._delay - now
            if seconds > 0:
                return [], seconds
        return self._form(), None

    def _ready(self) -> tuple[int, float]:
        """Images that could be answered now, at least as far as a batch needs, and when the first came."""
        images, oldest = 0, float("inf")
        for stream, queue in self._turns.items():
            if not self._is_ready(stream):
                continue
            for request in queue:
                if request.decoded is None:
                    break
                images += len(request)
                oldest = min(oldest, request.arrived)
                if images >= self._settings.max_batch:
                    return images, oldest
        return images, oldest

    @staticmethod
    def _is_ready(stream: Stream) -> bool:
        return stream.loaded is not None and not stream.held and not stream.wanted

    def _form(self) -> list[Request]:
        """One request of each stream in turn, until the batch is full."""
        batch: list[Request] = []
        room = self._settings.max_batch
        streams = [stream for stream in self._turns if self._is_ready(stream)]
        while streams and room:
            again = []
            for stream in streams:
                queue = self._turns[stream]
                if not queue or queue[0].decoded is None or len(queue[0]) > room:
                    continue  # one that does not fit keeps its turn: the next batch begins with it
                batch.append(queue.popleft())
                room -= len(batch[-1])
                again.append(stream)
            streams = again
        self.in_flight += 1
        for stream in dict.fromkeys(request.stream for request in batch):
            stream.in_flight += 1
            if self._turns[stream]:
                self._turns.move_to_end(stream)
            else:
                del self._turns[stream]
        for request in batch:
            self._begin(request)
        return batch

    def done(self, batch: Sequence[Request]) -> None:
        """A batch is answered: others have its room, and the next one may begin."""
        for request in batch:
            self._leave(request)
        self.in_flight -= 1

    def saved(self, batch: Sequence[Request]) -> None:
        """All is done about a batch: others may hold its streams."""
        for stream in dict.fromkeys(request.stream for request in batch):
            stream.in_flight -= 1
            self._free(stream)

    # -- who may use a stream -----------------------------------------------------------------------

    @asynccontextmanager
    async def held(self, stream: Stream) -> AsyncIterator[None]:
        """A block in which nobody else uses the stream, begun before its next batch."""
        stream.wanted += 1
        try:
            while stream.held or stream.in_flight:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                stream.freed.append(waiter)
                await waiter
            stream.held = True
        finally:
            stream.wanted -= 1
            self._changed.set()  # whoever is cancelled here no longer keeps it from its next batch
        try:
            yield
        finally:
            self.release(stream)

    def try_hold(self, stream: Stream) -> bool:
        """Hold a stream that nobody uses, until ``release``."""
        if stream.held or stream.in_flight or stream.wanted:
            return False
        stream.held = True
        return True

    def release(self, stream: Stream) -> None:
        """Let others use it again."""
        stream.held = False
        self._free(stream)

    def _free(self, stream: Stream) -> None:
        waiters, stream.freed = stream.freed, []
        for waiter in waiters:  # the first one takes it, the others wait again
            if not waiter.done():
                waiter.set_result(None)
        self._changed.set()
        self._freed.set()

    def waits(self, stream: Stream) -> bool:
        """Whether requests wait for it."""
        return stream in self._turns

    async def wait_for_free(self, seconds: float) -> None:
        """Wait until some stream is free, or for so long."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._freed.wait()

    def close(self) -> None:
        """Take nothing more."""
        self._closed = True
        self._changed.set()
