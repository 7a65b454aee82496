"""Writes in the background what streams have learned that pause now."""

import threading
import time

from ramen.serve.batch_answers import FailureLog
from ramen.serve.engine.residency import Residency
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.waiting_room import WaitingRoom

_PAUSE = 0.2  # seconds between two looks
_FACTS_EVERY = 10.0  # seconds


class Keeper:
    """A thread that calls the stores of streams that nobody uses.

    Args:
        room: Says who may use a stream.
        residency: Writes.
        failures: Where errors are logged.
    """

    def __init__(self, room: WaitingRoom, residency: Residency, failures: FailureLog) -> None:
        self._room, self._residency, self._failures = room, residency, failures
        self._lock = threading.Lock()
        self._changed: dict[ServedStream, float] = {}  # not all on disk; since when its facts are not
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ramen-keeper", daemon=True)
        self._thread.start()

    def watch(self, stream: ServedStream) -> None:
        """Something of a stream is to be written."""
        with self._lock:
            self._changed.setdefault(stream, time.monotonic())

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE):
            with self._lock:
                changed = list(self._changed.items())
            for stream, since in changed:
                if self._room.try_hold(stream):
                    try:
                        self._keep_up(stream, since)
                    except Exception as error:  # no memory for a copy, say: the next look tries again
                        self._failures.add("what a stream has learned could not be written", error)
                    finally:
                        self._room.release(stream)

    def _keep_up(self, stream: ServedStream, since: float) -> None:
        resident = stream.resident
        is_written = resident is None or resident.store is None or resident.store.keep_up()
        if stream.unwritten and not stream.gone and time.monotonic() - since >= _FACTS_EVERY:
            self._residency.write_facts(stream)
            since = time.monotonic()
        with self._lock:
            if stream.gone or (is_written and not stream.unwritten):
                self._changed.pop(stream, None)
            else:
                self._changed[stream] = since

    def close(self) -> None:
        """End; whatever is left is written when streams are closed."""
        self._ended.set()
        self._thread.join()
