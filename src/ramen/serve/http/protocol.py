"""How the web server reads requests: as uvicorn does, within limits that an application cannot set.

An application sees a request once its head is complete. Whoever never completes one, sends a head without
end, or holds connections without using them, is dealt with here. And large bodies go from the connection
straight into memory of their size: the way through ASGI copies each piece three times.
"""

import asyncio
import ipaddress
import json
import logging
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import httptools
import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ramen.serve.settings import HttpSettings

CONNECTION = "ramen.connection"  # in the scope of a request
Memory = bytearray | memoryview
MemoryFor = Callable[[int], memoryview | None]
_PIPELINED = 20  # requests that may wait behind another one on their connection
_KEPT = 16  # connections beyond the most, for questions about health and for owners
_MOST_CONNECTIONS = 16_384
_LEAST_DESCRIPTORS = 64  # that are left for everything else
_SWEEP = 1.0  # seconds
_QUIET = 60.0  # seconds between two lines of the log about too many connections
_log = logging.getLogger("ramen.serve.connections")


def room_for_connections() -> int:
    """How many connections a process may hold: three quarters of the files that it may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(8, min(_MOST_CONNECTIONS, files - max(_LEAST_DESCRIPTORS, files // 4)))


# -- who may come in ------------------------------------------------------------------------------------


class Gate:
    """All connections of a process, and which of them has to go when there are too many.

    A newcomer takes the place of a connection that waits for its next request, the oldest one of whoever has
    most of them; those that have shown a valid token are closed last. So connections that somebody opens and
    does not use keep nobody out.

    Args:
        settings: The limits.
        count: Called with the status of each response that no application gives.
    """

    def __init__(self, settings: HttpSettings, count: Callable[[int], None] = lambda status: None) -> None:
        self.settings, self.count = settings, count
        self.most = settings.max_connections or room_for_connections()
        # without tokens everybody is on this machine
        share = self.most if settings.tokens is None else max(1, self.most // 2)
        self.most_of_one = min(self.most, settings.max_connections_per_address or share)
        self._open: set[LimitedProtocol] = set()
        self._by_address: Counter[str] = Counter()
        self._idle: dict[str, dict[LimitedProtocol, None]] = {}  # by address, the oldest first
        self._sweeping, self._said = False, -_QUIET

    def enter(self, connection: "LimitedProtocol") -> bool:
        """Let a connection in, if there is a place for it."""
        address = connection.address
        self._open.add(connection)
        self._by_address[address] += 1
        of_one = self._by_address[address]
        if of_one > self.most_of_one or len(self._open) > self.most:
            busiest = max(self._idle, key=self._strangers_at, default="")
            connection.crowded = not self._close_idle(address if of_one > self.most_of_one else busiest)
            self._say(connection.loop.time())
        is_kept = len(self._open) <= self.most + _KEPT and of_one <= self.most_of_one + _KEPT
        self.note_idle(connection)
        if not self._sweeping:
            self._sweeping = True
            self._sweep(connection.loop)
        return is_kept or not connection.crowded

    def _say(self, now: float) -> None:
        if now - self._said > _QUIET:
            self._said = now
            _log.warning("%d connections: more close those that wait, or are refused", len(self._open))

    def _strangers_at(self, address: str) -> tuple[int, int]:
        idle = self._idle[address]
        return sum(not connection.known for connection in idle), len(idle)

    def _close_idle(self, address: str) -> bool:
        idle = self._idle.get(address)
        if not idle:
            return False
        victim = next((one for one in idle if not one.known), None) or next(iter(idle))
        self.leave(victim)
        victim.transport.abort()
        return True

    def leave(self, connection: "LimitedProtocol") -> None:
        """A connection has ended."""
        if connection in self._open:
            self.note_busy(connection)
            self._open.discard(connection)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def note_idle(self, connection: "LimitedProtocol") -> None:
        """A connection waits for a request."""
        self._idle.setdefault(connection.address, {})[connection] = None

    def note_busy(self, connection: "LimitedProtocol") -> None:
        """A connection has a request to be answered."""
        idle = self._idle.get(connection.address)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[connection.address]

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look after all connections now and then: a timer for each would cost more."""
        now = loop.time()
        for connection in list(self._open):
            connection.check_time(now)
        self._sweeping = bool(self._open)
        if self._sweeping:
            soonest = min(self.settings.head_seconds, self.settings.idle_seconds) / 4
            loop.call_later(min(_SWEEP, soonest), self._sweep, loop)


# -- a connection ---------------------------------------------------------------------------------------


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((int(address), 64), strict=False))


class _HeadRefusedError(Exception):
    """The parser is to stop."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; hands over the rest of a body to whoever asks for it.

    Args:
        gate: What all connections share.
        given: What uvicorn gives.

    Attributes:
        known: Whether a request on it had a valid token.
        crowded: Whether it came in where there was room for health and owners alone.
        address: Where it comes from; of IPv6 the network, as everybody has billions of addresses in one.
    """

    def __init__(self, gate: Gate, **given: Any) -> None:
        super().__init__(**given)
        self._gate, self._settings = gate, gate.settings
        self.known = self.crowded = False
        self.address = ""
        self._refusal: tuple[int, str, str] | None = None
        self._silent = 0  # bytes since a part of a body came, or a head was complete
        self._heard = self._begun = self.loop.time()
        self._awaits_head, self._in_message, self._is_chunked = True, False, False
        self._stalled: float | None = None  # since when nobody reads what is sent
        self._answered: float | None = None  # when a request was answered whose body has not come
        self._direct: DirectBody | None = None

    # -- what comes ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.address = _network(self.client[0] if self.client else "")
        if not self._gate.enter(self):
            self._refuse(503, "too_many_connections", "too many connections; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone away."""
        self._gate.leave(self)
        super().connection_lost(exc)
        if self._direct is not None:
            self._direct.end(client_gone=True)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        self._heard = self.loop.time()
        self._unset_keepalive_if_required()
        if not (self._awaits_head or self._in_message):
            self._awaits_head, self._begun = True, self._heard
        most = self._settings.max_head_bytes
        while data and not self.transport.is_closing():
            piece = data
            if not self._in_message or self._is_chunked:
                piece = data[: most + 1 - self._silent]
                self._silent += len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade:  # nothing else is spoken here: it is answered as it is
                self.cycle.keep_alive = False
                return
            except httptools.HttpParserError:
                self._refuse(*self._refusal or (400, "bad_request", "this is not valid HTTP"))
            if self._silent > most:
                self._refuse(431, "head_too_large", f"the head of a request may have at most {most} bytes")
            data = data[len(piece) :]

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._direct = None
        self._begun, self._awaits_head = self._heard, True
        cast("Scope", self.scope)[CONNECTION] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of a head, or behind a body in pieces."""
        most = self._settings.max_headers
        if len(self.headers) >= most:
            self._refusal = 431, "head_too_large", f"a request may have at most {most} headers"
            raise _HeadRefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        if len(self.pipeline) >= _PIPELINED:
            self._refusal = 400, "bad_request", "too many requests at a time on one connection"
            raise _HeadRefusedError
        self._gate.note_busy(self)
        self._silent, self._awaits_head, self._in_message, self._answered = 0, False, True, None
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        self._silent = 0
        if self._direct is None or self.cycle.response_complete:
            super().on_body(body)
        else:
            self._direct.add(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._in_message, self._silent = False, 0
        super().on_message_complete()
        if self._direct is not None:
            self._direct.end()
        if self.cycle.response_complete:
            self._gate.note_idle(self)

    def on_response_complete(self) -> None:
        """A request is answered."""
        super().on_response_complete()
        if self.cycle.response_complete and self._in_message:
            self._answered = self.loop.time()
        elif self.cycle.response_complete and not self.transport.is_closing():
            self._gate.note_idle(self)

    # -- limits of time -----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        self._stalled = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stalled = None
        super().resume_writing()

    def check_time(self, now: float) -> None:
        """End the connection if its client is too slow."""
        patience = self._settings.idle_seconds
        if self.transport.is_closing():
            if now - self._heard > patience:  # it was told to go, and does not read that
                self.transport.abort()
        elif self._stalled is not None:
            if now - self._stalled > self._settings.stalled_seconds:
                self.transport.abort()
        elif self._awaits_head:
            is_free = self.cycle is None or self.cycle.response_complete
            if is_free and now - self._begun > self._settings.head_seconds:
                self._refuse(408, "timeout", "the head of a request did not arrive in time")
        elif self._answered is not None:
            if self._in_message and now - self._answered > patience:
                self.transport.abort()
        elif self._in_message and not self.flow.read_paused and now - self._heard > patience:
            self._refuse(408, "timeout", f"nothing of the body has come for {patience:g} seconds")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer what the application cannot see, and hang up."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"error": {"code": code, "message": message}}).encode()
            lines = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
            lines += b"retry-after: 1\r\n" if status == 503 else b""
            self.transport.write(b"%s%sconnection: close\r\n\r\n%s" % (STATUS_LINE[status], lines, body))
            self._gate.count(status)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._direct is not None:
            self._direct.end(client_gone=True)
        self.transport.close()

    # -- large bodies -------------------------------------------------------------------------------

    def receive_directly(self, scope: Scope, body: "DirectBody") -> bool:
        """Put all that is still to come of a request into ``body``; False if that is not possible."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not scope or cycle.disconnected or not cycle.more_body:
            return False
        self._direct = body
        body.add(cycle.body)
        cycle.body = bytearray()
        self.flow.resume_reading()
        return True


class DirectBody:
    """A body of known length that is being received.

    Args:
        data: Memory of its length.
        start: What is there of it.
        count: Called with the number of bytes that come; what it raises ends the body.
    """

    def __init__(self, data: Memory, start: bytes | bytearray, count: Callable[[int], None]) -> None:
        self.data = data
        self._view, self._filled, self._count = memoryview(data), len(start), count
        self._view[: len(start)] = start
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, part: bytes | bytearray) -> None:
        """The next piece; the parser sees to it that there are not too many bytes."""
        if self._ended.done():
            return
        try:
            self._count(len(part))
        except Exception as error:  # nobody above would tell the request
            self._ended.set_exception(error)
            return
        end = self._filled + len(part)
        self._view[self._filled : end] = part
        self._filled = end

    def end(self, *, client_gone: bool = False) -> None:
        """It is complete, or never will be."""
        if self._ended.done():
            return
        if client_gone or self._filled < len(self.data):
            self._ended.set_exception(ClientDisconnect())
        else:
            self._ended.set_result(None)

    async def complete(self) -> Memory:
        """Wait for all of it; ClientDisconnect if the connection ends before that."""
        await self._ended
        return self.data


async def rest_of_body(
    request: Request,
    start: bytes | bytearray,
    length: int,
    memory_for: MemoryFor,
    count: Callable[[int], None],
) -> Memory | None:
    """A whole body whose first piece was received; None if the web server does not hand over the rest.

    Args:
        request: The request.
        start: What was received of its body, and counted.
        length: Of the whole body.
        memory_for: Gives memory of that length, if it has to be some in particular.
        count: Called with the number of bytes that come; what it raises is raised here.
    """
    connection: LimitedProtocol | None = request.scope.get(CONNECTION)
    if connection is None or len(start) > length:
        return None
    lent = memory_for(length)
    if lent is None:
        lent = np.empty(length, np.uint8).data  # takes memory as the bytes come
    body = DirectBody(lent, start, count)
    return await body.complete() if connection.receive_directly(request.scope, body) else None
