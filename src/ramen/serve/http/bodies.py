"""Bodies of requests: read within limits of bytes and time, and never more of them than fit in memory."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from ramen.serve.http.direct_bodies import Memory, rest_of_body
from ramen.serve.http.errors import ApiError
from ramen.serve.http.request_facts import facts_of
from ramen.serve.http.settings import HttpSettings
from ramen.utils.byte_sizes import readable_bytes

T = TypeVar("T")
MemoryFor = Callable[[int], memoryview | None]
_RETRY_AFTER = 1.0  # seconds
_LARGE = 2**18  # bytes
_DIRECT = 2**20  # bytes from which on a body is not worth being received in pieces


class BodyBudget:
    """Bytes of all bodies that are in memory at a time.

    Args:
        limit: The most that there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, nbytes: int) -> None:
        """Count bytes that are about to come; 429 if they do not fit."""
        if self.taken + nbytes > self.limit:
            raise ApiError(
                429,
                "overloaded",
                f"the requests that are being read take {readable_bytes(self.taken)} of "
                f"{readable_bytes(self.limit)}",
                retry_after=_RETRY_AFTER,
            )
        self.taken += nbytes


class LimitedBody:
    """The body of one request, which takes its place of ``receive``.

    Args:
        request: The request.
        settings: The limits.
        budget: What all bodies may take together.
    """

    def __init__(self, request: Request, settings: HttpSettings, budget: BodyBudget) -> None:
        self._request, self._limit, self._budget = request, settings.max_body_bytes, budget
        self._facts = facts_of(request)
        self._deadline = self._facts.started + settings.max_timeout_ms / 1000
        self._counted = 0
        self._complete = False

    @contextmanager
    def admitted(self) -> Iterator[Request]:
        """The request with limits on its body, which counts until the block ends."""
        try:
            self._count(declared_length(self._request.headers, self._limit))
            yield Request(self._request.scope, self._receive)
        finally:
            self._budget.taken -= self._counted

    def _count(self, total: int) -> None:
        """Count the body as this large, if it is not already."""
        if total > self._counted:
            self._budget.take(total - self._counted)
            self._counted = total

    async def _receive(self) -> Message:
        if self._complete or self._facts.body_is_timed:
            message = await self._request.receive()  # once complete, it says when the client goes away
        else:
            message = await self._receive_in_time()
        if self._complete:
            return message
        if message["type"] == "http.request":
            self._facts.nbytes += len(message.get("body", b""))
            if self._facts.nbytes > self._limit:
                raise too_large(self._limit)
            self._count(self._facts.nbytes)
            self._complete = not message.get("more_body", False)
        return message

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                return await self._request.receive()
        except TimeoutError:
            raise ApiError(504, "deadline", "the body of the request did not arrive in time") from None


def declared_length(headers: Headers, limit: int) -> int:
    """How long a body will be, as its head says, or 0 if it does not; 413 or 415 if that is refused.

    Args:
        headers: Of the request.
        limit: The most bytes that it may have.
    """
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "content_encoding", "bodies must not be compressed")
    length = _declared(headers)
    if length > limit:
        raise too_large(limit)
    return length


def _declared(headers: Headers) -> int:
    declared = headers.get("content-length", "")
    return int(declared[:20]) if declared.isdecimal() and declared.isascii() else 0


def too_large(limit: int) -> ApiError:
    """For a body that is longer than allowed."""
    return ApiError(413, "too_large", f"a request may have at most {limit} bytes ({readable_bytes(limit)})")


async def read_body(request: Request, deadline: float | None = None) -> bytes:
    """The whole body.

    Args:
        request: The request, with limits.
        deadline: Until when it must have arrived, on the monotonic clock.
    """
    return b"".join(await _read(request, deadline, None))


async def read_pixels(request: Request, deadline: float | None, memory_for: MemoryFor) -> bytes | Memory:
    """The same of a body that may be large and is used as it is, without a copy if that is possible.

    Args:
        request: The request, with limits.
        deadline: Until when it must have arrived, on the monotonic clock.
        memory_for: Gives memory of some length, if it has to be some in particular.
    """
    parts = await _read(request, deadline, memory_for)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _read(
    request: Request, deadline: float | None, memory_for: MemoryFor | None
) -> list[bytes | Memory]:
    facts_of(request).body_is_timed = deadline is not None  # as a whole: less work than piece by piece
    when = None if deadline is None else deadline - time.monotonic() + asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(when):
            return await _pieces(request, memory_for)
    except TimeoutError:
        raise ApiError(504, "deadline", "the body of the request did not arrive in time") from None
    except ClientDisconnect:
        raise client_gone() from None


async def _pieces(request: Request, memory_for: MemoryFor | None) -> list[bytes | Memory]:
    pieces: list[bytes | Memory] = []
    length = _declared(request.headers)
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces
        if memory_for is not None and length >= _DIRECT and len(pieces) == 1:
            whole = await rest_of_body(request, piece, length, memory_for)
            if whole is not None:
                facts_of(request).nbytes = length
                return [whole]


async def parsed(nbytes: int, parse: Callable[[], T]) -> T:
    """What a body holds; a large one is parsed in a thread, so that others need not wait for it.

    Args:
        nbytes: How large it is.
        parse: Does it.
    """
    return await asyncio.to_thread(parse) if nbytes > _LARGE else parse()


def client_gone() -> ApiError:
    """For the log alone: nobody is there to read the response."""
    return ApiError(499, "client_gone", "the client went away")
