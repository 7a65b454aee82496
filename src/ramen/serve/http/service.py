"""What all endpoints share: who answers, limits, who may come in, counts; and what is noted of a request."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from ramen.client.operations import IsReady, Operation, Reply, ServedModel, ServerError
from ramen.serve.http.auth import AccessRules, TokenRecord
from ramen.serve.http.errors import ApiError, from_engine
from ramen.serve.http.metrics import RequestFigures, ServiceMetrics
from ramen.serve.http.protocol import CONNECTION, MemoryFor
from ramen.serve.settings import HttpSettings
from ramen.utils.checks import readable_bytes

T = TypeVar("T")
_FACTS = "ramen.request"  # in the scope of a request
_RETRY_AFTER = 1.0  # seconds
_SHARE = 2  # of the room that is left, which the bodies of one token or stream may take


class Backend(Protocol):
    """An engine that is called without waiting; errors are those of ``ramen.client.operations``."""

    @property
    def model(self) -> ServedModel:
        """What is served."""

    async def call(self, operation: Operation[Reply]) -> Reply:
        """Do something; if the caller is cancelled, images that still wait are dropped."""

    async def refusal(self, stream: str, images: int, nbytes: int) -> ServerError | None:
        """Why so much would be refused now, known at once; None if the engine has to be asked.

        Args:
            stream: The stream that the images belong to.
            images: How many there are, at least.
            nbytes: Likewise their bytes.
        """

    def count_refusal(self) -> None:
        """A request was refused because of what ``refusal`` says."""

    def memory_for(self, length: int) -> memoryview | None:
        """Memory for a large body, in which the engine finds its images; None for that of this process.

        Args:
            length: In bytes.
        """

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """What all workers of the backend have counted of requests.

        Args:
            own: What the caller has counted.
        """

    async def close(self) -> None:
        """Finish what was accepted, write all states, and stop."""


@dataclass
class RequestFacts:
    """What is noted about a request while it is answered, for its log line and the metrics.

    Attributes:
        id: Names it in the log and in the response.
        started: When it came, on the monotonic clock.
        route: The template of its path; never the path itself, which anybody can make up.
        caller: Name of its token.
        stream: The stream that it is about.
        images: How many images came with it.
        nbytes: How many bytes of its body were read.
        body_is_timed: Whether somebody limits the time in which the whole body must arrive.
    """

    id: str
    started: float = field(default_factory=time.monotonic)
    route: str = "none"
    caller: str | None = None
    stream: str | None = None
    images: int = 0
    nbytes: int = 0
    body_is_timed: bool = False

    def attach(self, scope: Any) -> None:
        """Put it where ``facts_of`` finds it."""
        scope[_FACTS] = self


def facts_of(request: Request) -> RequestFacts:
    """What is noted about a request."""
    facts: RequestFacts = request.scope[_FACTS]
    return facts


class BodyBudget:
    """Bytes of all bodies that are in memory at a time: those that have come, not those that are announced.

    Nobody takes all of it: the bodies of one token, or of one stream, may have twice as many bytes as are
    left for others. So one alone stops at two thirds, and a newcomer always finds room.

    Args:
        limit: The most that there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._by_party: Counter[str] = Counter()
        self._lent = 0

    def check(self, nbytes: int, own: int, parties: Sequence[str]) -> None:
        """429 if more bytes of a body do not fit.

        Args:
            nbytes: How many more.
            own: How many of the body are counted already.
            parties: Whose body it is.
        """
        left = self.limit - self.taken
        crowded = nbytes > left
        for party in parties:
            others = self._by_party[party] - own
            crowded = crowded or (others > 0 and others + own + nbytes > _SHARE * left)
        if crowded:
            raise ApiError(
                429,
                "overloaded",
                f"the requests that are being read take {readable_bytes(self.taken)} of "
                f"{readable_bytes(self.limit)}",
                retry_after=_RETRY_AFTER,
            )

    def add(self, nbytes: int, parties: Sequence[str]) -> None:
        """Count bytes of a body, or no longer if they are negative."""
        self.taken += nbytes
        for party in parties:
            self._by_party[party] += nbytes
            if not self._by_party[party]:
                del self._by_party[party]

    @contextmanager
    def lending(self, length: int, memory_for: MemoryFor) -> Iterator[MemoryFor | None]:
        """What gives memory for a body that has yet to come; None if too much is reserved already.

        It is reserved before the bytes are there, so it may be half of all: whoever announces bodies and does
        not send them leaves the other half to bodies that come, in pieces.

        Args:
            length: Of the body.
            memory_for: Gives memory of some length.
        """
        if 2 * (self._lent + length) > self.limit:
            yield None
            return
        self._lent += length
        try:
            yield memory_for
        finally:
            self._lent -= length


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

    def authorize(self, request: Request, scopes: Sequence[str], stream: str | None = None) -> TokenRecord:
        """Who asks; 401 or 403 unless they may.

        Args:
            request: The request.
            scopes: A token needs one of these; any token will do if there are none.
            stream: The stream that it is about.
        """
        facts = facts_of(request)
        caller = self.access.caller(request.headers)
        facts.caller = caller.name
        connection = request.scope.get(CONNECTION)
        if connection is not None:
            connection.known = True
        if not caller.may(scopes):
            raise ApiError(403, "scope", f"the token needs the scope {' or '.join(scopes)}")
        if stream is not None:
            self.check_stream(request, caller, stream)
        request.state.caller = caller
        return caller

    def check_stream(self, request: Request, caller: TokenRecord, stream: str) -> None:
        """403 unless a caller may use a stream."""
        facts_of(request).stream = stream[:64]
        if not caller.sees(stream):
            raise ApiError(403, "stream", "the token is not valid for this stream")

    async def check_ready(self) -> None:
        """503 while images cannot be answered."""
        if self.stopping.is_set():
            raise ApiError(503, "stopping", "the server is being stopped", retry_after=1.0)
        if not await self.backend.call(IsReady()):
            raise ApiError(503, "not_ready", "the server is not ready", retry_after=1.0)

    def deadline(self, request: Request, timeout_ms: int | None) -> float:
        """Until when a request must be answered, on the monotonic clock."""
        timeout_ms = self.settings.default_timeout_ms if timeout_ms is None else timeout_ms
        return facts_of(request).started + timeout_ms / 1000


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
    except ServerError as error:
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


def client_gone() -> ApiError:
    """For the log alone: nobody is there to read the response."""
    return ApiError(499, "client_gone", "the client went away")
