"""Ctrl-C and SIGTERM as requests: the first one asks to stop soon, the second one stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


class StoppedError(KeyboardInterrupt):
    """Work was stopped on request; commands end with its exit code, as of ``StopRequest``."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


@dataclass
class StopRequest:
    """Whether somebody asked to stop."""

    event: threading.Event = field(default_factory=threading.Event)  # set as soon as somebody did
    signal: int | None = None  # the number of the signal that asked

    @property
    def requested(self) -> bool:
        return self.event.is_set()

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal stopped: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or 0)


def _interrupt(number: int) -> None:
    raise KeyboardInterrupt


@contextmanager
def stop_on_signals(
    announce: Callable[[], object], again: Callable[[int], None] = _interrupt
) -> Iterator[StopRequest]:
    """A block in which signals are requests.

    Args:
        announce: Called at the first one.
        again: Called with the number of each further one; by default, it raises a KeyboardInterrupt.
    """
    request = StopRequest()

    def receive(number: int, frame: FrameType | None) -> None:
        if request.requested:
            again(number)
            return
        request.signal = number
        request.event.set()
        announce()

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield request
        return
    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
