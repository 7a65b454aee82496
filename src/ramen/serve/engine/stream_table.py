"""All streams of an engine by name, in memory or not."""

import bisect
import logging
import threading

from ramen.serve.engine.errors import BadRequestError, UnknownStreamError
from ramen.serve.engine.stream import Stream
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_places import StreamPlaces

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
        self._streams = {name: Stream(name) for name in sorted(places.names())}
        self._sorted = list(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def known(self, name: str) -> Stream | None:
        """The stream of that name, if it is known without a look at the disk."""
        return self._streams.get(name)

    def find(self, name: str) -> Stream:
        """The stream of that name; UnknownStreamError if there is none."""
        found = self._streams.get(name) or self._stored(name)
        if found is None:
            raise unknown_stream(name)
        return found

    def find_or_add(self, name: str) -> tuple[Stream, bool]:
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
            return self._add(Stream(name, is_new=True)), True

    def _stored(self, name: str) -> Stream | None:
        """A stream that another process has created in the meantime."""
        if self._places.read(name) is None:
            return None
        with self._lock:
            return self._streams.get(name) or self._add(Stream(name))

    def _add(self, stream: Stream) -> Stream:
        self._streams[stream.name] = stream
        bisect.insort(self._sorted, stream.name)
        return stream

    def discard(self, stream: Stream) -> None:
        """Forget a stream."""
        with self._lock:
            stream.gone = True
            if self._streams.get(stream.name) is stream:
                del self._streams[stream.name]
                self._sorted.remove(stream.name)

    def listed(self, after: str, limit: int, prefix: str) -> list[Stream]:
        """Streams by name: at most ``limit`` of those behind ``after`` that begin with ``prefix``."""
        with self._lock:
            start = max(bisect.bisect_right(self._sorted, after), bisect.bisect_left(self._sorted, prefix))
            found = []
            for name in self._sorted[start : start + limit]:
                if not name.startswith(prefix):
                    break
                found.append(self._streams[name])
            return found

    def facts(self, stream: Stream) -> StreamFacts:
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

    def write_facts(self, stream: Stream) -> None:
        """Store what is known of a stream."""
        stream.unwritten = False
        try:
            self._places.write(stream.name, self.facts(stream).to_json())
        except Exception:
            stream.unwritten = True
            raise
