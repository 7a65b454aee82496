"""Which streams are in memory: loaded when they are needed, evicted when others are, saved meanwhile.

A stream is loaded and evicted in threads of the disk by whoever holds it, so that others are answered
meanwhile. Before a stream is loaded, room is made for it: the least recently used streams for which nothing
waits are evicted; if there are none, those that had their turn.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from ramen.client.operations import (
    FailedError,
    InvalidRequestError,
    NoSuchStreamError,
    ServerError,
    ServerUnavailableError,
)
from ramen.methods import Method
from ramen.methods._registry import create, describe
from ramen.methods._state import ForeignStateError
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.predict.answers import BatchAnswers, FailureLog
from ramen.serve.engine.scheduler import Scheduler
from ramen.serve.engine.statistics import RecentAnswers
from ramen.serve.engine.stream import LoadedStream, Stream, StreamFacts, StreamFolders
from ramen.serve.settings import EngineSettings
from ramen.state import StateStore, open_store
from ramen.utils.files import LockedError

_LOADS = 4  # at a time, and threads of the disk
_WRITERS = 4  # threads that write states
_PAUSE = 0.1  # seconds between looks for a stream that can be evicted
_SAVE_PAUSE = 0.2  # seconds between looks for states that are to be written
_FACTS_EVERY = 10.0  # seconds
_CLASS_LISTS = 256  # of which classifiers are kept

_log = logging.getLogger("ramen")
Value = TypeVar("Value")
Recipe = tuple[ZeroShotClassifier, dict[str, Any]]


def unknown_stream(name: str) -> NoSuchStreamError:
    """What whoever asks for a stream gets that does not exist."""
    return NoSuchStreamError(f"there is no stream {name!r}")


class StreamMethods:
    """Creates a fresh method for a stream: what one of them chose, others with the same classes are given.

    Args:
        classifier: The model with its own classes.
        method: The name of the method.
        parameters: Of the method.
        stream_memory: Bytes that the memory of one stream may grow to, for methods that can be told.
    """

    def __init__(
        self, classifier: ZeroShotClassifier, method: str, parameters: Mapping[str, Any], stream_memory: int
    ) -> None:
        self.classifier, self.method = classifier, method
        known = describe(method).defaults
        ours = {"visibility": "causal", "memory_budget": stream_memory}
        self._parameters = {name: value for name, value in ours.items() if name in known} | dict(parameters)
        self._own = self.recipe(None)
        self._recipes: OrderedDict[tuple[str, ...], asyncio.Future[Recipe]] = OrderedDict()
        self._one_at_a_time = asyncio.Semaphore(1)  # chooses parameters and embeds classes

    def create(self, recipe: Recipe | None = None) -> Method:
        """A method; by default for the classes of the model."""
        classifier, parameters = recipe or self._own
        return create(self.method, classifier, **parameters)

    def recipe(self, classes: tuple[str, ...] | None) -> Recipe:
        """What a method for these classes, or for those of the model, is created with.

        Raises:
            InvalidRequestError: There can be none.
        """
        classifier = self.classifier if classes is None else self._with_classes(classes)
        create(self.method, classifier, **self._parameters)  # what costs passes is known from here on
        return classifier, self._parameters

    async def recipe_of(self, classes: tuple[str, ...] | None) -> Recipe:
        """The same, made in a thread unless it is known."""
        if classes is None:
            return self._own
        if classes not in self._recipes:
            self._recipes[classes] = asyncio.ensure_future(self._made(classes))
            while len(self._recipes) > _CLASS_LISTS:
                self._recipes.popitem(last=False)
        self._recipes.move_to_end(classes)
        return await asyncio.shield(self._recipes[classes])

    async def _made(self, classes: tuple[str, ...]) -> Recipe:
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(self.recipe, classes)
        except BaseException:
            self._recipes.pop(classes, None)
            raise

    def classes_of(self, classes: tuple[str, ...] | None) -> tuple[str, ...]:
        """The names of a stream's classes."""
        return self.classifier.classes if classes is None else classes

    def own_classes(self, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """``classes``, or None if they are those of the model."""
        return None if classes == self.classifier.classes else classes

    def _with_classes(self, classes: tuple[str, ...]) -> ZeroShotClassifier:
        try:
            return self.classifier.with_classes(classes)
        except MissingPartError as error:
            raise InvalidRequestError(
                f"a stream of this model cannot have classes of its own: {error}"
            ) from None
        except ValueError as error:
            raise InvalidRequestError(f"classes: {error}") from None


class StreamCache:
    """Loads, evicts and saves streams. Methods that take a stream are called by whoever holds it.

    Args:
        settings: How much streams may take, and when they are written.
        scheduler: Says who may use a stream, and what waits for it.
        folders: Where streams are stored.
        methods: Creates a stream's method.
        failures: Where errors are logged.

    Attributes:
        bytes: What the memories of all loaded streams take.
        evictions: How many times a stream was evicted.
    """

    def __init__(
        self,
        settings: EngineSettings,
        scheduler: Scheduler,
        folders: StreamFolders,
        methods: StreamMethods,
        failures: FailureLog,
    ) -> None:
        self._settings, self._scheduler, self._folders = settings, scheduler, folders
        self._methods, self._failures = methods, failures
        self._threads = ThreadPoolExecutor(_LOADS, thread_name_prefix="ramen-disk")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="ramen-store")
        self._loaded: OrderedDict[Stream, LoadedStream] = OrderedDict()  # the least recently used one first
        self._requested: set[Stream] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # that load or evict
        self._loads = asyncio.Semaphore(_LOADS)
        self._reserved: list[int] = []  # bytes for streams that are being loaded
        self._is_trimming = False
        self._unsaved: dict[Stream, float] = {}  # not all on disk; since when its facts are not
        self._saving: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._failed_before = 0  # writes of stores that are closed, and without a store
        self.bytes = self.evictions = 0

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def store_failures(self) -> int:
        """How many times something could not be written or read."""
        stores = [one.store for one in self._loaded.values() if one.store is not None]
        return self._failed_before + sum(store.failures for store in stores)

    async def disk(self, work: Callable[..., Value], *given: Any) -> Value:
        """Do something in a thread of the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def start(self) -> None:
        """Save what pauses from now on."""
        self._saving = asyncio.create_task(self._save_pausing())

    # -- into memory --------------------------------------------------------------------------------

    def request(self, stream: Stream) -> None:
        """Load a stream in due course; if that fails, its requests get the error."""
        if stream not in self._requested and stream.loaded is None:
            self._requested.add(stream)
            self._begin(self._load_requested(stream))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_requested(self, stream: Stream) -> None:
        try:
            async with self._loads, self._scheduler.held(stream):
                self._requested.discard(stream)
                await self.load(stream)
        except ServerError as error:
            self._scheduler.fail_all(stream, error)
        except Exception as error:
            self._failures.add("a stream could not be loaded", error)
            self._scheduler.fail_all(stream, FailedError(f"stream {stream.name!r} cannot be loaded"))

    async def load(self, stream: Stream) -> LoadedStream:
        """Bring a stream into memory unless it is there."""
        if stream.gone:
            raise unknown_stream(stream.name)
        if stream.loaded is not None:
            return stream.loaded
        facts = await self.facts_of(stream)
        recipe = await self._methods.recipe_of(facts.classes)
        method = await self.disk(self._methods.create, recipe)
        async with self._room_for(max(facts.memory_bytes, method.state.allocated_bytes())):
            store, error = await self.disk(self._open, stream, facts, method)
        if error is not None:
            self._fail("a stream starts without its state, and nothing is kept", error)
        return self._enter(stream, method, store)

    async def facts_of(self, stream: Stream) -> StreamFacts:
        """What is known of a stream; read when it is first asked for."""
        if stream.facts is None:
            self.read(stream, *await self.disk(self._folders.read, stream.name))
        assert stream.facts is not None
        return stream.facts

    def read(self, stream: Stream, facts: StreamFacts | None, damage: str | None) -> None:
        """Take over what was read of a stream."""
        if damage is not None:
            assert facts is not None
            facts = replace(facts, classes=self._methods.own_classes(facts.classes))
            _log.warning("stream %s: %s", stream.name, damage)
            stream.recovered = damage
        stream.facts = facts or stream.facts or StreamFacts()
        stream.unwritten = damage is not None

    def _open(
        self, stream: Stream, facts: StreamFacts, method: Method
    ) -> tuple[StateStore | None, Exception | None]:
        """The store of a stream, whose state the method takes over, or why the disk cannot be used."""
        location, every = self._folders.location(stream.name), self._settings.save_every
        try:
            if stream.is_new:
                self._folders.write(stream.name, facts)
            return open_store(location, method, save_every=every, writers=self._writers), None
        except LockedError as error:
            raise ServerUnavailableError(f"stream {stream.name!r} is in use: {error}") from None
        except ForeignStateError as error:
            raise InvalidRequestError(f"stream {stream.name!r} cannot be used: {error}") from None
        except Exception as error:  # each kind of file system has errors of its own
            method.reset()
            return None, error

    def _enter(self, stream: Stream, method: Method, store: StateStore | None) -> LoadedStream:
        facts, seen = stream.facts or StreamFacts(), method.images_seen
        if store is not None:
            stream.is_new = False
            lost = None
            if seen < facts.saved:
                lost = f"{seen} of {facts.saved} saved images are left: segments have vanished"
            found = [text for text in (store.recovered, lost) if text is not None]
            if stream.unwritten and stream.recovered is not None:
                found.insert(0, stream.recovered)
            stream.recovered = "; ".join(found) or None
            if lost is not None:
                _log.warning("stream %s: %s", stream.name, lost)
        if seen > facts.images or facts.saved > seen:  # facts are written less often than states
            stream.update(images=max(facts.images, seen), saved=min(facts.saved, seen))
        answers = BatchAnswers(method, self._failures, all_probabilities=True)
        recent = RecentAnswers(method.classifier.classes, self._settings.keep_changed)
        loaded = LoadedStream(method, store, answers, recent, method.state.allocated_bytes())
        stream.loaded = self._loaded[stream] = loaded
        self.bytes += loaded.bytes
        self._scheduler.loaded()
        self.trim()
        return loaded

    # -- room ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _room_for(self, needed: int) -> AsyncIterator[None]:
        """A block with so many bytes reserved, begun when other streams have been evicted."""
        while (self._loaded or self._reserved) and self._exceeds(needed, 1):
            if not await self._evict_one():
                await self._scheduler.wait_for_free(_PAUSE)
        self._reserved.append(needed)
        try:
            yield
        finally:
            self._reserved.remove(needed)

    def _exceeds(self, more_bytes: int = 0, more_streams: int = 0) -> bool:
        """Whether all streams, and so much more, take more than they may."""
        taken = self.bytes + sum(self._reserved) + more_bytes
        count = len(self._loaded) + len(self._reserved) + more_streams
        return taken > self._settings.streams_budget or count > self._folders.most_open

    def trim(self) -> None:
        """Evict streams as long as all together take too much."""
        if not self._is_trimming and self._exceeds():
            self._is_trimming = True
            self._begin(self._trim())

    async def _trim(self) -> None:
        try:
            while len(self) > 1 and self._exceeds() and await self._evict_one():
                pass
        finally:
            self._is_trimming = False

    async def _evict_one(self) -> bool:
        stream = self._hold_victim()
        if stream is None:
            return False
        try:
            await self.evict(stream)
        finally:
            self._scheduler.release(stream)
        if self._scheduler.waits(stream):
            self.request(stream)
        return True

    def _hold_victim(self) -> Stream | None:
        """The least recently used stream that is idle; or one that has had its turn, though more waits."""
        streams = list(self._loaded)
        idle = (stream for stream in streams if not self._scheduler.waits(stream))
        served = (stream for stream in streams if self._loaded[stream].served)
        for stream in (*idle, *served):
            if self._scheduler.try_hold(stream):
                return stream
        return None

    # -- out of memory ------------------------------------------------------------------------------

    async def evict(self, stream: Stream) -> None:
        """Put a stream to disk."""
        loaded = stream.loaded
        if loaded is None:
            return
        await self._close(stream, loaded)
        stream.update(memory_bytes=loaded.bytes)
        await self.write_facts(stream)
        self.evictions += 1

    async def leave(self, stream: Stream) -> None:
        """Drop the method of a stream that is removed or replaced."""
        if stream.loaded is not None:
            await self._close(stream, stream.loaded)

    async def _close(self, stream: Stream, loaded: LoadedStream) -> None:
        if loaded.store is not None:
            await self.disk(loaded.store.close)
            stream.update(saved=loaded.store.saved_images)
            self._failed_before += loaded.store.failures
        stream.loaded = None
        del self._loaded[stream]
        self.bytes -= loaded.bytes

    async def remove(self, stream: Stream) -> None:
        """Delete what is stored of a stream."""
        await self.leave(stream)
        await self.disk(self._folders.remove, stream.name)

    async def replace_state(self, stream: Stream, facts: StreamFacts) -> None:
        """Forget what a stream has learned, for other classes, or as it cannot be read."""
        await self.leave(stream)
        stream.set_facts(facts)
        await self.write_facts(stream)
        await self.disk(self._folders.remove_state, stream.name)
        stream.recovered = None

    async def write_facts(self, stream: Stream) -> None:
        """Store what is known of a stream; if that fails, it is tried again later."""
        assert stream.facts is not None
        stream.unwritten = False
        try:
            await self.disk(self._folders.write, stream.name, stream.facts)
        except Exception as error:
            stream.unwritten = True
            self._fail("what is known of a stream could not be written", error)

    def _fail(self, what: str, error: Exception) -> None:
        self._failed_before += 1
        self._failures.add(what, error)

    async def flush(self, stream: Stream) -> None:
        """Return when all that a loaded stream has learned is on disk; FailedError if that cannot be."""
        loaded = stream.loaded
        if loaded is None or loaded.store is None:
            raise FailedError(f"the state of stream {stream.name!r} cannot be written")
        try:
            await self.disk(loaded.store.flush)
        except Exception as error:
            raise FailedError(f"the state of stream {stream.name!r} cannot be written: {error}") from None

    # -- while they are in memory -------------------------------------------------------------------

    def answered(self, stream: Stream, nbytes: int) -> None:
        """A batch of a stream was answered, whose memory may have grown."""
        loaded = stream.loaded
        assert loaded is not None
        self.bytes += nbytes - loaded.bytes
        loaded.bytes, loaded.served = nbytes, True
        self._loaded.move_to_end(stream)
        self.watch(stream)

    def watch(self, stream: Stream) -> None:
        """Something of a stream is to be written, if it pauses now."""
        self._unsaved.setdefault(stream, time.monotonic())

    async def _save_pausing(self) -> None:
        while not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_SAVE_PAUSE):
                    await self._closing.wait()
            for stream, since in list(self._unsaved.items()):
                if self._scheduler.try_hold(stream):
                    try:
                        await self._save(stream, since)
                    except Exception as error:  # no memory for a copy, say: the next look tries again
                        self._failures.add("what a stream has learned could not be written", error)
                    finally:
                        self._scheduler.release(stream)

    async def _save(self, stream: Stream, since: float) -> None:
        store = None if stream.loaded is None else stream.loaded.store
        is_written = store is None or await self.disk(store.keep_up)
        if store is not None and stream.facts is not None and store.saved_images != stream.facts.saved:
            stream.update(saved=store.saved_images)
        if stream.unwritten and not stream.gone and time.monotonic() - since >= _FACTS_EVERY:
            await self.write_facts(stream)
            since = time.monotonic()
        if stream.gone or (is_written and not stream.unwritten):
            self._unsaved.pop(stream, None)
        else:
            self._unsaved[stream] = since

    async def close(self) -> None:
        """Evict all streams."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._closing.set()
        if self._saving is not None:
            await self._saving
        await asyncio.gather(*map(self._evict_held, list(self._loaded)))
        for threads in (self._threads, self._writers):
            threads.shutdown()

    async def _evict_held(self, stream: Stream) -> None:
        async with self._scheduler.held(stream):
            await self.evict(stream)
