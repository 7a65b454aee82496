"""The engine as the HTTP front of another process sees it."""

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ramen.client.operations import (
    AnswerLostError,
    Classify,
    IsReady,
    Operation,
    Reply,
    SentImage,
    ServedModel,
    ServerError,
    ServerOverloadedError,
    StoppingError,
    StreamAnswer,
)
from ramen.serve.fronts.frames import as_json, objects_in, read_frame, write_frame
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.shared_memory import Bytes, Lender

_READY_FOR = 1.0  # seconds that "ready" is believed
_NEARLY_FULL = 0.5  # of the queue: from here on the engine is asked before a request is read
_RETRY_AFTER = 1.0  # seconds
_KNOWN_FOR = 1.0  # seconds that what is known of the queue is worth something


class RemoteBackend:
    """Asks the engine, whose process has started this one; implements ``ramen.serve.http.Backend``.

    Args:
        model: What is served.
        lender: Of memory that the engine sees.
        queue: The most images and bytes that may wait.
    """

    def __init__(self, model: ServedModel, lender: Lender, queue: tuple[int, int]) -> None:
        self._model, self._lender, self._queue = model, lender, queue
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._sent: dict[int, object] = {}  # memory that the engine reads
        self._waiting, self._known_at = (0, 0), 0.0  # images and bytes in the queue, and when it was so
        self._ready_until = 0.0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, pair: socket.socket, stop: Callable[[], None], gone: Callable[[], None]) -> None:
        """Begin.

        Args:
            pair: This process's end of the pair.
            stop: Called when the engine asks this process to end.
            gone: Called when the engine has ended.
        """
        reader, self._writer = await asyncio.open_connection(sock=pair)
        self._reading = asyncio.create_task(self._read(reader, stop, gone))

    async def _read(
        self, reader: asyncio.StreamReader, stop: Callable[[], None], gone: Callable[[], None]
    ) -> None:
        while (message := await read_frame(reader)) is not None:
            kind, number, value, *waiting = objects_in(message)
            if kind == "released":
                self._sent.pop(number, None)
            elif kind == "stop":
                stop()
            else:
                self._waiting, self._known_at = waiting[0], time.monotonic()
                self._settle(number, kind, value)
        self._lose()
        gone()

    def _lose(self) -> None:
        """The engine has ended: nothing that was asked will be answered."""
        assert self._writer is not None
        self._writer.close()
        for number in list(self._asked):
            message = "the process that computes has ended: the request may have been carried out, or not"
            self._settle(number, "error", AnswerLostError(message))

    def _settle(self, number: int, kind: str, value: Any) -> None:
        future = self._asked.pop(number, None)
        if future is None or future.done():
            return  # nobody waits for it any more
        if kind == "error":
            future.set_exception(value)
        else:
            future.set_result(value)

    # -- questions ----------------------------------------------------------------------------------

    def tell(self, name: str, **arguments: Any) -> None:
        """Send something that has no answer."""
        with contextlib.suppress(StoppingError):  # then it does not matter
            self._send(0, name, arguments)

    async def _ask(self, name: str, **arguments: Any) -> Any:
        number = next(self._numbers)
        return await self._answer(number, name, arguments)

    async def _answer(self, number: int, name: str, arguments: dict[str, Any]) -> Any:
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(number, name, arguments)
        try:
            return await future
        except asyncio.CancelledError:
            if self._asked.pop(number, None) is not None:
                self.tell("cancel", number=number)
            raise
        finally:
            del future  # which has the error, whose frames would have it: memory would wait for the collector

    def _send(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        if self._writer is None or self._writer.is_closing():
            raise StoppingError("the server is being stopped and takes no more requests")
        write_frame(self._writer, as_json([number, name, arguments]))

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Ask the engine; that it is ready is believed for a while."""
        if isinstance(operation, Classify):
            return await self._classify(operation)  # type: ignore[return-value]
        if not isinstance(operation, IsReady):
            done: Reply = await self._ask(operation.name, **vars(operation))
            return done
        if time.monotonic() >= self._ready_until and await self._ask(operation.name):
            self._ready_until = time.monotonic() + _READY_FOR
        return time.monotonic() < self._ready_until  # type: ignore[return-value]

    # -- images -------------------------------------------------------------------------------------

    def memory_for(self, length: int) -> memoryview | None:
        """Memory for the body of a request, from which images need not be copied; None if there is none."""
        lent = self._lender.lend(length)
        return None if lent is None else memoryview(lent)  # type: ignore[arg-type]

    async def _classify(self, operation: Classify) -> Sequence[StreamAnswer]:
        images = operation.images
        arrays = self._shared(images)
        offsets = [self._lender.region.offset_of(array) or 0 for array in arrays]
        start = min(offsets, default=0)
        end = max((o + array.nbytes for o, array in zip(offsets, arrays, strict=True)), default=0)
        listed = [
            (image.key, offset - start, array.shape)
            for image, array, offset in zip(images, arrays, offsets, strict=True)
        ]
        number = next(self._numbers)
        self._sent[number] = arrays
        answers: Sequence[StreamAnswer] = await self._answer(
            number,
            "classify",
            {
                "stream": operation.stream,
                "images": listed,
                "start": start,
                "length": end - start,
                "timeout": operation.timeout,
            },
        )
        return answers

    def _shared(self, images: Sequence[SentImage]) -> list[Bytes]:
        """The images in memory that the engine sees, all in one piece."""
        region = self._lender.region
        arrays = [
            image.data if isinstance(image.data, np.ndarray) else np.frombuffer(image.data, np.uint8)
            for image in images
        ]
        if all(region.offset_of(array) is not None and array.base is arrays[0].base for array in arrays):
            return arrays
        block = self._lender.lend(sum(array.nbytes for array in arrays))
        if block is None:
            raise ServerOverloadedError("too many bytes are waiting; try again later", _RETRY_AFTER)
        copies, start = [], 0
        for array in arrays:
            copy = block[start : start + array.nbytes].reshape(array.shape)
            np.copyto(copy, array)
            copies.append(copy)
            start += array.nbytes
        return copies

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """Why so much would be refused now; asked only if the queue was filled when last heard of."""
        fill = max(waiting / most for waiting, most in zip(self._waiting, self._queue, strict=True))
        if fill < _NEARLY_FULL or time.monotonic() - self._known_at > _KNOWN_FOR:
            return None
        reason: ServerError | None = await self._ask("refusal", stream=stream, images=images, nbytes=nbytes)
        return reason

    def count_refusal(self) -> None:
        """A request was refused because of what ``refusal`` says."""
        self.tell("count_refusal")

    # -- everything else ----------------------------------------------------------------------------

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self._model

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """What all fronts have counted."""
        everybody: RequestFigures = await self._ask("figures", own=own.to_json())
        return everybody

    async def close(self) -> None:
        """Say good-bye: the engine goes on, for other fronts."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
