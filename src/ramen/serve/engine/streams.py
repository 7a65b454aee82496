"""Streams as their owners see them: create, list, inspect, reset, delete; their classes and true labels."""

import bisect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ramen.client.operations import (
    ConflictError,
    FeedbackCounts,
    InvalidRequestError,
    StoppingError,
    StreamActivity,
    StreamInfo,
    check_stream_name,
    quoted,
)
from ramen.models.prompts import check_classes
from ramen.serve.engine.scheduler import Scheduler
from ramen.serve.engine.statistics import AnswerIds
from ramen.serve.engine.stream import Stream, StreamFacts, StreamFolders
from ramen.serve.engine.stream_cache import StreamCache, StreamMethods, unknown_stream
from ramen.serve.settings import EngineSettings

_MOST_CLASSES = 10_000
_LONGEST_CLASS = 200  # characters


class Streams:
    """All streams of an engine, and what is done with them beside the batches that are being answered.

    A stream exists from its creation, or from its first image that could be decoded: until then it has a name
    and requests that wait, and nothing else.

    Args:
        settings: How many there may be.
        scheduler: Says who may use a stream.
        folders: Where they are stored.
        cache: Loads them.
        methods: Knows which classes are possible.
        ids: Finds answers.
    """

    def __init__(
        self,
        settings: EngineSettings,
        scheduler: Scheduler,
        folders: StreamFolders,
        cache: StreamCache,
        methods: StreamMethods,
        ids: AnswerIds,
    ) -> None:
        self._settings, self._scheduler, self._folders = settings, scheduler, folders
        self._cache, self._methods, self._ids = cache, methods, ids
        self._sorted = folders.names()
        self._streams = {name: Stream(name) for name in self._sorted}
        self._coming: dict[str, Stream] = {}  # that do not exist yet, though requests for them wait
        self.stopping = False

    def __len__(self) -> int:
        return len(self._streams)

    # -- by name ------------------------------------------------------------------------------------

    def known(self, name: str) -> Stream | None:
        """The stream of that name, if it is known without a look at the disk."""
        return self._streams.get(name) or self._coming.get(name)

    def for_images(self, name: str) -> Stream:
        """The stream that images belong to; a new one exists as soon as ``accept`` is called."""
        self._check_name(name)
        known = self.known(name)
        if known is not None:
            return known
        if not self._settings.create_on_use:
            raise unknown_stream(name)
        self._check_number()
        self._coming[name] = Stream(name, is_new=True)
        return self._coming[name]

    def is_coming(self, stream: Stream) -> bool:
        """Whether a stream does not exist yet."""
        return self._coming.get(stream.name) is stream

    def accept(self, stream: Stream) -> None:
        """An image of a stream could be decoded: from now on it exists."""
        if self.is_coming(stream):
            self._add(self._coming.pop(stream.name))

    def forget_unused(self, stream: Stream) -> None:
        """Forget a stream that does not exist yet, if nothing waits for it."""
        if self.is_coming(stream) and not stream.images and not stream.held and not stream.wanted:
            stream.gone = True
            del self._coming[stream.name]

    def find(self, name: str) -> Stream:
        """The stream of that name; NoSuchStreamError if there is none."""
        self._check_name(name)
        if name not in self._streams:
            raise unknown_stream(name)
        return self._streams[name]

    def _check_name(self, name: str) -> None:
        self._check_running()
        check_stream_name(name)

    def _check_running(self) -> None:
        if self.stopping:
            raise StoppingError("the server is being stopped")

    def _check_number(self) -> None:
        count = len(self._streams) + len(self._coming)
        if count >= self._settings.max_streams:
            raise InvalidRequestError(
                f"there are {count} streams already, which is the most: delete one first"
            )

    def _add(self, stream: Stream) -> Stream:
        self._streams[stream.name] = stream
        bisect.insort(self._sorted, stream.name)
        return stream

    def _discard(self, stream: Stream) -> None:
        stream.gone = True
        if self._streams.get(stream.name) is stream:
            del self._streams[stream.name]
            self._sorted.remove(stream.name)

    @asynccontextmanager
    async def _held(self, name: str) -> AsyncIterator[Stream]:
        """A block in which nobody else uses the stream of that name."""
        stream = self.find(name)
        async with self._scheduler.held(stream):
            if stream.gone:  # it was deleted meanwhile
                raise unknown_stream(name)
            yield stream

    # -- operations ---------------------------------------------------------------------------------

    async def create_stream(self, name: str, classes: Sequence[str] | None = None) -> tuple[StreamInfo, bool]:
        """Create a stream unless it exists with these classes; also whether it is new.

        Raises:
            ConflictError: There is one, and with other classes.
        """
        self._check_name(name)
        own = None if classes is None else self._methods.own_classes(check_class_names(classes))
        await self._methods.recipe_of(own)  # before anything is written: these classes may be impossible
        known = self.known(name)
        is_new = known is None or name in self._coming
        if known is None:
            self._check_number()
            known = self._coming[name] = Stream(name, is_new=True)
        stream = known
        async with self._scheduler.held(stream):
            is_new = is_new and stream.is_new and stream.facts is None
            if is_new:
                stream.facts = StreamFacts(classes=own)
            facts = await self._cache.facts_of(stream)
            if classes is not None and facts.classes != own:
                raise ConflictError(
                    f"there is a stream {name!r} already, and it has other classes: set its classes"
                )
            try:
                await self._cache.load(stream)
            except Exception:
                if is_new:
                    stream.facts = None
                    self.forget_unused(stream)
                raise
            self.accept(stream)
            return await self._told(stream), is_new

    async def streams(self, after: str = "", limit: int = 100, prefix: str = "") -> list[StreamInfo]:
        """Streams by name, those behind ``after`` that begin with ``prefix``, at most ``limit``."""
        self._check_running()
        start = max(bisect.bisect_right(self._sorted, after), bisect.bisect_left(self._sorted, prefix))
        names = [name for name in self._sorted[start : start + limit] if name.startswith(prefix)]
        return await self._infos([self._streams[name] for name in names])

    async def _infos(self, streams: Sequence[Stream]) -> list[StreamInfo]:
        await self._read_facts([stream for stream in streams if stream.facts is None])
        loaded = [stream.loaded for stream in streams]
        entries = await self._cache.disk(lambda: [None if one is None else one.entries() for one in loaded])
        return [self._info(stream, known) for stream, known in zip(streams, entries, strict=True)]

    async def _read_facts(self, streams: Sequence[Stream]) -> None:
        names = [stream.name for stream in streams]
        found = await self._cache.disk(self._folders.read_all, names) if names else []
        for stream, read in zip(streams, found, strict=True):
            if stream.facts is None:
                self._cache.read(stream, *read)

    async def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return await self._told(self.find(name))

    async def _told(self, stream: Stream) -> StreamInfo:
        return (await self._infos([stream]))[0]

    async def activity(self, name: str) -> StreamActivity:
        """What happened in a stream lately; nothing if it is not in memory."""
        loaded = self.find(name).loaded
        return StreamActivity(None, None, None, (), ()) if loaded is None else loaded.recent.activity()

    async def reset(self, name: str) -> StreamInfo:
        """Forget what a stream has learned, and what was counted."""
        async with self._held(name) as stream:
            try:
                loaded = await self._cache.load(stream)
            except InvalidRequestError:  # its state is damaged, or of something else
                facts = await self._cache.facts_of(stream)
                await self._cache.replace_state(stream, facts.forgotten())
                loaded = await self._cache.load(stream)
            await self._cache.disk(loaded.method.reset)
            loaded.recent.clear()
            facts = await self._cache.facts_of(stream)
            self._forget_answers(stream)
            stream.set_facts(facts.forgotten())
            stream.recovered = None
            await self._cache.write_facts(stream)  # before the state: it must not seem to have vanished
            await self._cache.flush(stream)
            return await self._told(stream)

    async def snapshot(self, name: str) -> StreamInfo:
        """Return when everything that a stream has learned is on disk; ServerError if that cannot be."""
        async with self._held(name) as stream:
            if stream.loaded is not None:
                await self._cache.flush(stream)
                await self._cache.write_facts(stream)
            return await self._told(stream)

    async def delete(self, name: str) -> None:
        """Forget a stream and remove its state; images that wait for it are dropped."""
        async with self._held(name) as stream:
            await self._cache.remove(stream)
            self._discard(stream)
        self._scheduler.fail_all(stream, unknown_stream(name))
        self._ids.forget(stream.serial)

    async def set_classes(self, name: str, classes: Sequence[str]) -> StreamInfo:
        """Give a stream other classes; what it learned with the old ones is forgotten."""
        self.find(name)
        own = self._methods.own_classes(check_class_names(classes))
        await self._methods.recipe_of(own)  # before anything is forgotten: these classes may be impossible
        async with self._held(name) as stream:
            facts = await self._cache.facts_of(stream)
            if facts.classes != own:
                changed = StreamFacts(classes=own, created=facts.created, last_used=facts.last_used)
                await self._cache.replace_state(stream, changed)
                self._forget_answers(stream)
            await self._cache.load(stream)
            return await self._told(stream)

    async def feedback(self, name: str, labels: Sequence[Sequence[str]]) -> FeedbackCounts:
        """Take true labels, as pairs of an answer's id and a class; returns the stream's counts."""
        stream = self.find(name)
        if stream.facts is None:
            await self._read_facts([stream])
        assert stream.facts is not None
        classes = self._methods.classes_of(stream.facts.classes)
        numbers = {name: number for number, name in enumerate(classes)}
        for _, label in labels:
            if label not in numbers:
                raise InvalidRequestError(f"label {label!r} is none of the classes of stream {name!r}")
        counts = stream.facts.feedback
        for answer, label in labels:
            counts = self._ids.compare(stream.serial, answer, numbers[label], counts)
        stream.update(feedback=counts)
        self._cache.watch(stream)
        return counts

    def _forget_answers(self, stream: Stream) -> None:
        self._ids.forget(stream.serial)
        stream.renumber()

    def _info(self, stream: Stream, entries: tuple[int, int] | None) -> StreamInfo:
        facts, loaded = stream.facts or StreamFacts(), stream.loaded
        return StreamInfo(
            name=stream.name,
            classes=self._methods.classes_of(facts.classes),
            method=self._methods.method,
            images=facts.images,
            changed=facts.changed,
            fallbacks=facts.fallbacks,
            errors=facts.errors,
            entries=None if entries is None else entries[0],
            capacity=None if entries is None else entries[1],
            memory_bytes=0 if loaded is None else loaded.bytes,
            resident=loaded is not None,
            created=facts.created,
            last_used=facts.last_used,
            feedback=facts.feedback,
            recovered=stream.recovered,
        )


def check_class_names(classes: object) -> tuple[str, ...]:
    """``classes`` as the classifier will call them, if a stream may have them."""
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise InvalidRequestError(f"classes must be a list of names, got {type(classes).__name__}")
    if len(classes) > _MOST_CLASSES:
        raise InvalidRequestError(f"classes must be at most {_MOST_CLASSES}, got {len(classes)}")
    for name in classes:
        if isinstance(name, str) and len(name) > _LONGEST_CLASS:
            raise InvalidRequestError(
                f"classes must have names of at most {_LONGEST_CLASS} characters, got one of {len(name)}: "
                f"{quoted(name)}"
            )
    try:
        return check_classes(classes)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(str(error)) from None
