"""A connection to a server that is kept open, with little work per request: clients share the machine."""

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_CHUNK = 2**18
_PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class PreparedRequest:
    """A request as bytes, made before the clock runs."""

    data: bytes  # head and body
    images: int = 0  # how many are in it


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]  # their names in lower case
    body: bytes

    def json(self) -> Any:
        """The body's content."""
        return json.loads(self.body)


def prepare(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, images: int = 0
) -> PreparedRequest:
    """Write a request down; ``headers`` are those beside the host and the body's length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return PreparedRequest("\r\n".join([*lines, "", ""]).encode() + body, images)


class HttpConnection:
    """One connection, which one caller at a time uses. It connects when it is first needed, and again."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    async def exchange(self, request: PreparedRequest, patience: float = _PATIENCE) -> Reply:
        """Send a request and wait for its answer; an OSError if there is none."""
        return await asyncio.wait_for(self._exchange(request), patience)

    async def _exchange(self, request: PreparedRequest) -> Reply:
        loop = asyncio.get_running_loop()
        if self._socket is not None and _was_closed(self._socket):
            self.close()
        try:
            connected = self._socket or await self._connect(loop)
            with suppress(ConnectionError):  # refused before all of it was read; the answer may be there
                await loop.sock_sendall(connected, request.data)
            reply = await _reply(loop, connected)
        except BaseException:
            self.close()
            raise
        if reply.headers.get("connection", "").lower() == "close":
            self.close()
        return reply

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(self._socket, (self._address.host, self._address.port))
        return self._socket

    def close(self) -> None:
        """Close it; the next exchange connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _was_closed(connected: socket.socket) -> bool:
    """Whether the server has closed it, as servers do with connections that nobody uses for some seconds."""
    try:
        return not connected.recv(1, socket.MSG_PEEK)
    except BlockingIOError:  # nothing to read: it is open
        return False
    except OSError:
        return True


async def _reply(loop: asyncio.AbstractEventLoop, connected: socket.socket) -> Reply:
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += await _some(loop, connected)
    first, *lines = received[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = received[end + 4 :]
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        body += await _some(loop, connected)
    return Reply(int(first.split(" ")[1]), headers, bytes(body))


async def _some(loop: asyncio.AbstractEventLoop, connected: socket.socket) -> bytes:
    part = await loop.sock_recv(connected, _CHUNK)
    if not part:
        raise ConnectionResetError("the server closed the connection")
    return part


def send(address: Address, request: PreparedRequest) -> Reply:
    """One request on a connection of its own, for whoever has no event loop."""

    async def exchange() -> Reply:
        connection = HttpConnection(address)
        try:
            return await connection.exchange(request)
        finally:
            connection.close()

    return asyncio.run(exchange())


def ask(address: Address, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    """The same with headers by name, ``_`` in place of ``-``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return send(address, prepare(method, path, body, named))
