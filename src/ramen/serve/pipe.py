"""Operations between a worker and the engine, on a pair of sockets: the ends of both.

A worker sends JSON: it reads what strangers send, and is not to be trusted with more. The engine, which has
started it, sends Python's own objects. Images are in memory that both see: it is the worker's until the
request is sent, and again as soon as that is answered.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from ramen.client.operations import (
    AnswerLostError,
    Classify,
    FailedError,
    IsReady,
    Operation,
    Reply,
    ServedModel,
    ServerError,
    StoppingError,
    StreamAnswer,
    operation_from,
)
from ramen.serve.arena import Arena, SharedRegion
from ramen.serve.decoding import Decoding
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.pixels import DecodedImages, PixelRules

if TYPE_CHECKING:  # a worker has no use for it
    from ramen.serve.engine.engine import Engine
    from ramen.serve.engine.scheduler import Request

_LENGTH = 8  # bytes that say how long a message is
_MOST = 2**30  # bytes
_READY_FOR = 1.0  # seconds that "ready" is believed
_NEARLY_FULL = 0.5  # of the queue: from here on the engine is asked before a request is read
_KNOWN_FOR = 1.0  # seconds that what is known of the queue is worth something

_log = logging.getLogger("ramen")


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """The next message; None if the other side has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH))
        if length > _MOST:
            raise ValueError(f"a message must have at most {_MOST} bytes, got {length}")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _write(writer: asyncio.StreamWriter, message: bytes | memoryview) -> None:
    """Send a message; nothing happens if the other side has gone."""
    if not writer.is_closing():
        writer.write(len(message).to_bytes(_LENGTH))
        writer.write(message)


def _described(images: DecodedImages, region: SharedRegion) -> dict[str, Any]:
    """Where images are, for the other side."""
    if not images.slots.size:
        return {"sizes": images.sizes, "errors": images.errors}
    offset, (_, nbytes) = region.offset_of(images.slots), images.slots.shape
    return {"offset": offset, "nbytes": nbytes, "sizes": images.sizes, "errors": images.errors}


def _found(
    region: SharedRegion,
    rules: PixelRules,
    count: int,
    *,
    sizes: Sequence[Sequence[int] | None],
    errors: dict[str, str],
    offset: int = 0,
    nbytes: int = 0,
) -> DecodedImages:
    """Images of the other side; ValueError if what it says of them cannot be."""
    slots = region.bytes_at(offset, count * nbytes).reshape(count, nbytes)
    found = [None if size is None else (int(size[0]), int(size[1])) for size in sizes]
    reasons = {int(place): str(error) for place, error in errors.items()}
    if len(found) != count or {place for place, size in enumerate(found) if size is None} != set(reasons):
        raise ValueError(f"{len(found)} images and {len(reasons)} errors, expected {count} in all")
    for size in set(filter(None, found)):
        if 3 * size[0] * size[1] > nbytes or not (size == rules.size or rules.is_resized_later(size)):
            raise ValueError(f"an image must not have the size {size}")
    return DecodedImages(slots, found, reasons)


# -- in the engine ----------------------------------------------------------------------------------------


class WorkerConnection:
    """Answers one worker until it ends.

    Args:
        engine: The engine.
        region: Where the worker puts images.
        figures: Takes what the worker has counted, and returns what all have.
        listening: Called when the worker takes requests.

    Attributes:
        was_listening: Whether it has taken requests.
    """

    def __init__(
        self,
        engine: "Engine",
        region: SharedRegion,
        figures: Callable[[RequestFigures], RequestFigures],
        listening: Callable[[], None],
    ) -> None:
        self._engine, self._region, self._figures, self._listening = engine, region, figures, listening
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, Request | None] = {}  # with images; None until they are admitted
        self._early: dict[int, dict[str, Any]] = {}  # what was decoded before that
        self._writer: asyncio.StreamWriter | None = None
        self._is_to_stop = self._has_ended = self.was_listening = False

    async def serve(self, pair: socket.socket) -> None:
        """Answer until the worker ends, and nothing of what it has sent is in use any more.

        Args:
            pair: This process's end of the pair.
        """
        reader, self._writer = await asyncio.open_connection(sock=pair)
        if self._is_to_stop:
            self.stop()
        try:
            while (message := await _read(reader)) is not None:
                self._take(*json.loads(message))
        except (ValueError, TypeError, LookupError) as error:
            _log.error("a worker is ended that says what makes no sense: %s", error)
        finally:
            self._has_ended = True
            self._writer.close()
            for number in list(self._requests):
                self._cancel(number)
            if self._tasks:
                await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Ask the worker to answer what it has taken, and end."""
        self._is_to_stop = True
        self._send("stop", 0, None)

    def _take(self, number: int, name: str, given: dict[str, Any]) -> None:
        if name == "decoded":
            request = self._requests.get(number)
            if request is not None:
                self._engine.decoded(request, self._images(request, given))
            elif number in self._requests:
                self._early[number] = given
        elif name == "cancel":
            self._cancel(number)
        elif name == "count_refusal":
            self._engine.count_refusal()
        elif name == "listening":
            self.was_listening = True
            self._listening()
        elif name == "counted":
            self._figures(RequestFigures.from_json(given["own"]))
        else:
            if name == Classify.name:
                self._requests[number] = None
            task = asyncio.create_task(self._answer(number, name, given))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _cancel(self, number: int) -> None:
        """Drop images that still wait."""
        request = self._requests.pop(number, None)
        if request is not None:
            self._engine.cancel(request)

    async def _answer(self, number: int, name: str, given: dict[str, Any]) -> None:
        kind, value = "value", None
        try:
            value = await self._asked(number, name, given)
        except asyncio.CancelledError:
            pass  # on request: nobody waits for more than that it is so
        except ServerError as error:
            kind, value = "error", error.with_traceback(None)
        except Exception:  # a defect: the worker goes on
            _log.exception("what a worker asked could not be answered")
            kind, value = "error", FailedError("the request could not be answered")
        self._send(kind, number, value, self._engine.waiting())

    async def _asked(self, number: int, name: str, given: dict[str, Any]) -> Any:
        if name == Classify.name:
            return await self._classify(number, **given)
        if name == "figures":
            return self._figures(RequestFigures.from_json(given["own"]))
        if name == "refusal":
            return await self._engine.refusal(**given)
        return await self._engine.call(operation_from(name, given))

    async def _classify(
        self,
        number: int,
        stream: str,
        keys: list[str],
        nbytes: int,
        timeout: float | None,
        images: dict[str, Any] | None,
    ) -> Sequence[StreamAnswer]:
        try:
            request = await self._engine.admit(stream, keys, nbytes, timeout)
            if self._has_ended or number not in self._requests:  # cancelled meanwhile
                self._engine.cancel(request)
            else:
                self._requests[number] = request
                images = self._early.pop(number, images)
                if images is not None:
                    self._engine.decoded(request, self._images(request, images))
            return await request.reply
        finally:
            self._early.pop(number, None)
            self._cancel(number)  # does nothing to one that is answered

    def _images(self, request: "Request", given: dict[str, Any]) -> DecodedImages:
        return _found(self._region, self._engine.rules, len(request), **given)

    def _send(self, *message: Any) -> None:
        if self._writer is not None:
            _write(self._writer, ForkingPickler.dumps(message))


# -- in a worker ------------------------------------------------------------------------------------------


class PipeEngine:
    """The engine as a worker sees it; implements ``ramen.serve.http.service.Backend``.

    Args:
        model: What is served.
        arena: Memory that the engine sees.
        decoding: Decodes images into it.
        queue: The most images and bytes that may wait.
    """

    def __init__(self, model: ServedModel, arena: Arena, decoding: Decoding, queue: tuple[int, int]) -> None:
        self._model, self._arena, self._decoding, self._queue = model, arena, decoding, queue
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._sent: dict[int, DecodedImages] = {}  # that the engine reads
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
        while (message := await _read(reader)) is not None:
            kind, number, value, *waiting = ForkingPickler.loads(message)
            if kind == "stop":
                stop()
            else:
                self._waiting, self._known_at = waiting[0], time.monotonic()
                self._settle(number, kind, value)
        assert self._writer is not None
        self._writer.close()
        for number in list(self._asked):
            why = "the process that computes has ended: the request may have been carried out, or not"
            self._settle(number, "error", AnswerLostError(why))
        gone()

    def _settle(self, number: int, kind: str, value: Any) -> None:
        self._sent.pop(number, None)
        future = self._asked.pop(number)
        if kind == "error":
            future.set_exception(value)
        else:
            future.set_result(value)

    def tell(self, name: str, number: int = 0, /, **given: Any) -> None:
        """Send something that has no answer of its own."""
        with contextlib.suppress(StoppingError):  # then it does not matter
            self._send(number, name, given)

    async def _ask(self, name: str, **given: Any) -> Any:
        return await self._answer(self._begin(name, given))

    def _begin(self, name: str, given: dict[str, Any]) -> int:
        number = next(self._numbers)
        self._send(number, name, given)
        self._asked[number] = asyncio.get_running_loop().create_future()
        return number

    async def _answer(self, number: int) -> Any:
        reply = self._asked[number]
        try:
            return await asyncio.shield(reply)  # it comes in any case: until then the memory is in use
        except asyncio.CancelledError:
            self.tell("cancel", number)
            raise
        finally:
            del reply  # which has the error, whose frames would have it: memory would wait for the collector

    def _send(self, number: int, name: str, given: dict[str, Any]) -> None:
        if self._writer is None or self._writer.is_closing():
            raise StoppingError("the server is being stopped and takes no more requests")
        _write(self._writer, json.dumps([number, name, given]).encode())

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
        lent = self._arena.lend(length)
        return None if lent is None else memoryview(lent)  # type: ignore[arg-type]

    async def _classify(self, operation: Classify) -> Sequence[StreamAnswer]:
        answers: Sequence[StreamAnswer] = await self._answer(self._begin_images(operation))
        return answers

    def _begin_images(self, operation: Classify) -> int:
        """Give the images a place in the queue, and only then decode them."""
        images = operation.images
        ready = self._decoding.ready(images)
        given = {
            "stream": operation.stream,
            "keys": [image.key for image in images],
            "nbytes": sum(image.nbytes for image in images),
            "timeout": operation.timeout,
            "images": None if ready is None else _described(ready, self._arena.region),
        }
        number = self._begin(operation.name, given)
        if ready is not None:
            self._sent[number] = ready
        else:
            reply, done = self._asked[number], partial(self._decoded, number)
            self._decoding.put(operation.stream, images, reply, done)
        return number

    def _decoded(self, number: int, images: DecodedImages) -> None:
        self._sent[number] = images
        self.tell("decoded", number, **_described(images, self._arena.region))

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
        """What all workers have counted."""
        everybody: RequestFigures = await self._ask("figures", own=own.to_json())
        return everybody

    async def close(self) -> None:
        """Say good-bye: the engine goes on, for other workers."""
        self.leave()
        await self._decoding.close()

    def leave(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
