"""Large bodies are received into memory of their size; clients that go away are noticed."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from ramen.serve.http.protocol import DirectBody, Gate, LimitedProtocol, rest_of_body
from ramen.serve.http.service import BodyBudget
from ramen.serve.settings import HttpSettings

PATIENCE = 30.0
LARGE = 3 * 2**20


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """A block during which a thread does something, and which waits for it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive()


class App:
    """Answers with how a body came, and a sum of it.

    Attributes:
        gone: How many clients went away.
        lent: Memory that it has given for bodies, if it is to do so.
    """

    def __init__(self) -> None:
        self.gone = 0
        self.lends = False
        self.lent: list[np.ndarray] = []
        self.counted: list[int] = []

    def memory_for(self, length: int) -> memoryview | None:
        if not self.lends:
            return None
        self.lent.append(np.zeros(length, np.uint8))
        return memoryview(self.lent[-1])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        first = await request.receive()
        if first["type"] == "http.disconnect":
            return
        if scope["path"] == "/impatient":  # answers before the body is there
            await self._answer(send, b"early")
            return
        length = int(request.headers["content-length"])
        try:
            whole = None
            if first["more_body"]:
                whole = await rest_of_body(
                    request, first["body"], length, self.memory_for, self.counted.append
                )
        except ClientDisconnect:
            self.gone += 1
            return
        data = first["body"] if whole is None else whole
        assert len(data) == length
        how = "at once" if whole is None else "directly"
        await self._answer(send, f"{how} {int(np.frombuffer(data, np.uint8).sum(dtype=np.int64))}".encode())

    async def _answer(self, send: Send, body: bytes) -> None:
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def connection(app: App) -> Iterator[socket.socket]:
    listening = socket.create_server(("127.0.0.1", 0))
    protocol = partial(LimitedProtocol, Gate(HttpSettings()))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol,
            lifespan="off",
            log_config=None,
            ws="none",
        )
    )
    with in_thread(lambda: server.run([listening])):
        try:
            client = socket.create_connection(listening.getsockname(), PATIENCE)
            yield client
            client.close()
        finally:
            server.should_exit = True


def head(length: int, path: str = "/") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def answer(client: socket.socket) -> str:
    """The next one; what comes behind it is left for the next call."""
    top = b""
    while not top.endswith(b"\r\n\r\n"):
        top += client.recv(1)
    length = int(top.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return client.recv(length, socket.MSG_WAITALL).decode()


def test_bodies_arrive_byte_for_byte(connection: socket.socket) -> None:
    """Large and small ones on one connection; at once, and in two halves with a pause between them."""
    random = np.random.default_rng(0)
    for length, pause in ((LARGE, 0.0), (10, 0.0), (LARGE + 1, 0.2), (LARGE, 0.0)):
        body = random.integers(0, 256, length, np.uint8)
        connection.sendall(head(length))
        connection.sendall(body[: length // 2].tobytes())
        time.sleep(pause)
        connection.sendall(body[length // 2 :].tobytes())
        how, total = answer(connection).rsplit(" ", 1)
        assert int(total) == int(body.sum(dtype=np.int64))
        if length >= LARGE:
            assert how == "directly"


def test_requests_in_a_row_without_waiting_for_answers(connection: socket.socket) -> None:
    bodies = [np.full(LARGE, value, np.uint8) for value in (1, 2)]
    with in_thread(lambda: connection.sendall(b"".join(head(LARGE) + body.tobytes() for body in bodies))):
        assert answer(connection).endswith(f" {LARGE}")
        assert answer(connection).endswith(f" {2 * LARGE}")


def test_a_client_that_goes_away_is_noticed(connection: socket.socket, app: App) -> None:
    connection.sendall(head(LARGE) + b"x" * (LARGE // 2))
    time.sleep(0.1)
    connection.close()
    end = time.monotonic() + PATIENCE
    while not app.gone and time.monotonic() < end:
        time.sleep(0.01)
    assert app.gone == 1


def test_an_answer_may_come_before_the_body(connection: socket.socket) -> None:
    connection.sendall(head(LARGE, "/impatient") + b"x")
    assert answer(connection) == "early"
    connection.sendall(b"x" * (LARGE - 1))
    connection.sendall(head(3) + b"\x01\x01\x01")
    assert answer(connection) == "at once 3"


def test_a_body_that_ends_too_early_is_not_complete() -> None:
    async def run() -> None:
        body = DirectBody(bytearray(3), b"", [].append)
        body.add(b"ab")
        body.end()
        body.end(client_gone=True)  # says nothing new
        with pytest.raises(ClientDisconnect):
            await body.complete()

    asyncio.run(run())


def test_other_web_servers_hand_over_nothing() -> None:
    async def run() -> None:
        request = Request({"type": "http", "headers": []})
        assert await rest_of_body(request, b"", 10, lambda length: None, [].append) is None

    asyncio.run(run())


def test_memory_of_others_is_used(connection: socket.socket, app: App) -> None:
    app.lends = True
    body = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
    with in_thread(lambda: connection.sendall(head(LARGE) + body.tobytes())):
        assert answer(connection) == f"directly {int(body.sum(dtype=np.int64))}"
    assert len(app.lent) == 1
    assert np.array_equal(app.lent[0], body)


def test_bodies_that_are_announced_reserve_at_most_half() -> None:
    """Beyond that a body comes in pieces: whoever announces many does not take memory from others."""
    budget, given = BodyBudget(100), memoryview(bytearray(30))
    with budget.lending(30, lambda _: given) as lend:
        assert lend is not None
        assert lend(30) is given
        with budget.lending(30, lambda _: given) as other:
            assert other is None
    with budget.lending(50, lambda _: given) as lend:
        assert lend is not None
