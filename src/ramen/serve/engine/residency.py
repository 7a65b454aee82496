"""Which streams are in memory: they come from the disk when they are needed, and go back when others are.

Streams are opened by threads of their own, so that those that are in memory are answered meanwhile. Before a
stream is opened, room is made for it: the least recently used streams for which nothing waits are put to
disk; if there are none, those that had their turn.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ramen.serve.batch_answers import FailureLog
from ramen.serve.engine.errors import EngineError, StreamElsewhereError
from ramen.serve.engine.served_stream import Resident, ServedStream
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_methods import StreamMethods
from ramen.serve.engine.stream_opening import StreamOpening
from ramen.serve.engine.stream_places import StreamPlaces
from ramen.serve.engine.stream_table import StreamTable, unknown_stream
from ramen.serve.engine.waiting_room import WaitingRoom

_OPENERS = 4  # threads that open streams
_WRITERS = 4  # threads that write states
_LONGEST_PAUSE = 0.1  # seconds between looks for a stream that can be put to disk
_ATTEMPTS = 3  # to open a stream that another process is changing

_log = logging.getLogger("ramen")


class Residency:
    """Opens streams and puts them to disk.

    Args:
        settings: How much streams may take.
        room: Says who may use a stream, and what waits for it.
        table: All streams.
        places: Where they are stored.
        methods: Creates a stream's method.
        failures: Where errors are logged.

    Attributes:
        bytes: What the memories of all streams take that are in memory.
        parked: How many times a stream was put to disk.
    """

    def __init__(
        self,
        settings: EngineSettings,
        room: WaitingRoom,
        table: StreamTable,
        places: StreamPlaces,
        methods: StreamMethods,
        failures: FailureLog,
    ) -> None:
        self._settings, self._room, self._table = settings, room, table
        self._places, self._methods, self._failures = places, methods, failures
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="ramen-store")
        self._opening = StreamOpening(settings, table, places, self._writers, failures, self._failed)
        self._lock = threading.RLock()
        self._residents: OrderedDict[ServedStream, None] = OrderedDict()  # the least recently used one first
        self._requested: set[ServedStream] = set()  # to be opened
        self._reserved: list[int] = []  # bytes for streams that are being opened
        self._openers = ThreadPoolExecutor(_OPENERS, thread_name_prefix="ramen-opening")
        self._failures_before = 0  # of stores that are closed, and without a store
        self.bytes = self.parked = 0

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def store_failures(self) -> int:
        """How many times something could not be written or read."""
        with self._lock:
            residents = [stream.resident for stream in self._residents]
            stores = [one.store for one in residents if one is not None and one.store is not None]
            return self._failures_before + sum(store.failures for store in stores)

    # -- into memory --------------------------------------------------------------------------------

    def request(self, stream: ServedStream) -> None:
        """Open a stream in due course; if that fails, its tickets get the error."""
        with self._lock:
            if stream in self._requested:
                return
            self._requested.add(stream)
        self._openers.submit(self._open_requested, stream)

    def _open_requested(self, stream: ServedStream) -> None:
        try:
            with self._room.held(stream):
                with self._lock:
                    self._requested.discard(stream)
                self.open(stream)
        except EngineError as error:
            self._room.withdraw_all(stream, error)
        except Exception as error:
            self._failures.add("a stream could not be opened", error)
            self._room.withdraw_all(stream, EngineError(f"stream {stream.name!r} cannot be opened"))

    def open(self, stream: ServedStream) -> Resident:
        """Bring a stream into memory unless it is there; called by whoever holds it."""
        if stream.gone:
            raise unknown_stream(stream.name)
        if stream.resident is not None:
            return stream.resident
        for _ in range(_ATTEMPTS):
            facts = self._opening.current_facts(stream)
            method = self._methods.create(facts.classes)
            with self._room_for(max(facts.memory_bytes, method.allocated_bytes())):
                store = self._opening.open_store(stream, method)
            if store is None or not self._opening.has_other_classes(stream, facts):
                resident = self._opening.resident(stream, facts, method, store)
                self._enter(stream, resident)
                return resident
            store.close()
        raise StreamElsewhereError(f"another process is changing stream {stream.name!r}")

    def _enter(self, stream: ServedStream, resident: Resident) -> None:
        with self._lock:
            stream.resident = resident
            self._residents[stream] = None
            self.bytes += resident.bytes
        self._room.stream_opened()
        self.trim()

    def current_facts(self, stream: ServedStream) -> StreamFacts:
        """What is known of a stream now; called by whoever holds it."""
        return self._opening.current_facts(stream)

    # -- room ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _room_for(self, needed: int) -> Iterator[None]:
        """A block with so many bytes reserved; waits until other streams have been put to disk."""
        while not self._reserve(needed):
            if not self._park_one(also_waiting=True):
                self._room.wait_for_change(_LONGEST_PAUSE)
        try:
            yield
        finally:
            with self._lock:
                self._reserved.remove(needed)

    def _reserve(self, needed: int) -> bool:
        with self._lock:
            alone = not self._residents and not self._reserved
            if not alone and self._exceeds(needed, 1):
                return False
            self._reserved.append(needed)
            return True

    def _exceeds(self, more_bytes: int = 0, more_streams: int = 0) -> bool:
        """Whether all streams, and so much more, take more than they may."""
        taken = self.bytes + sum(self._reserved) + more_bytes
        count = len(self._residents) + len(self._reserved) + more_streams
        return taken > self._settings.streams_budget or count > self._places.most_open

    def trim(self, answered: Iterable[ServedStream] = ()) -> None:
        """Put streams to disk that nobody needs now, as long as all together take too much.

        Args:
            answered: Streams of a batch that has just been answered, which may go too if all others wait for
                their turn.
        """
        while self._exceeds() and self._park_one(also_waiting=False):
            pass
        for stream in answered:
            if len(self) > 1 and self._exceeds() and self._hold_resident(stream):
                self._park_and_release(stream)

    def _request_if_needed(self, stream: ServedStream) -> None:
        if self._room.has_tickets(stream):
            self.request(stream)

    def _park_one(self, *, also_waiting: bool) -> bool:
        stream = self._hold_victim(also_waiting)
        if stream is None:
            return False
        self._park_and_release(stream)
        return True

    def _park_and_release(self, stream: ServedStream) -> None:
        try:
            self.park(stream)
        finally:
            self._room.release(stream)
        self._request_if_needed(stream)

    def _hold_victim(self, also_waiting: bool) -> ServedStream | None:
        """The least recently used stream that is idle; or one that has had its turn, though more waits."""
        with self._lock:
            streams = list(self._residents)
        for stream in streams:
            if not self._room.has_tickets(stream) and self._hold_resident(stream):
                return stream
        for stream in streams if also_waiting else ():
            resident = stream.resident
            if resident is not None and resident.served and self._hold_resident(stream):
                return stream
        return None

    def _hold_resident(self, stream: ServedStream) -> bool:
        if not self._room.try_hold(stream):
            return False
        if stream.resident is None:
            self._room.release(stream)
            return False
        return True

    # -- out of memory ------------------------------------------------------------------------------

    def park(self, stream: ServedStream) -> None:
        """Put a stream to disk; called by whoever holds it."""
        resident = stream.resident
        if resident is None:
            return
        size = resident.bytes
        stream.update(lambda facts: replace(facts, memory_bytes=size))
        self.write_facts(stream)
        self.leave(stream)
        self.parked += 1

    def leave(self, stream: ServedStream) -> None:
        """Close the store of a stream and drop its method; called by whoever holds it."""
        resident = stream.resident
        if resident is None:
            return
        if resident.store is not None:
            resident.store.close()
        with self._lock:
            stream.resident = None
            self._residents.pop(stream, None)
            self.bytes -= resident.bytes
            self._failures_before += 0 if resident.store is None else resident.store.failures

    def remove(self, stream: ServedStream) -> None:
        """Delete a stream; called by whoever holds it."""
        self.leave(stream)
        self._places.remove(stream.name)
        self._table.discard(stream)

    def replace_state(self, stream: ServedStream, classes: tuple[str, ...] | None) -> None:
        """Forget what a stream has learned, for other classes; called by whoever holds it."""
        self.leave(stream)
        self._places.remove_state(stream.name)
        stream.update(lambda facts: replace(facts.forgotten(), classes=classes))
        self._table.write_facts(stream)

    def write_facts(self, stream: ServedStream) -> None:
        """Store what is known of a stream; if that fails, it is tried again later."""
        try:
            self._table.write_facts(stream)
        except Exception as error:
            self._failed("what is known of a stream could not be written", error)

    def _failed(self, what: str, error: Exception) -> None:
        with self._lock:
            self._failures_before += 1
        self._failures.add(what, error)

    # -- while they are in memory -------------------------------------------------------------------

    def used(self, streams: Iterable[ServedStream]) -> None:
        """These were answered just now, and may have grown."""
        with self._lock:
            for stream in streams:
                resident = stream.resident
                if resident is None:
                    continue
                size = resident.method.allocated_bytes()
                self.bytes += size - resident.bytes
                resident.bytes, resident.served, resident.last_batch = size, True, time.monotonic()
                self._residents.move_to_end(stream)
        self.trim()

    def close(self) -> None:
        """Put all streams to disk."""
        self._openers.shutdown()
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="ramen-closing") as threads:
            list(threads.map(self._park_held, list(self._residents)))
        self._writers.shutdown()

    def _park_held(self, stream: ServedStream) -> None:
        with self._room.held(stream):
            self.park(stream)
