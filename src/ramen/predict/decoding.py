"""Decoding of sources to pixels of the encoder's size, ahead of time, in their order.

A source is decoded in two steps. ``detach`` is done where sources are taken from the caller, before the next
one is asked for: afterwards the caller may close the file, or write the next frame into the same array.
``decode_all`` does the rest. One thread takes sources from the caller's iterable, a bounded number of them
ahead, and passes them on in small groups: to one more thread, or to worker processes that all streams of a
predictor share. If a process dies, because a file crashes a decoder or memory runs out, the sources that were
lost with it are decoded one by one in a process of their own; the one that ends it again gets an error, and
the stream continues.
"""

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ramen.images.decoding import UnreadableImageError, decode
from ramen.images.file_checks import DecodingSettings, read_object
from ramen.images.preprocess import Preprocess
from ramen.predict.sources import NoImage, Source
from ramen.utils.workers import WorkerProcesses

Item = TypeVar("Item")  # what becomes of a source

_LARGEST_GROUP = 8  # sources that a worker gets at a time, as each message costs about as much as one image
_PATIENCE = 1.0  # seconds to wait for a thread that may be inside the caller's iterable
_MOST_CHANNELS = 4  # of an array
_UNNAMED = "image 0"  # what preprocessing calls a single image


class DecodedSource(NamedTuple):
    """A source with its pixels ``(3, H, W)``, or with an error that names it."""

    key: str
    pixels: NDArray[np.uint8] | None
    error: str | None = None


@dataclass(frozen=True)
class Decoder:
    """Decodes sources: to the same pixels in whichever process it is.

    Args:
        preprocess: Resizes and crops.
        settings: What may be decoded, and how.
    """

    preprocess: Preprocess
    settings: DecodingSettings

    def detach(self, source: Source) -> Source:
        """The source in a form that does not depend on the caller and can be sent to another process."""
        try:
            return Source(source.key, self._detached(source.value, source.key))
        except Exception as error:  # file objects raise errors of all kinds
            return Source(source.key, NoImage(_describe(source.key, error)))

    def _detached(self, value: Any, key: str) -> Any:
        limits = self.settings
        if isinstance(value, str | NoImage):
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            if memoryview(value).nbytes <= limits.max_bytes:
                return bytes(value)
        elif isinstance(value, np.ndarray):
            if value.size <= _MOST_CHANNELS * limits.max_pixels:
                return value.copy()
        elif isinstance(value, Tensor):
            if _is_rgb(value) and value.numel() <= 3 * limits.max_pixels:
                return value.detach().permute(1, 2, 0).cpu().numpy().copy()
        elif not isinstance(value, Image.Image):
            return read_object(value, limits.max_bytes)
        # PIL images, which may depend on a file; and what is refused, rather than copied and sent first
        return decode(value, limits, name=key)

    def decode(self, source: Source) -> DecodedSource:
        """The pixels of one source that is detached."""
        key, value = source
        if isinstance(value, NoImage):
            return DecodedSource(key, None, value.error)
        if self.is_ready(value):
            return DecodedSource(key, value.transpose(2, 0, 1))
        image = self.image(key, value)
        return DecodedSource(key, None, image) if isinstance(image, str) else self.resized(key, image)

    def image(self, key: str, value: Any) -> Image.Image | str:
        """An image as it is, in RGB; or why it cannot be decoded."""
        try:
            return value if isinstance(value, Image.Image) else decode(value, self.settings, name=key)
        except Exception as error:
            return _describe(key, error)

    def resized(self, key: str, image: Image.Image) -> DecodedSource:
        """An image with the encoder's size."""
        try:
            return DecodedSource(key, self.preprocess.resized(image).transpose(2, 0, 1))
        except Exception as error:
            message = _describe(_UNNAMED, error).removeprefix("images: ")
            return DecodedSource(key, None, key + message.removeprefix(_UNNAMED))

    def is_ready(self, value: Any) -> bool:
        """Whether these are pixels of the encoder's size already, which nothing would change."""
        height, width = self.preprocess.size
        is_array = isinstance(value, np.ndarray) and value.dtype == np.uint8
        return is_array and value.shape == (height, width, 3) and height * width <= self.settings.max_pixels

    def decode_all(self, sources: Sequence[Source]) -> list[DecodedSource]:
        """The pixels of each source."""
        return [self.decode(source) for source in sources]

    def failed(self, key: str, error: str) -> DecodedSource:
        """A source that cannot be decoded."""
        return DecodedSource(key, None, error)


def _is_rgb(tensor: Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.ndim == 3 and len(tensor) == 3


def _describe(key: str, error: Exception) -> str:
    if isinstance(error, UnreadableImageError):
        return str(error)  # names the image
    return f"{key} cannot be read as an image: {str(error) or type(error).__name__}"


# -- ahead of time ------------------------------------------------------------------------------------------


class StreamClosedError(RuntimeError):
    """Somebody closed the predictor while a stream was being read."""


class SourceDecoder(Protocol[Item]):
    """What is done with sources, such as ``Decoder``."""

    def detach(self, source: Source) -> Source:
        """The source in a form that does not depend on the caller; called before the next one is taken."""

    def decode(self, source: Source) -> Item:
        """What becomes of one source; an error is no exception, but part of that."""

    def decode_all(self, sources: Sequence[Source]) -> list[Item]:
        """The same of each source."""

    def failed(self, key: str, error: str) -> Item:
        """What becomes of a source that ended its process."""


class _Group(NamedTuple, Generic[Item]):
    """Sources under way."""

    sources: list[Source]
    taken: float  # when the first of them was taken from the caller
    decoded: Future[list[Item]]


class _End(NamedTuple):
    """After the last source: the error of the caller's iterable, if there is one."""

    error: BaseException | None


class DecodedStream(Generic[Item]):
    """The sources of one caller, decoded, in order; ``DecodedStreams.open`` makes one."""

    def __init__(
        self,
        sources: Generator[Source, None, None],
        decoder: SourceDecoder[Item],
        pool: Executor | WorkerProcesses,
        *,
        workers: int,
        batch_size: int,
        max_delay: float | None,
    ) -> None:
        group_size = min(_LARGEST_GROUP, math.ceil(batch_size / workers))
        self._sources = sources
        self._decoder, self._pool = decoder, pool
        self._batch_size, self._max_delay = batch_size, max_delay
        self._group_size = group_size if max_delay is None else 1
        self._space = threading.Semaphore(2 * max(batch_size, workers * group_size))  # sources under way
        self._groups: queue.SimpleQueue[_Group[Item] | _End] = queue.SimpleQueue()
        self._stopped = threading.Event()
        # what the reading thread alone uses
        self._group: _Group[Item] | None = None  # the next one, if it was not ready in time
        self._ready: deque[tuple[Item, float]] = deque()
        self._end: _End | None = None
        self._thread = threading.Thread(target=self._take_sources, name="ramen-sources", daemon=True)
        self._thread.start()

    # -- the thread that takes sources ------------------------------------------------------------------

    def _take_sources(self) -> None:
        error: BaseException | None = None
        try:
            self._pass_on_all()
        except BaseException as raised:  # the caller's own, to be raised where the results are read
            error = raised
        finally:
            self._sources.close()
            self._groups.put(_End(error))

    def _pass_on_all(self) -> None:
        group: list[Source] = []
        taken, count = 0.0, 0
        try:
            while (source := self._next_source()) is not None:
                group.append(self._decoder.detach(source))
                taken = taken if len(group) > 1 else time.monotonic()
                count += 1
                # never beyond the end of a batch, which would wait for the sources of the next one
                if len(group) == self._group_size or count % self._batch_size == 0:
                    self._pass_on(group, taken)
                    group = []
        finally:
            if group and not self._stopped.is_set():
                self._pass_on(group, taken)

    def _next_source(self) -> Source | None:
        self._space.acquire()
        return None if self._stopped.is_set() else next(self._sources, None)

    def _pass_on(self, group: list[Source], taken: float) -> None:
        self._groups.put(_Group(group, taken, self._pool.submit(self._decoder.decode_all, group)))

    # -- the thread that reads --------------------------------------------------------------------------

    def batch(self) -> list[Item]:
        """The sources of the next batch; none after the last one.

        An exception of the caller's iterable is raised after everything that came before it.
        """
        found: list[Item] = []
        deadline: float | None = None
        while len(found) < self._batch_size and self._fetch(deadline):
            source, taken = self._ready.popleft()
            found.append(source)
            self._space.release()
            if deadline is None and self._max_delay is not None:
                deadline = taken + self._max_delay
        if not found and self._end is not None and self._end.error is not None:
            raise self._end.error
        return found

    def _fetch(self, deadline: float | None) -> bool:
        """Wait until a source is ready; False after the last one, or if the deadline comes first."""
        if self._ready:
            return True
        if self._group is None and self._end is None:
            try:
                arrived = self._groups.get(timeout=_left(deadline))
            except queue.Empty:
                return False
            if isinstance(arrived, _End):
                self._end = arrived
            else:
                self._group = arrived
        if self._stopped.is_set():
            raise StreamClosedError("the predictor was closed while its results were being read")
        if self._group is None:
            return False
        try:
            decoded = self._decoded(self._group, deadline)
        except TimeoutError:
            return False
        self._ready.extend((source, self._group.taken) for source in decoded)
        self._group = None
        return True

    def _decoded(self, group: _Group[Item], deadline: float | None) -> list[Item]:
        try:
            return group.decoded.result(_left(deadline))
        except CancelledError:
            raise StreamClosedError("the predictor was closed while its results were being read") from None
        except BrokenExecutor:
            if not isinstance(self._pool, WorkerProcesses):
                raise
            return [self._decoded_alone(source, self._pool) for source in group.sources]

    def _decoded_alone(self, source: Source, processes: WorkerProcesses) -> Item:
        try:
            return processes.run_alone(self._decoder.decode, source)
        except BrokenExecutor:
            error = f"{source.key} cannot be decoded: the process died of it, or memory ran out"
            return self._decoder.failed(source.key, error)

    # -- the end ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the thread to end, and wake up whoever waits for a batch."""
        self._stopped.set()
        self._space.release()
        self._groups.put(_End(None))

    def join(self, patience: float = _PATIENCE) -> None:
        """Wait for the end, but not for long if the thread is inside the caller's iterable.

        It ends as soon as that returns.
        """
        if threading.current_thread() is not self._thread:  # on which a generator may be collected as garbage
            self._thread.join(patience)
        with suppress(queue.Empty):
            while True:
                left = self._groups.get_nowait()
                if isinstance(left, _Group):
                    left.decoded.cancel()
        self._groups.put(_End(None))  # somebody may still be waiting
        if isinstance(self._pool, Executor):  # this stream's own
            self._pool.shutdown(wait=True)


def _left(deadline: float | None) -> float | None:
    """Seconds until then."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class DecodedStreams(Generic[Item]):
    """The streams of all callers of a predictor, and the workers that they share.

    Worker processes run as long as at least one stream is being read.

    Args:
        decoder: What to do with each source.
        workers: How many worker processes; with 0, each stream has a thread.
        batch_size: How many sources make a batch.
        max_delay: Seconds after which a batch is handed out that is not full; None waits until it is.
    """

    def __init__(
        self, decoder: SourceDecoder[Item], workers: int, batch_size: int, max_delay: float | None
    ) -> None:
        self._decoder, self._workers = decoder, workers
        self._batch_size, self._max_delay = batch_size, max_delay
        self._lock = threading.RLock()  # a stream may be collected as garbage, and thereby end, meanwhile
        self._open: set[DecodedStream[Item]] = set()
        self._processes: WorkerProcesses | None = None
        self._users = 0  # of the processes
        self._stopped = False
        self._owner = os.getpid()

    @contextmanager
    def open(self, sources: Generator[Source, None, None]) -> Generator[DecodedStream[Item], None, None]:
        """A block in which sources are decoded ahead of time; nothing is left running after it."""
        with self._pool() as pool:
            stream = DecodedStream(
                sources,
                self._decoder,
                pool,
                workers=max(1, self._workers),
                batch_size=self._batch_size,
                max_delay=self._max_delay,
            )
            with self._lock:
                self._open.add(stream)
                if self._stopped:
                    stream.stop()
            try:
                yield stream
            finally:
                if os.getpid() == self._owner:  # a forked process has neither the thread nor the workers
                    with self._lock:
                        self._open.discard(stream)
                    stream.stop()
                    stream.join()

    @contextmanager
    def _pool(self) -> Generator[Executor | WorkerProcesses, None, None]:
        if self._workers == 0:
            yield ThreadPoolExecutor(1, thread_name_prefix="ramen-decoder")  # the stream ends it
            return
        with self._lock:
            if self._processes is None:
                self._processes = WorkerProcesses(self._workers)
            self._users += 1
            processes = self._processes
        try:
            yield processes
        finally:
            if os.getpid() == self._owner:
                self._release(processes)

    def _release(self, processes: WorkerProcesses) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._processes = None
        processes.shutdown()

    def stop(self) -> None:
        """Stop all streams for good; whoever reads one gets a ``StreamClosedError``."""
        with self._lock:
            self._stopped = True
            streams = list(self._open)
            processes, self._processes = self._processes, None
        for stream in streams:
            stream.stop()
        end = time.monotonic() + _PATIENCE  # for all of them together
        for stream in streams:
            stream.join(_left(end) or 0.0)
        if processes is not None:
            processes.shutdown()
