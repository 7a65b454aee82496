"""When a request is sent again, and after how long."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ramen.serve.client.errors import ServerError
from ramen.utils import checks

_FIRST, _LONGEST = 0.1, 5.0  # seconds between attempts, if the service does not say
_MOST_TIMES = 4  # as long as the service says
_JITTER = 0.25  # so that clients that were refused together do not come back together


@dataclass(frozen=True)
class RetrySettings:
    """How often to try.

    Attributes:
        retries: The most times that a request is sent again.
        retry_seconds: No request is sent again later than this after it was first sent.
        resend_uncertain: Also send again what the service may have carried out.
    """

    retries: int
    retry_seconds: float
    resend_uncertain: bool = False

    def __post_init__(self) -> None:
        checks.integer("retries", self.retries, 0)
        checks.number("retry_seconds", self.retry_seconds, 0)
        checks.flag("resend_uncertain", self.resend_uncertain)


class Attempts:
    """The attempts of one request.

    Args:
        settings: How often to try.
        repeatable: Whether carrying out the request twice does no harm.
        clock: The time in seconds.
        draw: A random number from 0 to 1.
    """

    def __init__(
        self,
        settings: RetrySettings,
        repeatable: bool,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._repeatable = settings, repeatable
        self._clock, self._draw = clock, draw
        self._end = clock() + settings.retry_seconds
        self._failed = 0

    def delay_after(self, error: ServerError) -> float:
        """Seconds until the next attempt; raises the error if there is to be none."""
        safe = error.nothing_done or self._repeatable or self._settings.resend_uncertain
        if not (error.temporary and safe) or self._failed >= self._settings.retries:
            raise error
        delay = min(_LONGEST, _FIRST * 2.0**self._failed)
        if error.retry_after is not None:  # the service knows better, but it may be wrong for many clients
            delay = max(error.retry_after, min(delay, _MOST_TIMES * error.retry_after))
        delay *= 1 + _JITTER * self._draw()
        self._failed += 1
        if self._clock() + delay > self._end:
            raise error
        return delay
