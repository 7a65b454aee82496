"""The server as a process of its own: signals, ports."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from ramen.serve.http.app import create_app
from ramen.serve.http.server import StopFailedError, bind, run_server, url_of
from tests.fakes.backends import FakeBackend
from tests.helpers.running_server import PATIENCE, running, wait_until

ROOT = Path(__file__).parents[3]
PATH = "/v1/streams/a/classify"
PNG = {"Content-Type": "image/png"}
# Says where it listens, that a request waits, and that the backend was closed.
PROGRAM = """
import asyncio, sys
from ramen.serve.http.app import create_app
from ramen.serve.http.server import bind, run_server, url_of
from ramen.serve.settings import HttpSettings
from tests.fakes.backends import FakeBackend

class Backend(FakeBackend):
    async def classify(self, *given, **named):
        print("waiting", flush=True)
        return await super().classify(*given, **named)

    async def close(self):
        print("closed", flush=True)
        await asyncio.sleep(closing)

delay, closing = map(float, sys.argv[1:])
backend = Backend()
backend.delay = delay
app = create_app(backend, HttpSettings())
with bind("127.0.0.1", 0) as bound:
    run_server(app, bound, lambda: print(url_of(bound), flush=True))
print("ended", flush=True)
"""


class _Process:
    def __init__(self, delay: float = 0.0, closing: float = 0.0) -> None:
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(delay), str(closing)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self.url = self.line()

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, list[str]]:
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest.split()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish(number: int) -> None:
    with _Process(delay=0.5) as server:
        answers: list[httpx.Response] = []
        client = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{server.url}{PATH}", content=b"abc", headers=PNG, timeout=PATIENCE)
            )
        )
        client.start()
        assert server.line() == "waiting"
        server.process.send_signal(number)
        client.join(PATIENCE)
        assert answers[0].status_code == 200
        assert server.end() == (0, ["closed", "ended"])
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(number: int) -> None:
    with _Process(closing=3600) as server:
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.line() == "closed"
        server.process.send_signal(number)
        assert server.end() == (128 + number, [])


def test_open_connections_do_not_delay_the_end(app, backend: FakeBackend) -> None:
    with running(app) as server, httpx.Client(base_url=server.url) as client:
        client.get("/healthz")  # the connection stays open
        with socket.create_connection(server.server.servers[0].sockets[0].getsockname()) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\n")
            wait_until(lambda: len(server.server.server_state.connections) == 2)
            server.stop()
    assert backend.closed == 1


def test_a_backend_that_cannot_store(backend: FakeBackend, monkeypatch) -> None:
    async def fail() -> None:
        raise OSError("disk full")

    monkeypatch.setattr(backend, "close", fail)
    app = create_app(backend)
    with bind("127.0.0.1", 0) as bound:
        threading.Thread(target=_stop_when_up, args=(url_of(bound),)).start()
        with pytest.raises(StopFailedError, match="not everything could be stored"):
            run_server(app, bound)


def _stop_when_up(url: str) -> None:
    wait_until(lambda: httpx.get(f"{url}/healthz").status_code == 200)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_port_that_is_in_use() -> None:
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(OSError) as caught:
            bind("127.0.0.1", port)
    assert (caught.value.errno, caught.value.filename) == (errno.EADDRINUSE, f"127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_addresses(host: str) -> None:
    with bind(host, 0) as bound:
        assert url_of(bound).startswith(("http://127.0.0.1:", "http://[::1]:"))


def test_a_host_that_is_none() -> None:
    with pytest.raises(OSError) as caught:
        bind("no.such.host.invalid", 80)
    assert caught.value.filename == "no.such.host.invalid:80"
