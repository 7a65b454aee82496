"""A handle of a Ray Serve deployment without Ray: what each call is answered with is decided beforehand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any


class FakeResponse:
    """What a call is answered with: a value, an error to raise, or seconds that it takes for ever."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.cancelled = False

    def __await__(self) -> Any:
        return self._get().__await__()

    async def _get(self) -> Any:
        if self.outcome is NEVER:
            await asyncio.Event().wait()
        if isinstance(self.outcome, BaseException) and getattr(self.outcome, "is_raised", True):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


NEVER = object()


def returned(error: Exception) -> Exception:
    """An error that a replica returns as a value."""
    error.is_raised = False  # type: ignore[attr-defined]
    return error


class FakeHandle:
    """Answers calls in the order of a script.

    Args:
        outcomes: Of calls of one replica, in order; the last one is repeated.
        choosing: What happens when a replica is to be chosen: None, an error to raise, or NEVER.
        reports: By method: what the replicas say to a broadcast.

    Attributes:
        sent: Method, stream and arguments of each call.
        places: The replica that each call asked for.
        responses: Of each call.
    """

    def __init__(
        self, outcomes: Sequence[Any] = (), *, choosing: Any = None, reports: dict[str, Any] | None = None
    ) -> None:
        self._outcomes, self._choosing, self._reports = list(outcomes), choosing, reports or {}
        self.sent: list[tuple[Any, ...]] = []
        self.places: list[str | None] = []
        self.responses: list[FakeResponse] = []
        self._options: dict[str, Any] = {}

    def options(self, **options: Any) -> "FakeHandle":
        self._options = options
        return self

    @asynccontextmanager
    async def choose_replica(self, place: str | None) -> AsyncIterator[Any]:
        self.places.append(place)
        if self._choosing is NEVER:
            await asyncio.Event().wait()
        if self._choosing is not None:
            raise self._choosing
        yield SimpleNamespace(replica_id=place)

    def dispatch(self, selection: Any, *arguments: Any) -> FakeResponse:
        self.sent.append((self._options["method_name"], *arguments))
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        self.responses.append(FakeResponse(outcome))
        return self.responses[-1]

    def broadcast(self, method: str, *arguments: Any) -> "FakeBroadcast":
        return FakeBroadcast(self._reports.get(method, []))


class FakeBroadcast:
    """What all replicas say."""

    def __init__(self, said: Any) -> None:
        self._said = said

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert timeout_s > 0
        assert return_exceptions
        if isinstance(self._said, Exception):
            raise self._said
        return list(self._said)
