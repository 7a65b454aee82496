"""A connection to a server that is kept open, with little work per request: clients share the machine."""

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_CHUNK = 2**18


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class PreparedRequest:
    """A request as bytes, made before the clock runs.

    Attributes:
        data: Head and body.
        images: How many images are in it.
    """

    data: bytes
    images: int = 0


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        status: Of HTTP.
        headers: Their names in lower case.
        body: As bytes.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's content."""
        return json.loads(self.body)


def prepare(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    images: int = 0,
    host: str = "127.0.0.1",
) -> PreparedRequest:
    """Write a request down.

    Args:
        method: Of HTTP.
        path: With its query.
        body: Its body.
        headers: Beside the host and the body's length.
        images: How many images are in the body.
        host: Of the server.
    """
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return PreparedRequest("\r\n".join([*lines, "", ""]).encode() + body, images)


class HttpConnection:
    """One connection, which one caller at a time uses. It connects when it is first needed, and again.

    Args:
        address: The server's.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    async def exchange(self, request: PreparedRequest) -> Reply:
        """Send a request and wait for its answer; ConnectionError if there is none."""
        loop = asyncio.get_running_loop()
        if self._socket is not None and _was_closed(self._socket):
            self.close()
        connected = self._socket or await self._connect()
        try:
            with suppress(ConnectionError):  # refused before all of it was read; the answer may be there
                await loop.sock_sendall(connected, request.data)
            reply = await self._reply(loop, connected)
        except BaseException:
            self.close()
            raise
        if reply.headers.get("connection", "").lower() == "close":
            self.close()
        return reply

    async def _connect(self) -> socket.socket:
        connecting = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connecting
        try:
            await asyncio.get_running_loop().sock_connect(
                connecting, (self._address.host, self._address.port)
            )
        except BaseException:
            self.close()
            raise
        return connecting

    async def _reply(self, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> Reply:
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += await _some(loop, connected)
        first, *lines = received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = received[end + 4 :]
        missing = int(headers.get("content-length", "0")) - len(body)
        while missing > 0:
            part = await _some(loop, connected)
            missing -= len(part)
            body += part
        return Reply(int(first.split(" ")[1]), headers, bytes(body))

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


async def _some(loop: asyncio.AbstractEventLoop, connected: socket.socket) -> bytes:
    part = await loop.sock_recv(connected, _CHUNK)
    if not part:
        raise ConnectionResetError("the server closed the connection")
    return part


def ask(address: Address, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    """One request on a connection of its own, for whoever has no event loop.

    Args:
        address: The server's.
        method: Of HTTP.
        path: With its query.
        body: Its body.
        headers: With ``_`` in place of ``-``.
    """

    async def exchange() -> Reply:
        connection = HttpConnection(address)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            return await asyncio.wait_for(
                connection.exchange(prepare(method, path, body, named, host=address.host)), 120
            )
        finally:
            connection.close()

    return asyncio.run(exchange())
