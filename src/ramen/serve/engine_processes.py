"""Engines in processes of their own, one for each GPU of this machine, behind one HTTP address.

This process reads requests and writes responses. What concerns a stream goes to the engine that has it,
through a pair of sockets, and images through memory that all of them see.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch

from ramen.client.operations import Operation, Reply, ServedModel, ServerError, StoppingError
from ramen.methods._registry import load_plugins
from ramen.models.classifier import ZeroShotClassifier
from ramen.predict.decoding import Decoder
from ramen.serve.arena import Arena, SharedRegion
from ramen.serve.decoding import BATCHES_AHEAD, Decoding, ProcessDecoder
from ramen.serve.engine.state_folder import when_free
from ramen.serve.http.app import create_app, log_to_stderr
from ramen.serve.http.server import StopFailedError, StoppableServer, bind, url_of
from ramen.serve.pipe import PipeEngine, WorkerConnection
from ramen.serve.pixels import MOST_PIXELS, PixelRules
from ramen.serve.serve_run import TURN, ServeRequest, classifier_for, engine_for
from ramen.serve.shards import Shard, Shards
from ramen.serve.workers import MOST_PINNED, loop_factory
from ramen.utils.files import TemporaryFolder, private_files
from ramen.utils.workers import STARTING, available_cores, left_out_of_collections

_FOLDER_FREE = 10.0  # seconds that an engine waits for its folder; others look for theirs meanwhile
_LONGEST_PAUSE = 5.0  # seconds between two attempts to start an engine again

_log = logging.getLogger("ramen")
Load = Callable[[], ZeroShotClassifier]


# -- in the process of an engine ------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is given.

    Attributes:
        request: What to serve; its device is that of this engine.
        load: Returns the classifier, in place of the model that the request names; importable.
        shard: Which of how many engines this is.
        region: Where images are put.
        pair: Its end of the pair of sockets.
        told: Where it says what it serves, or why it does not.
    """

    request: ServeRequest
    load: Load | None
    shard: tuple[int, int]
    region: SharedRegion
    pair: socket.socket
    told: Connection


def run_engine(setup: EngineSetup) -> None:
    """Answer until the process that has started this one closes the connection, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a terminal, or of a service
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr(setup.request.log_format)
    sys.setswitchinterval(TURN)
    with private_files(), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(setup))


async def _serve(setup: EngineSetup) -> None:
    with setup.told:
        try:
            request = replace(setup.request, device=on_its_own(setup.request.device))
            load_plugins(request.imports)
            classifier = classifier_for(request) if setup.load is None else setup.load()
            engine = when_free(partial(engine_for, request, classifier, setup.shard), _FOLDER_FREE)
            if engine.device.type == "cuda":
                setup.region.pin(MOST_PINNED, engine.device)
        except Exception as error:
            setup.told.send(error)
            return
        setup.told.send((engine.model, engine.rules))
    connection = WorkerConnection(engine, setup.region, lambda own: own, lambda: None)
    try:
        with left_out_of_collections():
            await connection.serve(setup.pair)
    finally:
        await engine.close()


def on_its_own(device: str | None) -> str | None:
    """The device for a process that has not used one yet: of the GPUs, it sees this one alone."""
    kind, _, number = (device or "").partition(":")
    if not number:
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(number)] if visible else number
    return kind


# -- in the process that speaks HTTP --------------------------------------------------------------------


class SharedImages:
    """Where this process decodes images, which all engines see.

    Args:
        request: What is served.
        engines: How many there are.
    """

    def __init__(self, request: ServeRequest, engines: int) -> None:
        self._ahead = BATCHES_AHEAD * engines
        images = (self._ahead + 1) * request.engine.max_batch
        # what is used takes memory alone; twice as much, as blocks of many sizes leave gaps
        self.arena = Arena(SharedRegion(2 * (request.http.max_bodies_bytes + images * 3 * MOST_PIXELS)))
        self._limits, self._decoders = request.engine.decoding, max(2, available_cores() - engines - 1)
        self._decoding: asyncio.Task[Decoding] | None = None

    async def decoding(self, rules: PixelRules, max_batch: int) -> Decoding:
        """What decodes; begun by the first engine that asks."""
        if self._decoding is None:
            self._decoding = asyncio.create_task(self._begin(rules, max_batch))
        return await asyncio.shield(self._decoding)

    async def _begin(self, rules: PixelRules, max_batch: int) -> Decoding:
        decoder = Decoder(rules.preprocess, self._limits)
        decoders = [ProcessDecoder(decoder, self.arena.region) for _ in range(self._decoders)]
        decoding = Decoding(decoders, rules, self._ahead * max_batch, arena=self.arena)
        await decoding.start()
        return decoding

    def memory_for(self, length: int) -> memoryview | None:
        """See ``Backend``."""
        lent = self.arena.lend(length)
        return None if lent is None else memoryview(lent)  # type: ignore[arg-type]

    async def close(self) -> None:
        """End what decodes."""
        if self._decoding is not None:
            await (await self._decoding).close()


class EngineProcess(Shard):
    """One engine, which is started again if it ends.

    Args:
        request: What to serve; its device is that of this engine.
        load: See ``EngineSetup``.
        shard: Which of how many engines this is.
        images: Where images are decoded, for all engines.
    """

    def __init__(
        self, request: ServeRequest, load: Load | None, shard: tuple[int, int], images: "SharedImages"
    ) -> None:
        self._request, self._load, self._shard, self._images = request, load, shard, images
        self._pipe: PipeEngine | None = None  # while it can answer
        self._process: BaseProcess | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> ServedModel:
        """Wait until it can answer, and return what it serves; raises what it raises."""
        ours, theirs = socket.socketpair()
        said, told = multiprocessing.Pipe(duplex=False)
        with theirs, told:
            setup = EngineSetup(
                self._request, self._load, self._shard, self._images.arena.region, theirs, told
            )
            spawning = multiprocessing.get_context("spawn")
            name = f"ramen-engine-{self._shard[0] + 1}"
            process = self._process = spawning.Process(target=run_engine, args=(setup,), name=name)
            with STARTING:
                process.start()
        try:
            model, rules = await asyncio.to_thread(_received, said)
            decoding = await self._images.decoding(rules, model.max_batch)
        except BaseException:
            ours.close()
            process.kill()
            raise
        queue = self._request.engine.max_queue_images, self._request.engine.max_queue_bytes
        pipe, gone = PipeEngine(model, self._images.arena, decoding, queue), asyncio.Event()
        await pipe.connect(ours, lambda: None, gone.set)
        self._pipe = pipe
        self._keeping = asyncio.create_task(self._keep(gone))
        return model

    async def _keep(self, gone: asyncio.Event) -> None:
        """Start the engine again when it has ended."""
        await gone.wait()
        self._pipe, pause = None, 0.0
        number = self._shard[0] + 1
        while self._pipe is None:
            assert self._process is not None
            await asyncio.to_thread(self._process.join)
            code = self._process.exitcode
            _log.error("engine %d has ended with exit code %s; it is started again", number, code)
            await asyncio.sleep(pause)
            pause = min(2 * pause + 0.1, _LONGEST_PAUSE)
            try:
                await self.start()
            except Exception as error:
                _log.error("engine %d cannot be started: %s", number, error)

    async def send(self, operation: Operation[Reply], until: float) -> Reply:
        """Ask it once, if it is there."""
        if self._pipe is None:
            raise StoppingError("the engine has ended, and is being started again")
        return await self._pipe.call(operation)

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """See ``Backend``."""
        return None if self._pipe is None else await self._pipe.refusal(stream, images, nbytes)

    def count_refusal(self) -> None:
        """See ``Backend``."""
        if self._pipe is not None:
            self._pipe.count_refusal()

    async def close(self) -> None:
        """Let it finish what it has accepted, write all states, and end."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._process is None:
            return
        if self._pipe is None:  # it has not begun, or is being started again
            self._process.kill()
        else:
            self._pipe.leave()
        await asyncio.to_thread(self._process.join)
        if self._pipe is not None and self._process.exitcode:
            raise RuntimeError(f"an engine ended with exit code {self._process.exitcode}: see the log")

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self._process is not None:
            self._process.kill()


def _received(said: Connection) -> tuple[ServedModel, PixelRules]:
    with said:
        try:
            outcome = said.recv()
        except EOFError:
            raise ChildProcessError("an engine ended as soon as it was started: see the log") from None
    if isinstance(outcome, Exception):
        raise outcome
    model, rules = outcome
    return model, rules


def serve_on_gpus(request: ServeRequest, announce: Callable[[str], None], gpus: int) -> None:
    """Serve until a signal comes, then finish what was accepted and store what was learned.

    Args:
        request: What to serve. With the device "cpu", all engines are on the CPU.
        announce: Called with the address once images can be answered.
        gpus: How many engines there are.
    """
    request.check()
    devices = devices_for(request.device, gpus)
    with private_files(), bind(request.host, request.port) as bound, ExitStack() as stack:
        log_to_stderr(request.log_format)
        if request.engine.state is None:
            folder = stack.enter_context(closing(TemporaryFolder("ramen-streams-")))
            request = replace(request, engine=replace(request.engine, state=str(folder.path)))
        runner = stack.enter_context(asyncio.Runner(loop_factory=loop_factory()))
        runner.run(_serve_http(request, devices, bound, lambda: announce(url_of(bound))))


def devices_for(device: str | None, gpus: int) -> list[str]:
    """Where each of so many engines computes; ValueError if this machine has fewer GPUs."""
    if device == "cpu":
        return ["cpu"] * gpus
    there = torch.cuda.device_count()
    if device not in (None, "cuda") or gpus > there:
        raise ValueError(
            f"--gpus {gpus} needs as many GPUs, and no --device but cpu, which has all engines on the CPU: "
            f"this machine has {there}, and the device is {device or 'cuda'}"
        )
    return [f"cuda:{number}" for number in range(gpus)]


@asynccontextmanager
async def engines_on(
    devices: Sequence[str], request: ServeRequest, load: Load | None = None
) -> AsyncIterator[Shards]:
    """An engine on each of these devices, which ``close`` of what is returned ends.

    Args:
        devices: Of the engines.
        request: What they serve.
        load: See ``EngineSetup``.
    """
    images = SharedImages(request, len(devices))
    engines = [
        EngineProcess(replace(request, device=device), load, (number, len(devices)), images)
        for number, device in enumerate(devices)
    ]
    try:
        models = await asyncio.gather(*(engine.start() for engine in engines))
        yield Shards(engines, models[0], images.memory_for)
    finally:
        for engine in engines:
            engine.kill()
        await images.close()


async def _serve_http(
    request: ServeRequest,
    devices: Sequence[str],
    bound: socket.socket,
    announce: Callable[[], None],
) -> None:
    async with engines_on(devices, request) as shards:
        server = StoppableServer(create_app(shards, request.http), announce)
        await server.serve([bound])
    if getattr(server.lifespan, "shutdown_failed", False):
        raise StopFailedError("the server stopped, but not everything could be stored: see the log")
