"""Runs an application until a signal asks it to stop; then it finishes, stores what was learned, and ends."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from ramen.serve.http.auth import is_loopback
from ramen.serve.http.protocol import Gate, LimitedProtocol
from ramen.serve.http.service import Service
from ramen.utils.signals import stop_on_signals

_GRACE = 5  # seconds beyond the longest timeout of a request until requests are given up at the end
_BACKLOG = 2048


class StopFailedError(RuntimeError):
    """What was learned last could not be stored when the server was stopped."""


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address; OSError with the address in it if that is not possible.

    Args:
        host: An address, or a name of this machine.
        port: 0 for any that is free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Where clients on this machine find a server."""
    host, port = bound.getsockname()[:2]
    host = host if is_loopback(host) else {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class StoppableServer(uvicorn.Server):
    """A server that ends its streams of events when it is stopped, and whose end by a signal is no failure.

    Args:
        app: Made by ``create_app``.
        announce: Called once it listens.
    """

    def __init__(self, app: FastAPI, announce: Callable[[], None] = lambda: None) -> None:
        service: Service = app.state.service
        gate = Gate(
            service.settings, lambda status: service.figures.count("other", "none", status, seconds=None)
        )
        protocol: Any = partial(LimitedProtocol, gate)
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing depends on what a proxy says
                backlog=_BACKLOG,
                timeout_graceful_shutdown=service.settings.max_timeout_ms // 1000 + _GRACE,
                ws="none",
                http=protocol,
            )
        )
        self._service, self._announce = service, announce

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal stops it gracefully, the second one at once.

        An exception could be caught by whatever happens to run, and threads that compute would outlive it.
        """
        with stop_on_signals(self.stop, again=lambda number: os._exit(128 + number)):
            yield

    def stop(self) -> None:
        """Stop soon; may be called from a signal's handler or another thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing more, answer what was accepted, close the backend."""
        self._service.stopping.set()
        await super().shutdown(sockets)


def run_server(app: FastAPI, bound: socket.socket, announce: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal comes; a second signal ends the process at once, without storing anything more.

    Args:
        app: Made by ``create_app``.
        bound: Where to listen.
        announce: Called once it listens.
    """
    server = StoppableServer(app, announce)
    server.run([bound])
    if getattr(server.lifespan, "shutdown_failed", False):
        raise StopFailedError("the server stopped, but not everything could be stored: see the log")
