"""Streams as their owners see them: create, list, inspect, reset, delete; their classes and true labels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ramen.serve.engine.activity import NO_ACTIVITY
from ramen.serve.engine.answer_ids import AnswerIds
from ramen.serve.engine.errors import (
    BadRequestError,
    EngineError,
    StoppingError,
    StreamElsewhereError,
    StreamExistsError,
)
from ramen.serve.engine.keeper import Keeper
from ramen.serve.engine.names import check_class_names, check_stream_name
from ramen.serve.engine.residency import Residency
from ramen.serve.engine.served_stream import ServedStream
from ramen.serve.engine.stream_facts import StreamFacts
from ramen.serve.engine.stream_info import FeedbackCounts, StreamActivity, StreamInfo
from ramen.serve.engine.stream_methods import StreamMethods
from ramen.serve.engine.stream_table import StreamTable, unknown_stream
from ramen.serve.engine.waiting_room import WaitingRoom


class StreamManagement:
    """The part of an engine that manages streams, beside the batches that are being answered.

    Args:
        room: Says who may use a stream.
        table: All streams.
        residency: Brings them into memory.
        methods: Knows which classes are possible.
        ids: Finds answers.
        keeper: Writes what has changed.
    """

    def __init__(
        self,
        room: WaitingRoom,
        table: StreamTable,
        residency: Residency,
        methods: StreamMethods,
        ids: AnswerIds,
        keeper: Keeper,
    ) -> None:
        self._room, self._table, self._residency = room, table, residency
        self._methods, self._ids, self._keeper = methods, ids, keeper
        self._stopping = False

    def create_stream(self, name: str, classes: Sequence[str] | None = None) -> tuple[StreamInfo, bool]:
        """Create a stream unless it exists with these classes; also whether it is new.

        Raises:
            StreamExistsError: There is one, and with other classes.
        """
        check_stream_name(name)
        own = None if classes is None else self._methods.own_classes(check_class_names(classes))
        self._methods.create(own)  # before anything is written: these classes may be impossible
        self._refuse_when_stopping()
        stream, is_new = self._table.find_or_add(name)
        with self._room.held(stream):
            is_new = is_new and stream.is_new and not stream.facts
            if is_new:
                stream.set_facts(StreamFacts(classes=own))
            try:
                known = self._residency.current_facts(stream)
                if classes is not None and known.classes != own:
                    raise StreamExistsError(
                        f"there is a stream {name!r} already, and it has other classes: set its classes"
                    )
                self._residency.open(stream)
            except Exception:
                if is_new:
                    self._table.discard(stream)
                raise
            return self._info(stream), is_new

    def streams(self, *, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        """Streams by name, those behind ``after`` that begin with ``prefix``, at most ``limit``."""
        return [self._info(stream) for stream in self._table.listed(after, limit, prefix)]

    def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return self._info(self._find(name))

    def activity(self, name: str) -> StreamActivity:
        """What happened in a stream lately; nothing if it is not in memory."""
        resident = self._find(name).resident
        return NO_ACTIVITY if resident is None else resident.recent.activity()

    def reset(self, name: str) -> StreamInfo:
        """Forget what a stream has learned, and what was counted."""
        with self._held(name) as stream:
            resident = self._residency.open(stream)
            resident.method.reset()
            self._forget_answers(stream)
            stream.update(StreamFacts.forgotten)
            resident.recent.clear()
            self._flush(stream)
            self._residency.write_facts(stream)
            return self._info(stream)

    def snapshot(self, name: str) -> StreamInfo:
        """Return when everything that a stream has learned is on disk; EngineError if that cannot be."""
        with self._held(name) as stream:
            if stream.resident is not None:
                self._flush(stream)
                self._residency.write_facts(stream)
            return self._info(stream)

    def delete(self, name: str) -> None:
        """Forget a stream and remove its state; images that wait for it are dropped."""
        with self._held(name) as stream:
            self._residency.remove(stream)
        self._room.withdraw_all(stream, unknown_stream(name))
        self._ids.forget(stream.serial)

    def release(self, name: str) -> None:
        """Leave a stream to other processes: its state is written, its lock released.

        Nothing happens if it is not known here. What waits for it gets a StreamElsewhereError. When it is
        asked for again, it is opened as another process has left it; one that was deleted is forgotten.
        """
        stream = self._table.known(check_stream_name(name))
        if stream is None:
            return
        with self._room.held(stream):
            if stream.gone:
                return
            self._residency.park(stream)
            self._forget_answers(stream)
            if not stream.is_new and self._table.stored_facts(name) is None:
                self._table.discard(stream)
        self._room.withdraw_all(stream, StreamElsewhereError(f"stream {name!r} is left to another process"))

    def set_classes(self, name: str, classes: Sequence[str]) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        self._find(name)
        own = self._methods.own_classes(check_class_names(classes))
        self._methods.create(own)  # before anything is forgotten: these classes may be impossible
        with self._held(name) as stream:
            if self._residency.current_facts(stream).classes != own:
                self._residency.replace_state(stream, own)
                self._forget_answers(stream)
            self._residency.open(stream)
            return self._info(stream)

    def feedback(self, name: str, labels: Sequence[tuple[str, str]]) -> FeedbackCounts:
        """Take true labels, as pairs of an answer's id and a class; returns the stream's counts."""
        stream = self._find(name)
        classes = self._methods.classes_of(self._table.facts(stream).classes)
        numbers = {name: number for number, name in enumerate(classes)}
        for _, label in labels:
            if label not in numbers:
                raise BadRequestError(f"label {label!r} is none of the classes of stream {name!r}")

        def compared(facts: StreamFacts) -> StreamFacts:
            counts = facts.feedback
            for answer, label in labels:
                counts = self._ids.compare(stream.serial, answer, numbers[label], counts)
            return replace(facts, feedback=counts)

        counts = stream.update(compared).feedback
        self._keeper.watch(stream)
        return counts

    @contextmanager
    def _held(self, name: str) -> Iterator[ServedStream]:
        """A block in which nobody else uses the stream of that name."""
        stream = self._find(name)
        with self._room.held(stream):
            if stream.gone:  # it was deleted meanwhile
                raise unknown_stream(name)
            yield stream

    def _find(self, name: str) -> ServedStream:
        self._refuse_when_stopping()
        return self._table.find(check_stream_name(name))

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise StoppingError("the server is being stopped")

    def _forget_answers(self, stream: ServedStream) -> None:
        self._ids.forget(stream.serial)
        stream.renumber()

    def _flush(self, stream: ServedStream) -> None:
        resident = stream.resident
        if resident is None or resident.store is None:
            raise EngineError(f"the state of stream {stream.name!r} cannot be written")
        try:
            resident.store.flush()
        except Exception as error:
            raise EngineError(f"the state of stream {stream.name!r} cannot be written: {error}") from None

    def _info(self, stream: ServedStream) -> StreamInfo:
        facts, resident = self._table.facts(stream), stream.resident
        filled = None if resident is None else resident.fill()
        return StreamInfo(
            name=stream.name,
            classes=self._methods.classes_of(facts.classes),
            method=self._methods.method,
            images=facts.images,
            changed=facts.changed,
            fallbacks=facts.fallbacks,
            errors=facts.errors,
            entries=None if filled is None else filled[0],
            capacity=None if filled is None else filled[1],
            memory_bytes=0 if resident is None else resident.bytes,
            resident=resident is not None,
            created=facts.created,
            last_used=facts.last_used,
            feedback=facts.feedback,
            recovered=stream.recovered,
        )
