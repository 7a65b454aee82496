"""What all routes share: the backend, limits, who may come in, figures, and whether it is stopping."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from ramen.serve.engine.errors import EngineError
from ramen.serve.http.access import AccessRules
from ramen.serve.http.backend import Backend
from ramen.serve.http.bodies import BodyBudget, client_gone
from ramen.serve.http.errors import ApiError, from_engine
from ramen.serve.http.metrics import ServiceMetrics
from ramen.serve.http.request_figures import RequestFigures
from ramen.serve.http.settings import HttpSettings

T = TypeVar("T")


class Service:
    """One application.

    Args:
        backend: Who answers.
        settings: The limits.
    """

    def __init__(self, backend: Backend, settings: HttpSettings) -> None:
        self.backend = backend
        self.settings = settings
        self.access = AccessRules(settings.tokens)
        self.bodies = BodyBudget(settings.max_bodies_bytes)
        self.figures = RequestFigures()
        self.metrics = ServiceMetrics(backend.model)
        self.stopping = asyncio.Event()

    async def check_ready(self) -> None:
        """503 while images cannot be answered."""
        if self.stopping.is_set():
            raise ApiError(503, "stopping", "the server is being stopped", retry_after=1.0)
        if not await self.backend.ready():
            raise ApiError(503, "not_ready", "the server is not ready", retry_after=1.0)

    def deadline(self, started: float, timeout_ms: int | None) -> float:
        """Until when a request must be answered, on the monotonic clock."""
        return started + (self.settings.default_timeout_ms if timeout_ms is None else timeout_ms) / 1000


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled if the client goes away meanwhile.

    Args:
        request: The request; its body has been read.
        work: What it asked for.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_gone()
        return task.result()
    except EngineError as error:
        raise from_engine(error) from error
    finally:
        for other in (task, watcher):
            other.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def remaining(deadline: float) -> float:
    """Seconds until a deadline; a 504 if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ApiError(504, "deadline", "the request was not answered in time")
    return left
