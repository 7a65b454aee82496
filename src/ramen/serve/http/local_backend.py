"""An engine of this process, for a front that must not wait."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from ramen.serve.engine.answers import SentImage, StreamAnswer
from ramen.serve.engine.engine import Engine
from ramen.serve.engine.errors import EngineError
from ramen.serve.engine.stream_info import EngineStatistics, FeedbackCounts, StreamActivity, StreamInfo
from ramen.serve.engine.ticket import Ticket
from ramen.serve.http.backend import ServedModel
from ramen.serve.http.request_figures import RequestFigures

_Value = TypeVar("_Value")
_Answers = asyncio.Future[list[StreamAnswer]]


class LocalBackend:
    """Calls an engine from an event loop; what may take time is done in threads.

    Args:
        engine: Closed by ``close``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self._engine.model

    async def ready(self) -> bool:
        """Whether images can be answered now."""
        return self._engine.ready()

    async def refusal(self, stream: str, images: int, nbytes: int) -> EngineError | None:
        """Why so much would be refused now; None if ``classify`` has to be asked."""
        return self._engine.refusal(stream, images, nbytes)

    def waiting(self) -> tuple[int, int]:
        """Images that wait or are being answered, and their bytes."""
        return self._engine.waiting()

    def count_refusal(self) -> None:
        """A request was refused because of what ``refusal`` says."""
        self._engine.count_refusal()

    def memory_for(self, length: int) -> memoryview | None:
        """Memory of this process will do."""
        return None

    async def classify(
        self, stream: str, images: Sequence[SentImage], *, timeout: float | None = None
    ) -> list[StreamAnswer]:
        """One answer per image, in order; if the caller is cancelled, images that still wait are dropped."""
        if self._engine.is_resident(stream):
            ticket = self._engine.submit(stream, images, timeout=timeout)
        else:
            ticket = await self._submit_in_a_thread(stream, images, timeout)
        answers = asyncio.wrap_future(ticket.future)
        try:
            # shielded: the answers may be on their way when the time is up
            return await asyncio.wait_for(asyncio.shield(answers), timeout)
        except TimeoutError:
            ticket.expire()  # unless it is being answered
            return await self._last_wait(ticket, answers)
        except asyncio.CancelledError:
            _abandon(ticket, answers)
            raise

    async def _submit_in_a_thread(
        self, stream: str, images: Sequence[SentImage], timeout: float | None
    ) -> Ticket:
        submitting = asyncio.ensure_future(
            asyncio.to_thread(lambda: self._engine.submit(stream, images, timeout=timeout))
        )
        try:
            return await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_cancel_submitted)
            raise

    async def _last_wait(self, ticket: Ticket, answers: _Answers) -> list[StreamAnswer]:
        try:
            return await asyncio.shield(answers)
        except asyncio.CancelledError:
            _abandon(ticket, answers)
            raise

    async def create_stream(
        self, stream: str, classes: Sequence[str] | None = None
    ) -> tuple[StreamInfo, bool]:
        """Create a stream unless it exists with these classes; also whether it is new."""
        return await _in_a_thread(lambda: self._engine.create_stream(stream, classes))

    async def streams(self, *, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        """Streams by name, those behind ``after``."""
        return await _in_a_thread(lambda: self._engine.streams(after=after, limit=limit, prefix=prefix))

    async def stream(self, stream: str) -> StreamInfo:
        """One stream."""
        return await _in_a_thread(lambda: self._engine.stream(stream))

    async def activity(self, stream: str) -> StreamActivity:
        """What happened in a stream lately."""
        return await _in_a_thread(lambda: self._engine.activity(stream))

    async def reset(self, stream: str) -> StreamInfo:
        """Forget what was learned."""
        return await _in_a_thread(lambda: self._engine.reset(stream))

    async def snapshot(self, stream: str) -> StreamInfo:
        """Return when everything that was learned is on disk."""
        return await _in_a_thread(lambda: self._engine.snapshot(stream))

    async def delete(self, stream: str) -> None:
        """Forget the stream and remove its state."""
        await _in_a_thread(lambda: self._engine.delete(stream))

    async def set_classes(self, stream: str, classes: Sequence[str]) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        return await _in_a_thread(lambda: self._engine.set_classes(stream, classes))

    async def feedback(self, stream: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts:
        """Take true labels, as pairs of an answer's id and a class; returns the stream's counts."""
        return await _in_a_thread(lambda: self._engine.feedback(stream, labels))

    async def figures(self, own: RequestFigures) -> RequestFigures:
        """Those of this front alone."""
        return own

    async def statistics(self) -> EngineStatistics:
        """The whole engine."""
        return await _in_a_thread(self._engine.statistics)

    async def close(self) -> None:
        """Finish what was accepted, write all states, and stop."""
        await _in_a_thread(self._engine.close)


async def _in_a_thread(work: Callable[[], _Value]) -> _Value:
    return await asyncio.to_thread(work)


def _abandon(ticket: Ticket, answers: _Answers) -> None:
    """Nobody waits for these answers any more."""
    ticket.cancel()
    answers.add_done_callback(_look_at)


def _look_at(answers: _Answers) -> None:
    if not answers.cancelled():
        answers.exception()  # otherwise asyncio logs that nobody has asked for it


def _cancel_submitted(submitting: "asyncio.Future[Ticket]") -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
