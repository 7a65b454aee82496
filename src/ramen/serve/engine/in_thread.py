"""An engine with an event loop in a thread of its own, for programs that are not asynchronous."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from ramen.client.operations import BY_NAME, SentImage, ServedModel, StoppingError, StreamAnswer
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.scheduler import Request

Value = TypeVar("Value")


class Submitted:
    """A request on its way; ``future`` has its answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine, request: Request) -> None:
        self._loop, self._engine, self._request = loop, engine, request
        self.future: Future[Sequence[StreamAnswer]] = asyncio.run_coroutine_threadsafe(_reply(request), loop)

    def cancel(self) -> None:
        """Drop the images if they still wait."""
        self._loop.call_soon_threadsafe(self._engine.cancel, self._request)


async def _reply(request: Request) -> Sequence[StreamAnswer]:
    return await request.reply


class EngineInThread:
    """Calls an engine from any thread; each operation is a method: ``engine.reset("camera-1")``.

    Args:
        engine: That no loop has called yet.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ramen-engine", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self.engine.model

    def ready(self) -> bool:
        """Whether images can be answered now."""
        return not self._loop.is_closed() and self.engine.ready()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for something that is done on the loop; StoppingError if that has ended."""
        if self._loop.is_closed():
            work.close()
            raise StoppingError("the engine is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def submit(self, stream: str, images: Sequence[SentImage], *, timeout: float | None = None) -> Submitted:
        """Let images wait for their turn; raises at once what refuses them."""
        return Submitted(self._loop, self.engine, self.run(self.engine.submit(stream, images, timeout)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in BY_NAME:
            raise AttributeError(name)
        return lambda *values, **named: self.run(self.engine.call(BY_NAME[name](*values, **named)))

    def close(self) -> None:
        """Finish what was accepted, write all states, and stop; does nothing the second time."""
        if self._thread.is_alive():
            self.run(self.engine.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> "EngineInThread":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
