"""All streams of an engine by name, in memory or not."""

import bisect
import logging
import threading
import time

from ramen.serve.engine.errors import BadRequestError, UnknownStreamError
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_places import StreamPlaces

_LOOK_EVERY = 1.0  # seconds
_log = logging.getLogger("ramen")


def unknown_stream(name: str) -> UnknownStreamError:
    """What whoever asks for a stream gets that does not exist."""
    return UnknownStreamError(f"there is no stream {name!r}")


class StreamTable:
    """Finds streams and makes new ones. What is known of a stream is read when somebody asks.

    Args:
        places: Where streams are stored.
        max_streams: The most that there may be.
    """

    def __init__(self, places: StreamPlaces, max_streams: int) -> None:
        self._places, self._max_streams = places, max_streams
        self._lock = threading.RLock()
        self._streams = {name: ServedStream(name) for name in sorted(places.names())}
        self._sorted = list(self._streams)
        self._looked = time.monotonic()

    def __len__(self) -> int:
        return len(self._streams)

    def known(self, name: str) -> ServedStream | None:
        """The stream of that name, if it is known without a look at the disk."""
        return self._streams.get(name)

    def find(self, name: str) -> ServedStream:
        """The stream of that name; UnknownStreamError if there is none."""
        found = self._streams.get(name) or self._stored(name)
        if found is None:
            raise unknown_stream(name)
        return found

    def find_or_add(self, name: str) -> tuple[ServedStream, bool]:
        """The stream of that name, and whether it is new."""
        found = self._streams.get(name) or self._stored(name)
        if found is not None:
            return found, False
        with self._lock:
            found = self._streams.get(name)
            if found is not None:
                return found, False
            if len(self._streams) >= self._max_streams:
                raise BadRequestError(
                    f"there are {len(self._streams)} streams already, which is the most: delete one first"
                )
            return self._add(ServedStream(name, is_new=True)), True

    def _stored(self, name: str) -> ServedStream | None:
        """A stream that another process has created in the meantime."""
        if self._places.read(name) is None:
            return None
        with self._lock:
            return self._streams.get(name) or self._add(ServedStream(name))

    def _add(self, stream: ServedStream) -> ServedStream:
        self._streams[stream.name] = stream
        bisect.insort(self._sorted, stream.name)
        return stream

    def discard(self, stream: ServedStream) -> None:
        """Forget a stream."""
        with self._lock:
            stream.gone = True
            if self._streams.get(stream.name) is stream:
                del self._streams[stream.name]
                self._sorted.remove(stream.name)

    def listed(self, after: str, limit: int, prefix: str) -> list[ServedStream]:
        """Streams by name: at most ``limit`` of those behind ``after`` that begin with ``prefix``."""
        self._look_again()
        with self._lock:
            start = max(bisect.bisect_right(self._sorted, after), bisect.bisect_left(self._sorted, prefix))
            found = []
            for name in self._sorted[start : start + limit]:
                if not name.startswith(prefix):
                    break
                found.append(self._streams[name])
            return found

    def _look_again(self) -> None:
        """Learn of streams that other processes have created or deleted."""
        now = time.monotonic()
        if not self._places.shared or now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        stored = set(self._places.names())
        with self._lock:
            for name in stored - self._streams.keys():
                self._add(ServedStream(name))
            for name in self._streams.keys() - stored:
                stream = self._streams[name]
                if stream.resident is None and not stream.is_new:
                    self.discard(stream)

    def facts(self, stream: ServedStream) -> StreamFacts:
        """What is known of a stream."""
        facts = stream.facts
        if facts is None:
            facts = self.stored_facts(stream.name) or StreamFacts()
            stream.set_facts(facts)
        return facts

    def stored_facts(self, name: str) -> StreamFacts | None:
        """What is stored of a stream; None if that is nothing, or damaged, which is logged."""
        content = self._places.read(name)
        if content is None:
            return None
        try:
            return StreamFacts.from_json(content)
        except ValueError as error:
            _log.warning("stream %s: %s; its counts start again", name, error)
            return None

    def write_facts(self, stream: ServedStream) -> None:
        """Store what is known of a stream."""
        stream.unwritten = False
        facts = self.facts(stream)
        try:
            # without classes of its own, a stream is only its counts
            self._places.write(stream.name, facts.to_json(), durable=facts.classes is not None)
        except Exception:
            stream.unwritten = True
            raise
