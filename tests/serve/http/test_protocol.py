"""Heads without end, heads that never end, bodies that do not come, and more connections than places."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from ramen.serve.http.app import create_app
from ramen.serve.http.auth import create_token
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend
from tests.helpers.running_server import PATIENCE, RunningServer, running

IMPATIENT = {"head_seconds": 0.3, "idle_seconds": 0.3, "stalled_seconds": 0.3}
START = b"POST /v1/streams/a/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@contextmanager
def served(**limits) -> Iterator[RunningServer]:
    with running(create_app(FakeBackend(), HttpSettings(**limits))) as server:
        yield server


def connect(server: RunningServer) -> socket.socket:
    url = httpx.URL(server.url)
    return socket.create_connection((url.host, url.port), PATIENCE)


def reply_to(server: RunningServer, *parts: bytes) -> tuple[int, str, int]:
    """Status and code of the reply, and how many bytes could be sent before it came."""
    with connect(server) as client:
        sent = 0
        client.settimeout(0.001)
        for part in parts:
            try:
                client.settimeout(PATIENCE)
                client.sendall(part)
            except OSError:
                break
            sent += len(part)
        return *read_reply(client), sent


def read_reply(client: socket.socket) -> tuple[int, str]:
    received = b""
    try:
        while b"\r\n\r\n" not in received or not received.endswith(b"}"):
            part = client.recv(65536)
            if not part:
                break
            received += part
    except ConnectionResetError:
        pass
    if not received:
        return 0, ""
    head, _, body = received.partition(b"\r\n\r\n")
    content = json.loads(body) if body else {}
    return int(head.split(b" ")[1]), content.get("error", {}).get("code", "")


def sends_until_closed(client: socket.socket, part: bytes) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(0.05)
        try:
            client.sendall(part)
        except OSError:
            return True
    return False


def in_parts(data: bytes, size: int = 8192) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


END_OF_START = START + b"Content-Length: 3\r\n\r\nabc"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (START + b"X: y\r\n" * 90 + END_OF_START[len(START) :], 200),
        (START + b"X: y\r\n" * 99 + END_OF_START[len(START) :], 431),
        (START + b"X: " + b"y" * 60_000 + b"\r\n" + END_OF_START[len(START) :], 200),
        (START + b"X: " + b"y" * 70_000, 431),
        (b"GET /" + b"y" * 70_000, 431),
        (b"\r\n" * 40_000, 431),
        (CHUNKED + b"0\r\n" + b"X: y\r\n" * 101, 431),
        (CHUNKED + b"0\r\nX: " + b"y" * 200_000, 431),
        (CHUNKED + b"0\r\n\r\n", 200),
        (b"BREW COFFEE\r\n\r\n", 400),
        (START + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    ],
    ids=lambda value: "" if isinstance(value, int) else repr(value[-30:]),
)
def test_heads(sent: bytes, status: int) -> None:
    with served() as server:
        assert reply_to(server, *in_parts(sent))[0] == status
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_head_without_end_is_cut_off_early() -> None:
    with served() as server:
        for line in (b"a:b\r\n" * 2000, b"y" * 10_000):
            status, code, sent = reply_to(server, START, *[line] * 2000)
            assert (status, code) in ((431, "head_too_large"), (0, ""))  # the reply may be lost to a reset
            assert sent < 10_000_000  # what fits into the buffers of both sides
        counted = httpx.get(f"{server.url}/metrics").text
        assert 'route="none",status="431"} 2.0' in counted


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", START, START + b"Content-Length: 10\r\n\r\nabc", CHUNKED],
    ids=["nothing", "a line", "half a head", "half a body", "half of the pieces"],
)
def test_slow_requests_are_given_up(sent: bytes) -> None:
    with served(**IMPATIENT) as server:
        start = time.monotonic()
        assert reply_to(server, sent)[:2] == (408, "timeout")
        assert 0.2 < time.monotonic() - start < 20


def test_bodies_may_take_longer_than_a_pause() -> None:
    with served(**IMPATIENT) as server, connect(server) as client:
        client.sendall(START + b"Content-Length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(0.1)
            client.sendall(b"a")
        assert read_reply(client)[0] == 200


def test_who_does_not_read_is_let_go() -> None:
    with served(**IMPATIENT) as server, connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.5)
        assert sends_until_closed(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_a_refused_body_is_not_waited_for() -> None:
    with served(**IMPATIENT, max_body_bytes=10) as server, connect(server) as client:
        client.sendall(START + b"Content-Length: 1000000\r\n\r\n")
        assert read_reply(client) == (413, "too_large")
        assert sends_until_closed(client, b"a")


def test_connections_that_are_not_used_keep_nobody_out(tmp_path) -> None:
    tokens = tmp_path / "tokens.json"
    owner = {"Authorization": f"Bearer {create_token(tokens, 'owner', ['manage'])}"}
    with ExitStack() as held, served(tokens=tokens, max_connections=20) as server:
        kept = held.enter_context(httpx.Client(base_url=server.url, headers=owner))
        assert kept.get("/v1/streams").status_code == 200
        for number in range(60):
            client = held.enter_context(connect(server))
            client.sendall(START[: number % len(START)])
            if number % 10 == 0:
                assert httpx.get(f"{server.url}/healthz").status_code == 200
                assert httpx.get(f"{server.url}/v1/streams", headers=owner).status_code == 200
        assert len(server.server.server_state.connections) <= 20
        assert kept.get("/v1/streams").status_code == 200


def test_one_address_takes_half(tmp_path) -> None:
    tokens = tmp_path / "tokens.json"
    create_token(tokens, "owner", ["manage"])
    with ExitStack() as held, served(tokens=tokens, max_connections=20) as server:
        for _ in range(30):
            held.enter_context(connect(server))
        time.sleep(0.2)
        assert len(server.server.server_state.connections) <= 11
        client = socket.socket()
        held.enter_context(client)
        client.bind(("127.0.0.2", 0))
        url = httpx.URL(server.url)
        client.connect((url.host, url.port))
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_reply(client)[0] == 200


def test_busy_connections_leave_room_for_health_and_owners(tmp_path) -> None:
    tokens = tmp_path / "tokens.json"
    owner, camera = (
        {"Authorization": f"Bearer {create_token(tokens, name, [name])}"} for name in ("manage", "classify")
    )
    limits = {"max_connections": 4}
    with ExitStack() as held, served(tokens=tokens, **limits) as server:
        for _ in range(4):
            client = held.enter_context(connect(server))
            token = f"Authorization: {camera['Authorization']}\r\n".encode()
            client.sendall(START + token + b"Content-Length: 100\r\n\r\na")
        time.sleep(0.2)
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert httpx.get(f"{server.url}/v1/streams", headers=owner).status_code == 200
        refused = httpx.get(f"{server.url}/v1/streams", headers=camera)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.headers["Retry-After"] == "1"


def test_requests_behind_each_other_are_answered_in_order() -> None:
    with served() as server, connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 20 or not received.endswith(b"}"):
            received += client.recv(65536)
    with served() as server:
        sent = (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") * 5000
        reply_to(server, sent)
        assert httpx.get(f"{server.url}/healthz").status_code == 200
