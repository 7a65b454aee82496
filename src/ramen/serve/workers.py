"""Workers: processes with the whole HTTP application, which also decode; started, replaced and ended here.

Reading requests, decoding files and writing responses need Python's lock, and so does the thread that feeds
a GPU. What a worker asks the engine goes through a pair of sockets, and pixels through memory that both see.
"""

import asyncio
import importlib.util
import logging
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramen.client.operations import ServedModel
from ramen.images.file_checks import DecodingSettings
from ramen.predict.decoding import Decoder
from ramen.serve.arena import Arena, SharedRegion
from ramen.serve.decoding import BATCHES_AHEAD, Decoding, ProcessDecoder
from ramen.serve.http.app import create_app, log_to_stderr
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.http.server import StopFailedError, StoppableServer
from ramen.serve.http.service import Service
from ramen.serve.pipe import PipeEngine, WorkerConnection
from ramen.serve.pixels import MOST_PIXELS, PixelRules
from ramen.serve.settings import HttpSettings
from ramen.utils.signals import stop_on_signals
from ramen.utils.workers import STARTING, available_cores, left_out_of_collections

if TYPE_CHECKING:  # a worker has no use for it
    from ramen.serve.engine.engine import Engine

_BACKLOG = 2048
_DECODERS = 2, 4  # of a worker, the fewest and the most
_OTHER_CORES = 4  # that decoding leaves to everything else, if there are more
MOST_PINNED = 512 * 2**20  # bytes, of all workers together
_GAPS = 2  # what memory for blocks of many sizes needs, as a multiple of their sum
_SHORT_LIFE = 5.0  # seconds
_SHORT_LIVES = 5  # in a row, after which something is wrong with this machine
_LONGEST_PAUSE = 5.0  # seconds between the end of a worker and the start of the next one
_GRACE = 10.0  # seconds beyond the longest timeout of a request until workers are killed at the end
_LEAVE_IT_TO_OTHERS = 0.002  # seconds that a worker with more connections than another waits with a new one
_TICKS = 10  # of the server's clock, which make a second

_log = logging.getLogger("ramen")


class WorkersFailedError(RuntimeError):
    """The workers end as soon as they start."""


# -- in a worker ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker is given.

    Attributes:
        number: Its own, from 0 on.
        model: What is served.
        settings: Limits of requests, and who may send them.
        queue: The most images and bytes that may wait in the engine.
        log_format: "json" or "text".
        listener: Where all workers listen.
        pair: Its end of the pair of sockets that it shares with the engine.
        region: Where it puts images.
        connections: How many connections each worker has, as numbers of 64 bits.
        rules: Which images are resized where.
        decoding: What may be decoded.
        decoders: How many files it decodes at a time.
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
    rules: PixelRules
    decoding: DecodingSettings
    decoders: int


def run_worker(setup: WorkerSetup) -> None:
    """Serve until the engine says stop, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a terminal, or of a service
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr(setup.log_format)
    server = _WorkerServer(setup)
    with left_out_of_collections():
        server.run([])


class _WorkerServer(StoppableServer):
    """A server that shares its address with others, and leaves signals to the process of the engine."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup, arena = setup, Arena(setup.region)
        decoder = Decoder(setup.rules.preprocess, setup.decoding)
        decoders = [ProcessDecoder(decoder, setup.region) for _ in range(setup.decoders)]
        self._decoding = Decoding(decoders, setup.rules, BATCHES_AHEAD * setup.model.max_batch, arena=arena)
        self._engine = PipeEngine(setup.model, arena, self._decoding, setup.queue)
        self._connections: NDArray[np.int64] = setup.connections.bytes_at(0, setup.connections.size).view(
            np.int64
        )
        app = create_app(self._engine, setup.settings)
        self._counted: Service = app.state.service
        self._told = -1  # how many requests the engine knows of
        super().__init__(app, lambda: self._engine.tell("listening"))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None comes here."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Find the engine, start decoders, and take connections."""
        await self._engine.connect(self._setup.pair, self.stop, lambda: os._exit(1))
        await self._decoding.start()
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
            self._engine.tell("counted", own=figures.to_json())

    def _note_connections(self) -> None:
        self._connections[self._setup.number] = len(self.server_state.connections)

    async def _accept(self) -> None:
        """Take connections one by one, if no other worker has fewer of them.

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


# -- in the engine ----------------------------------------------------------------------------------------


def limits_of_each(settings: HttpSettings, workers: int) -> HttpSettings:
    """What each of several workers may do, so that all together may do what ``settings`` says."""
    return replace(
        settings,
        max_bodies_bytes=max(settings.max_body_bytes, settings.max_bodies_bytes // workers),
        max_listeners=-(-settings.max_listeners // workers),
    )


class Workers:
    """The workers of an engine.

    Args:
        engine: Answers them.
        settings: Limits of requests of all workers together, and who may send them.
        count: How many there are.
        bound: Where to listen.
        log_format: "json" or "text".
    """

    def __init__(
        self, engine: "Engine", settings: HttpSettings, count: int, bound: socket.socket, log_format: str
    ) -> None:
        self._engine, self._settings, self._bound = engine, settings, bound
        self._each, self._log_format = limits_of_each(settings, count), log_format
        self._regions = [SharedRegion(self._region_bytes()) for _ in range(count)]
        device = engine.device
        if device.type == "cuda":
            for region in self._regions:
                region.pin(MOST_PINNED // count, device)
        self._connections = SharedRegion(8 * count)
        self._before = RequestFigures()  # of workers that have ended
        self._latest = [RequestFigures() for _ in range(count)]
        self._now: list[WorkerConnection | None] = [None] * count
        self._processes: list[BaseProcess | None] = [None] * count
        self._stopping = asyncio.Event()

    def _region_bytes(self) -> int:
        """For the bodies of a worker, and the pixels that are ahead; what is used takes memory alone."""
        slot = self._engine.rules.slot_bytes(None)
        if self._engine.rules.resizes:
            slot = max(slot, 3 * MOST_PIXELS)
        images = (BATCHES_AHEAD + 1) * self._engine.settings.max_batch
        return _GAPS * (self._each.max_bodies_bytes + images * slot)

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until ``stop``.

        Args:
            announce: Called once all workers take requests.
        """
        self._bound.listen(_BACKLOG)
        listening = [asyncio.Event() for _ in self._regions]
        async with asyncio.TaskGroup() as group:
            for number, event in enumerate(listening):
                group.create_task(self._keep(number, event))
            group.create_task(_announce(listening, announce))
            await self._stopping.wait()
            self._bound.close()
            for connection in filter(None, self._now):
                connection.stop()
            group.create_task(self._kill_late_ones())

    def stop(self) -> None:
        """Let the workers answer what they have taken, and end; called in the loop's thread."""
        self._stopping.set()

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [process.pid for process in self._processes if process is not None and process.pid]

    async def _kill_late_ones(self) -> None:
        end = time.monotonic() + self._settings.max_timeout_ms / 1000 + _GRACE
        while time.monotonic() < end and any(self._now):
            await asyncio.sleep(0.05)
        for process in filter(None, self._processes):
            process.kill()

    async def _keep(self, number: int, listening: asyncio.Event) -> None:
        """Run a worker, and another one if it ends although nobody has asked for that."""
        short_lives = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            code, was_listening = await self._run(number, listening)
            self._latest[number].listeners = 0
            self._before.add_all(self._latest[number])
            self._latest[number] = RequestFigures()
            if self._stopping.is_set():
                return
            is_short = not was_listening or time.monotonic() - started < _SHORT_LIFE
            short_lives = short_lives + 1 if is_short else 0
            _log.error("a worker has ended with exit code %s; another one is started", code)
            if short_lives >= _SHORT_LIVES:
                raise WorkersFailedError(
                    f"workers end as soon as they start, with exit code {code}: see the log"
                )
            try:
                async with asyncio.timeout(min(_LONGEST_PAUSE, 0.1 * 2**short_lives)):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    async def _run(self, number: int, listening: asyncio.Event) -> tuple[int | None, bool]:
        """One process, from its start to its end; returns its exit code, and whether it took requests."""
        ours, theirs = socket.socketpair()
        connection = self._now[number] = WorkerConnection(
            self._engine, self._regions[number], partial(self._count, number), listening.set
        )
        with theirs:
            process = self._processes[number] = self._start(number, theirs)
        try:
            await connection.serve(ours)
        finally:
            self._now[number] = None
        await asyncio.to_thread(_ended, process)
        return process.exitcode, connection.was_listening

    def _count(self, number: int, figures: RequestFigures) -> RequestFigures:
        """What one has counted; returns what all have."""
        self._latest[number] = figures
        everybody = RequestFigures()
        for one in (self._before, *self._latest):
            everybody.add_all(one)
        return everybody

    def _start(self, number: int, pair: socket.socket) -> BaseProcess:
        engine, settings, workers = self._engine, self._engine.settings, len(self._regions)
        fewest, most = _DECODERS
        setup = WorkerSetup(
            number,
            engine.model,
            self._each,
            (settings.max_queue_images, settings.max_queue_bytes),
            self._log_format,
            self._bound,
            pair,
            self._regions[number],
            self._connections,
            engine.rules,
            settings.decoding,
            decoders=min(most, max(fewest, (available_cores() - _OTHER_CORES) // workers)),
        )
        spawning = multiprocessing.get_context("spawn")
        process = spawning.Process(target=run_worker, args=(setup,), name=f"ramen-worker-{number}")
        with STARTING:
            process.start()
        return process


async def _announce(listening: Sequence[asyncio.Event], announce: Callable[[], None]) -> None:
    for event in listening:
        await event.wait()
    announce()


def _ended(process: BaseProcess) -> None:
    """Wait for a worker that has closed its connection."""
    process.join(_GRACE)
    process.kill()
    process.join()


def run_workers(
    engine: "Engine",
    settings: HttpSettings,
    count: int,
    bound: socket.socket,
    log_format: str,
    announce: Callable[[], None],
) -> None:
    """Serve until a signal comes; a second signal ends the process at once, without storing anything more.

    Args:
        engine: Answers; closed at the end.
        settings: Limits of requests, and who may send them.
        count: How many workers there are.
        bound: Where to listen.
        log_format: "json" or "text".
        announce: Called once all workers listen.
    """
    workers = Workers(engine, settings, count, bound, log_format)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        stop = partial(runner.get_loop().call_soon_threadsafe, workers.stop)
        with stop_on_signals(stop, again=lambda number: os._exit(128 + number)):
            try:
                runner.run(workers.run(announce))
            except* WorkersFailedError as group:
                runner.run(engine.close())
                raise group.exceptions[0] from None
            try:
                runner.run(engine.close())
            except Exception as error:
                message = f"the server stopped, but not everything could be stored: {error}"
                raise StopFailedError(message) from error


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """That of uvloop, if it is installed, as the web server uses it."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop: Any = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
