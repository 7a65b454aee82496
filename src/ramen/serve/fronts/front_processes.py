"""Starts the processes of the HTTP fronts, replaces one that dies, and ends them."""

import asyncio
import logging
import multiprocessing
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess

from ramen.serve.engine.engine import Engine
from ramen.serve.fronts.front_connection import FrontConnection
from ramen.serve.fronts.front_process import FrontSetup, run_front
from ramen.serve.http.metrics import RequestFigures
from ramen.serve.http.settings import HttpSettings
from ramen.serve.shared_memory import SharedRegion
from ramen.utils.workers import STARTING

_BACKLOG = 2048
_GAPS = 1.25  # what memory for blocks of many sizes needs beyond their sum
_SHORT_LIFE = 5.0  # seconds
_SHORT_LIVES = 5  # in a row, after which something is wrong with this machine
_LONGEST_PAUSE = 5.0  # seconds between the end of a front and the start of the next one
_GRACE = 10.0  # seconds beyond the longest timeout of a request until fronts are killed at the end

_log = logging.getLogger("ramen")


class FrontsFailedError(RuntimeError):
    """The processes of the HTTP fronts end as soon as they start."""


def front_settings(settings: HttpSettings, fronts: int) -> HttpSettings:
    """What each of several fronts may do, so that all together may do what ``settings`` says."""
    return replace(
        settings,
        max_bodies_bytes=max(settings.max_body_bytes, settings.max_bodies_bytes // fronts),
        max_listeners=-(-settings.max_listeners // fronts),
    )


def front_regions(settings: HttpSettings, fronts: int) -> list[SharedRegion]:
    """Memory for the images of each front; of this, only what is used takes memory."""
    size = int(_GAPS * front_settings(settings, fronts).max_bodies_bytes)
    return [SharedRegion(size) for _ in range(fronts)]


@dataclass
class _AllFigures:
    """What the fronts have counted, those included that have ended."""

    before: RequestFigures
    latest: list[RequestFigures]

    def take(self, number: int, figures: RequestFigures) -> RequestFigures:
        """What one has counted; returns what all have."""
        self.latest[number] = figures
        everybody = RequestFigures()
        for one in (self.before, *self.latest):
            everybody.add_all(one)
        return everybody

    def end(self, number: int) -> None:
        """One has ended: what it has counted stays."""
        self.latest[number].listeners = 0
        self.before.add_all(self.latest[number])
        self.latest[number] = RequestFigures()


class FrontProcesses:
    """The fronts of an engine.

    Args:
        engine: Answers them.
        settings: Limits of requests of all fronts together, and who may send them.
        regions: One for each front; the engine knows them.
        bound: Where to listen.
        log_format: "json" or "text".
    """

    def __init__(
        self,
        engine: Engine,
        settings: HttpSettings,
        regions: Sequence[SharedRegion],
        bound: socket.socket,
        log_format: str,
    ) -> None:
        self._engine, self._regions = engine, regions
        self._settings, self._bound, self._log_format = settings, bound, log_format
        self._each = front_settings(settings, len(regions))
        self._connections = SharedRegion(8 * len(regions))
        self._figures = _AllFigures(RequestFigures(), [RequestFigures() for _ in regions])
        self._now: list[FrontConnection | None] = [None] * len(regions)
        self._processes: list[BaseProcess | None] = [None] * len(regions)
        self._stopping = asyncio.Event()

    async def run(self, announce: Callable[[], None]) -> None:
        """Serve until ``stop``.

        Args:
            announce: Called once all fronts take requests.
        """
        self._bound.listen(_BACKLOG)
        listening = [asyncio.Event() for _ in self._regions]
        async with asyncio.TaskGroup() as group:
            for number, event in enumerate(listening):
                group.create_task(self._keep(number, event))
            group.create_task(self._announce(listening, announce))
            await self._stopping.wait()
            self._bound.close()
            for connection in filter(None, self._now):
                connection.stop()
            group.create_task(self._kill_late_ones())

    def stop(self) -> None:
        """Let the fronts answer what they have taken, and end; called in the loop's thread."""
        self._stopping.set()

    async def _announce(self, listening: Sequence[asyncio.Event], announce: Callable[[], None]) -> None:
        for event in listening:
            await event.wait()
        announce()

    async def _kill_late_ones(self) -> None:
        patience = self._settings.max_timeout_ms / 1000 + _GRACE
        end = time.monotonic() + patience
        while time.monotonic() < end and any(self._now):
            await asyncio.sleep(0.05)
        for process in filter(None, self._processes):
            process.kill()

    # -- one front ----------------------------------------------------------------------------------

    async def _keep(self, number: int, listening: asyncio.Event) -> None:
        """Run a front, and another one if it ends although nobody has asked for that."""
        short_lives = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run(number, listening)
            self._figures.end(number)
            if self._stopping.is_set():
                return
            short_lives = short_lives + 1 if time.monotonic() - started < _SHORT_LIFE else 0
            _log.error("an HTTP process has ended with exit code %s; another one is started", code)
            if short_lives >= _SHORT_LIVES:
                raise FrontsFailedError(
                    f"HTTP processes end as soon as they start, with exit code {code}: see the log"
                )
            await self._pause(min(_LONGEST_PAUSE, 0.1 * 2**short_lives))

    async def _run(self, number: int, listening: asyncio.Event) -> int | None:
        """One process, from its start to its end; returns its exit code."""
        ours, theirs = socket.socketpair()
        connection = FrontConnection(
            self._engine,
            self._regions[number],
            lambda figures: self._figures.take(number, figures),
            listening.set,
        )
        self._now[number] = connection
        try:
            with theirs:
                process = self._processes[number] = self._start(number, theirs)
            await connection.serve(ours)
        finally:
            self._now[number] = None
        await asyncio.to_thread(process.join)
        return process.exitcode

    def _start(self, number: int, pair: socket.socket) -> BaseProcess:
        queue = self._engine.settings
        setup = FrontSetup(
            number,
            self._engine.model,
            self._each,
            (queue.max_queue_images, queue.max_queue_bytes),
            self._log_format,
            self._bound,
            pair,
            self._regions[number],
            self._connections,
        )
        spawning = multiprocessing.get_context("spawn")
        process = spawning.Process(target=run_front, args=(setup,), name=f"ramen-http-{number}", daemon=True)
        with STARTING:
            process.start()
        return process

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass
