import asyncio
import faulthandler
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ramen import testing
from ramen.client.operations import Operation, Reply
from ramen.serve.engine.state_folder import shard_of
from ramen.serve.engine_processes import engines_on
from ramen.serve.shards import Shards
from tests.helpers.calls import does
from tests.helpers.ray_machine import SETTINGS, ray_machine, run_application, small_request
from tests.serve.engine.engines import loop_engine

PATIENCE = 600  # seconds; only a failure takes so long, on whatever machine
_DEADLOCK = 1200  # seconds
Value = TypeVar("Value")


@dataclass
class Served:
    """A service of the small classifier, however it is run.

    Attributes:
        backend: What the HTTP application asks.
        engines: How many it has.
        state: Its folder.
        run: Waits for something on the loop of the service.
    """

    backend: Any
    engines: int
    state: Path
    run: Callable[[Awaitable[Any]], Any]

    def do(self, name: str, *values: Any, **named: Any) -> Any:
        """The reply to an operation."""
        return self.run(getattr(does(self.backend), name)(*values, **named))

    def call(self, operation: Operation[Reply]) -> Reply:
        """The reply to an operation."""
        reply: Reply = self.run(self.backend.call(operation))
        return reply

    def folder(self, stream: str) -> Path:
        """Where a stream is stored."""
        if self.engines == 1:
            return self.state / "streams" / stream
        number = shard_of(stream, self.engines) + 1
        return self.state / "shards" / f"{number}-of-{self.engines}" / "streams" / stream


@pytest.fixture(scope="package")
def proxy_port() -> Iterator[int]:
    """Ray with its HTTP proxy."""
    pytest.importorskip("ray", reason="need ray: pip install 'ramen-tta[ray]'")
    with ray_machine() as port:
        yield port


@asynccontextmanager
async def _local(state: Path) -> AsyncIterator[Any]:
    engine = loop_engine(testing.small_classifier(), **{**SETTINGS, "state": str(state)})
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def _in_processes(state: Path) -> AsyncIterator[Any]:
    async with engines_on(["cpu", "cpu"], small_request(state), testing.small_classifier) as shards:
        try:
            yield shards
        finally:
            await shards.close()


@asynccontextmanager
async def _on_ray(state: Path) -> AsyncIterator[Any]:
    yield await Shards.connect(run_application(small_request(state)))


_SERVICES = {"local": (_local, 1), "gpus": (_in_processes, 2), "ray": (_on_ray, 2)}


@pytest.fixture(scope="package", params=_SERVICES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on one engine of this process, and on two elsewhere."""
    if request.param == "ray":
        request.getfixturevalue("proxy_port")
    state = tmp_path_factory.mktemp(request.param)
    open_service, engines = _SERVICES[request.param]
    with asyncio.Runner() as runner:

        def run(work: Awaitable[Value]) -> Value:
            return runner.run(_in_time(work))

        service = open_service(state)
        yield Served(runner.run(service.__aenter__()), engines, state, run)
        runner.run(service.__aexit__(None, None, None))


async def _in_time(work: Awaitable[Value]) -> Value:
    return await asyncio.wait_for(work, PATIENCE)


@pytest.fixture(autouse=True)
def deadlocks_are_seen() -> Iterator[None]:
    faulthandler.dump_traceback_later(_DEADLOCK, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
