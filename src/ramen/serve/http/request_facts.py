"""What is noted about a request while it is answered, for its log line and the metrics."""

import time
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Scope

_KEY = "ramen.request"


@dataclass
class RequestFacts:
    """One request.

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

    def attach(self, scope: Scope) -> None:
        """Put it where ``facts_of`` finds it."""
        scope[_KEY] = self


def facts_of(request: Request) -> RequestFacts:
    """What is noted about a request."""
    facts: RequestFacts = request.scope[_KEY]
    return facts
