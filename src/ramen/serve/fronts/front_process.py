"""A process with the HTTP application, for an engine that is in the process that has started it."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramen.client.operations import ServedModel
from ramen.serve.fronts.remote_backend import RemoteBackend
from ramen.serve.http.app import create_app, log_to_stderr
from ramen.serve.http.server import StoppableServer
from ramen.serve.http.service import Service
from ramen.serve.http.settings import HttpSettings
from ramen.serve.shared_memory import Lender, SharedRegion
from ramen.utils.workers import left_out_of_collections

_LEAVE_IT_TO_OTHERS = 0.002  # seconds that a front with more connections than another waits with a new one
_TICKS = 10  # of the server's clock, which make a second


@dataclass(frozen=True)
class FrontSetup:
    """What a front is given.

    Attributes:
        number: Its own, from 0 on.
        model: What is served.
        settings: Limits of requests, and who may send them.
        queue: The most images and bytes that may wait in the engine.
        log_format: "json" or "text".
        listener: Where all fronts listen.
        pair: Its end of the pair of sockets that it shares with the engine.
        region: Where it puts images.
        connections: How many connections each front has, as numbers of 64 bits.
    """

    number: int
    model: ServedModel
    settings: HttpSettings
    queue: tuple[int, int]
    log_format: str
    listener: socket.socket
    pair: socket.socket
    region: SharedRegion
    connections: SharedRegion


def run_front(setup: FrontSetup) -> None:
    """Serve until the engine says stop, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a terminal, or of a service
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr(setup.log_format)
    server = FrontServer(setup)
    with left_out_of_collections():
        server.run([])


class FrontServer(StoppableServer):
    """A server that shares its address with others, and leaves signals to the process of the engine.

    Args:
        setup: What it is given.
    """

    def __init__(self, setup: FrontSetup) -> None:
        self._setup = setup
        self._backend = RemoteBackend(setup.model, Lender(setup.region), setup.queue)
        self._connections: NDArray[np.int64] = setup.connections.bytes_at(0, setup.connections.size).view(
            np.int64
        )
        app = create_app(self._backend, setup.settings)
        self._counted: Service = app.state.service
        self._told = -1  # how many requests the engine knows of
        super().__init__(app, lambda: self._backend.tell("listening"))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None comes here."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Find the engine, and take connections."""
        await self._backend.connect(self._setup.pair, self.stop, lambda: os._exit(1))
        self._accepting = asyncio.create_task(self._accept())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing more, and answer what was accepted."""
        self._accepting.cancel()
        self._setup.listener.close()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Each tenth of a second."""
        self._note_connections()
        if counter % _TICKS == 0:
            self._tell_figures()
        return await super().on_tick(counter)

    def _tell_figures(self) -> None:
        figures = self._counted.figures
        counted = figures.requests.total()
        if counted != self._told:
            self._told = counted
            self._backend.tell("counted", own=figures.to_json())

    # -- connections --------------------------------------------------------------------------------

    def _note_connections(self) -> None:
        self._connections[self._setup.number] = len(self.server_state.connections)

    async def _accept(self) -> None:
        """Take connections one by one, if no other front has fewer of them.

        Clients keep their connections: whoever took all that come at a moment would do all the work.
        """
        loop, listener = asyncio.get_running_loop(), self._setup.listener
        listener.setblocking(False)
        while True:
            await _readable(loop, listener)
            self._note_connections()
            own = self._connections[self._setup.number]
            if own > self._connections.min():
                await asyncio.sleep(_LEAVE_IT_TO_OTHERS)
            try:
                connection, _ = listener.accept()
            except OSError:  # another one has it, or its client is gone already
                continue
            await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


async def _readable(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
    """Wait until there is a connection to take."""
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(listener, _come, came)
    try:
        await came
    finally:
        loop.remove_reader(listener)


def _come(came: "asyncio.Future[None]") -> None:
    if not came.done():
        came.set_result(None)
