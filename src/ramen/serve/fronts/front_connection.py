"""What one front asks, answered by the engine of this process."""

import asyncio
import contextlib
import gc
import json
import logging
import math
import socket
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ramen.client.operations import (
    Classify,
    FailedError,
    SentImage,
    ServerError,
    StreamAnswer,
    operation_from,
)
from ramen.serve.engine.engine import Engine
from ramen.serve.fronts.frames import as_objects, read_frame, write_frame
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.shared_memory import SharedRegion

_PATIENCE = 1.0  # seconds

_log = logging.getLogger("ramen")


class FrontConnection:
    """Answers one front until it ends.

    Args:
        backend: The engine.
        region: Where the front puts images; this process alone says when it may put others there.
        figures: Takes what the front has counted, and returns what all have.
        listening: Called when the front takes requests.
    """

    def __init__(
        self,
        backend: Engine,
        region: SharedRegion,
        figures: Callable[[RequestFigures], RequestFigures],
        listening: Callable[[], None],
    ) -> None:
        self._backend, self._region, self._figures, self._listening = backend, region, figures, listening
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._used = 0  # requests whose memory somebody has
        self._free = asyncio.Event()
        self._free.set()
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._is_to_stop = False

    async def serve(self, pair: socket.socket) -> None:
        """Answer until the front ends, and nothing of what it has sent is in use any more.

        Args:
            pair: This process's end of the pair.
        """
        reader, self._writer = await asyncio.open_connection(sock=pair)
        if self._is_to_stop:
            self.stop()
        try:
            while (message := await read_frame(reader)) is not None:
                self._take(message)
        finally:
            self._writer.close()
            for task in list(self._tasks.values()):
                task.cancel()
        await self._all_released()

    async def _all_released(self) -> None:
        """Wait until nobody has memory of the front any more."""
        while not self._free.is_set():
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._free.wait()
            except TimeoutError:
                gc.collect()  # something that failed may have it

    def stop(self) -> None:
        """Ask the front to answer what it has taken, and end."""
        self._is_to_stop = True
        self._send("stop", 0, None)

    def _take(self, message: bytes) -> None:
        number, name, arguments = json.loads(message)
        if name == "cancel":
            task = self._tasks.get(arguments["number"])
            if task is not None:
                task.cancel()
        elif name == "count_refusal":
            self._backend.count_refusal()
        elif name == "listening":
            self._listening()
        elif name == "counted":
            self._figures(RequestFigures.from_json(arguments["own"]))
        else:
            task = self._loop.create_task(self._answer(number, name, arguments))
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answer(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        try:
            value = await self._asked(number, name, arguments)
        except asyncio.CancelledError as error:
            _forget_frames(error)
            raise
        except ServerError as error:
            _forget_frames(error)
            self._send("error", number, error, self._backend.waiting())
        except Exception as error:  # a defect: the front goes on
            # as text: a log record would keep the frames
            _log.error("what a front asked could not be answered:\n%s", traceback.format_exc())
            _forget_frames(error)
            failure = FailedError("the request could not be answered")
            self._send("error", number, failure, self._backend.waiting())
        else:
            self._send("value", number, value, self._backend.waiting())

    async def _asked(self, number: int, name: str, arguments: dict[str, Any]) -> Any:
        if name == Classify.name:
            return await self._classify(number, **arguments)
        if name == "figures":
            return self._figures(RequestFigures.from_json(arguments["own"]))
        if name == "refusal":
            return await self._backend.refusal(**arguments)
        return await self._backend.call(operation_from(name, arguments))

    def _send(self, *message: Any) -> None:
        if self._writer is not None:
            write_frame(self._writer, as_objects(message))

    # -- images -------------------------------------------------------------------------------------

    async def _classify(
        self,
        number: int,
        stream: str,
        images: list[tuple[str, int, list[int]]],
        start: int,
        length: int,
        timeout: float | None,
    ) -> Sequence[StreamAnswer]:
        sent = self._images(number, images, start, length)
        return await self._backend.call(Classify(stream, sent, timeout))

    def _images(
        self, number: int, images: list[tuple[str, int, list[int]]], start: int, length: int
    ) -> list[SentImage]:
        """The images where the front has put them, which hears of it when nobody has them any more."""
        whole = self._region.bytes_at(start, length, partial(self._when_gone, number))
        self._used += 1
        self._free.clear()
        return [
            SentImage(key, whole[first : first + math.prod(shape)].reshape(shape))
            for key, first, shape in images
        ]

    def _when_gone(self, number: int) -> None:
        """Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the service
            self._loop.call_soon_threadsafe(self._release, number)

    def _release(self, number: int) -> None:
        self._used -= 1
        if not self._used:
            self._free.set()
        self._send("released", number, None)


def _forget_frames(error: BaseException) -> None:
    """Where it was raised has the images; and whoever keeps the error, such as a future, would keep them."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
