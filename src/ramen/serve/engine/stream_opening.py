"""How a stream comes from the disk: its facts, a method for its classes, and the state that it takes over."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

from ramen.methods import Method
from ramen.methods._saved_state import ForeignStateError
from ramen.serve.batch_answers import BatchAnswers, FailureLog
from ramen.serve.engine.activity import RecentAnswers
from ramen.serve.engine.errors import BadRequestError, StreamElsewhereError
from ramen.serve.engine.served_stream import Resident, ServedStream
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_places import StreamPlaces
from ramen.serve.engine.stream_table import StreamTable
from ramen.serve.store import StateStore, open_store
from ramen.utils.file_locks import LockedError


class StreamOpening:
    """Opens the store of a stream; called by whoever holds the stream.

    Args:
        settings: When states are written, and what is kept beside them.
        table: Reads and writes facts.
        places: Where streams are stored.
        writers: Threads that write states.
        failures: Where errors of the methods are logged.
        failed: Called with what failed, and the error, if a stream is used without its state.
    """

    def __init__(
        self,
        settings: EngineSettings,
        table: StreamTable,
        places: StreamPlaces,
        writers: Executor,
        failures: FailureLog,
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._settings, self._table, self._places = settings, table, places
        self._writers, self._failures, self._failed = writers, failures, failed

    def current_facts(self, stream: ServedStream) -> StreamFacts:
        """What is stored, which another process may have changed, unless it is older than what is known."""
        if stream.is_new or stream.unwritten or stream.facts is None:
            return self._table.facts(stream)
        facts = self._table.stored_facts(stream.name) or stream.facts
        stream.set_facts(facts)
        return facts

    def has_other_classes(self, stream: ServedStream, facts: StreamFacts) -> bool:
        """Whether another process has set other classes before it left the store to this one."""
        stored = self._table.stored_facts(stream.name)
        if stored is None or stored.classes == facts.classes:
            return False
        stream.set_facts(stored)
        return True

    def open_store(self, stream: ServedStream, method: Method) -> StateStore | None:
        """The store of a stream, whose state the method has taken over; None if the disk cannot be used.

        Raises:
            StreamElsewhereError: Another process uses the store.
            BadRequestError: The state is of another model or method; it stays as it is.
        """
        location, every = self._places.location(stream.name), self._settings.save_every
        try:
            if stream.is_new:
                self._table.write_facts(stream)
            store = open_store(location, method, save_every=every, writers=self._writers)
        except LockedError as error:
            raise StreamElsewhereError(f"stream {stream.name!r} is in use: {error}") from None
        except ForeignStateError as error:
            raise BadRequestError(f"stream {stream.name!r} cannot be used: {error}") from None
        except Exception as error:  # each kind of file system has errors of its own
            self._failed(
                "the state of a stream cannot be used now: it starts without, and nothing is kept", error
            )
            method.reset()
            return None
        stream.is_new = False
        stream.recovered = store.recovered
        return store

    def resident(
        self, stream: ServedStream, facts: StreamFacts, method: Method, store: StateStore | None
    ) -> Resident:
        """What the stream has in memory from now on."""
        seen = method.images_seen
        if seen > facts.images:  # facts are written less often than states
            stream.update(lambda known: replace(known, images=max(known.images, seen)))
        return Resident(
            method,
            store,
            BatchAnswers(method, self._failures, all_probabilities=True),
            RecentAnswers(method.classifier.classes, self._settings.keep_changed),
            method.allocated_bytes(),
        )
