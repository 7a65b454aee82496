"""The state of a method in a store: read when it is opened, and written batch by batch.

A record has the rows of the memory that a batch has written, and the counters. Nothing is changed in place,
so that rows that were overwritten since are dead in the log. When it has more than twice what the memory
takes, it is *tidied*: beside the appends, and from the files alone, all that is alive is written into one
segment, which replaces those before it.
"""

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ramen.client.result import Result
from ramen.memory.base import Patch
from ramen.methods._method import Method
from ramen.methods._state import CONTENT, ForeignStateError
from ramen.state.log import VERSION, Log, Patches, Replay, state_record
from ramen.utils import checks
from ramen.utils.sealed import DamagedError, total_bytes

log = logging.getLogger("ramen")

_LEAST_LIMIT = 2**18  # bytes that a log may have, however small the memory is
_SPREAD = 0.25  # the most by which a pause is shorter, as a share of it
_PATIENCE = 20  # pause before whole states are written again, as a multiple of the time that it takes


def open_store(
    location: str | os.PathLike[str],
    method: Method,
    *,
    save_every: int | str = "batch",
    writers: Executor | None = None,
) -> "StateStore":
    """Open the store in a folder; ``method`` continues with the state that is in it.

    Args:
        location: A folder, created if it is missing.
        method: A state in the store replaces what it has learned so far.
        save_every: When what was learned is written: after each "batch", after that many images, or after so
            many seconds, such as "10s".
        writers: Threads that many stores share, to be shut down after all of them are closed; by default a
            store has two of its own. Stores that share threads are not all written at the same time.

    Raises:
        ValueError: The state is of another model, class list or method; it stays as it is.
        LockedError: Another process uses the store.
    """
    times = SaveTimes(save_every, spread=writers is not None)
    return StateStore(Log(local_folder(location, "store")), method, times, writers)


def local_folder(location: str | os.PathLike[str], argument: str) -> Path:
    """The folder of a state; ValueError for a URL."""
    text = os.fspath(location)
    if "://" in text:
        raise ValueError(
            f"{argument} must be a folder, got the URL {text}: mount the bucket as a folder, or upload what "
            "method.save() writes"
        )
    return Path(text).expanduser()


class SaveTimes:
    """Decides when to save.

    Args:
        every: After each "batch", after that many images, or after so many seconds, such as "10s".
        spread: Whether to shorten each pause at random: stores of streams that are answered together would
            otherwise be written together, again and again, and hold up a batch all at once.
        clock: The time in seconds.
    """

    def __init__(
        self, every: int | str, *, spread: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._images, self._seconds = 1, 0.0
        if isinstance(every, str):
            found = re.fullmatch(r"(\d+(?:\.\d+)?) ?s", every)
            if found is None and every != "batch":
                raise ValueError(
                    f"save_every must be 'batch', a number of images, or seconds such as '10s', got {every!r}"
                )
            self._seconds = float(found[1]) if found else 0.0
        else:
            self._images = checks.integer("save_every", every, 1)
        self._spread = _SPREAD if spread else 0.0
        self._clock = clock
        self._started = clock()
        self.ended()
        self._took = 0.0

    @property
    def by_clock(self) -> bool:
        """Whether seconds decide, and not images."""
        return self._seconds > 0

    def due(self, images: int, *, patient: bool) -> bool:
        """Whether to save now.

        Args:
            images: That were answered since the last time.
            patient: The whole state has to be written: then no more often than costs a twentieth of the time.
        """
        pause = max(self._pause, _PATIENCE * self._took if patient else 0.0)
        return images >= self._images and self._clock() - self._last >= pause

    def started(self) -> None:
        """Writing begins."""
        self._started = self._clock()

    def ended(self) -> None:
        """It was written."""
        self._last = self._clock()
        self._took = self._last - self._started
        self._pause = self._seconds * (1 - self._spread * random.random())


# -- opening ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opened:
    """What a store held, after the method has taken it over."""

    sizes: dict[int, int]  # bytes by segment
    facts: Mapping[str, Any]  # of the last record
    recovered: str | None = None  # what had to be repaired, in words
    continues: bool = False  # whether records may follow; all of the state must be written again otherwise


def _open(files: Log, method: Method) -> _Opened:
    """Load the state in a store into ``method``, as far as it is sound.

    A damaged end is cut off: a process was killed while it wrote, and nothing that was promised is lost. If
    something is damaged elsewhere, the method continues with the rest. A state that belongs to something
    else raises ForeignStateError, and the store stays as it is.
    """
    replay = Replay(files)
    said = None
    if not replay.facts and replay.lost:
        return _start_empty(files, replay, "nothing in it can be read")
    if replay.facts:
        try:
            method.load_state_dict(replay.state(), salvage=bool(replay.lost))
        except ForeignStateError as error:
            raise ForeignStateError(f"the store cannot be used, and stays as it is: {error}") from None
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return _start_empty(files, replay, str(error))
    if replay.lost:
        aside = files.set_aside(list(replay.lost))
        said = _said(f"{'; '.join(replay.lost.values())}; continuing with the rest ({aside})")
        return _Opened(replay.sizes, replay.facts, said)
    if replay.tail is not None:
        segment, length = replay.tail
        lost = replay.sizes.pop(segment) - length
        if length:
            replay.sizes[segment] = length
        files.cut(segment, length)
        said = _said(f"the last {lost} bytes of segment {segment} were incomplete and were cut off")
    return _Opened(replay.sizes, replay.facts, said, replay.facts.get("version") == VERSION)


def _start_empty(files: Log, replay: Replay, why: str) -> _Opened:
    aside = files.set_aside(list(replay.sizes))
    return _Opened({}, {}, _said(f"the state cannot be used ({why}); starting without it ({aside})"))


def _said(text: str) -> str:
    log.warning("store: %s", text)
    return text


# -- writing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Write:
    """A record on its way to the disk, and what will be true when it is there."""

    segment: int
    whole: dict[str, Tensor]
    patches: Patches
    facts: dict[str, Any]
    answers: Sequence[Result]
    seen: dict[str, int]  # by a memory's prefix: the images of the stream that it covers
    epoch: int
    images: int
    images_seen: int

    def pieces(self) -> list[memoryview]:
        """The record; done in the background, as it takes longer than copying the rows."""
        answers = [result.to_dict() for result in self.answers]
        return state_record(self.whole, self.patches, {**self.facts, "answers": answers})


class StateStore:
    """Writes what a method learns, in the background; ``open_store`` opens one.

    It is used by one thread at a time, and the method must not be called while it saves.

    Attributes:
        answers: The results of the last batch that the store has learned from, when it was opened.
        recovered: What had to be repaired when it was opened, in words; None if nothing.
        failures: How many times what was learned could not be written.
        saved_images: How many images the state on the disk has learned from.
    """

    def __init__(self, files: Log, method: Method, times: SaveTimes, writers: Executor | None = None) -> None:
        self._files, self._method, self._times = files, method, times
        self.failures = 0
        with ExitStack() as opening:
            opening.enter_context(files.lock())
            found = _open(files, method)
            self._stack = opening.pop_all()
        self.recovered, self._sizes = found.recovered, found.sizes
        self.answers = tuple(map(Result.from_dict, found.facts.get("answers", ())))
        self._number = found.facts.get("number", 0)  # of the last record
        self._began = found.facts.get("began", 0)  # the record with which the present content began
        self._segment = max(found.sizes, default=0)
        self._starts_segment = not found.continues
        has_rows = (prefix for prefix, m in method.state.memories.items() if m.changed_rows(0) is not None)
        self._with_rows = tuple(has_rows)
        # Of the content that was replaced last, this much is on the disk; None: nothing of it.
        self._epoch = method.state.epoch if found.continues else None
        self.saved_images = method.images_seen if found.facts else 0
        self._saved = self._seen()
        self._limit = self._most(0)  # after reading: a state may bring its own capacity and codec
        if writers is None:
            # one for the tidying, which appends do not wait for
            writers = self._stack.enter_context(ThreadPoolExecutor(2, thread_name_prefix="ramen-store"))
        self._writers = writers
        self._pending: tuple[_Write | None, Future[int]] | None = None
        self._tidying: tuple[int, Future[int]] | None = None
        self._closing = False
        self._unsaved: Sequence[Result] = self.answers  # of the last batch, once there is one
        self._learned = 0  # images since the last write
        if found.facts and found.recovered and not found.continues:
            self._begin_write()
            self._settle()

    # -- what the predictor calls -------------------------------------------------------------------

    def save(self, results: Sequence[Result]) -> None:
        """Write what the batch with these results has taught, if it is time to.

        Returns before it is on the disk, but, unless times decide when to write, not before what was written
        last is. If it cannot be written, that is logged, and tried again with the next batch: the stream goes
        on.
        """
        if not self._may_wait():
            self._settle()
        self._unsaved = results
        self._learned += len(results)
        if self._pending is None and self._times.due(self._learned, patient=not self._with_rows):
            self._begin_write()

    def keep_up(self) -> bool:
        """Write what is not written yet, if it is time to, without waiting; whether all is on the disk.

        For streams that pause: between batches nobody calls ``save``.
        """
        if self._pending is not None and self._pending[1].done():
            self._settle()
        if self._pending is None and self._learned and self._times.due(self._learned, patient=False):
            self._begin_write()
        return self._pending is None and not self._learned

    def flush(self) -> None:
        """Wait until all that was learned is on the disk; raises why it cannot be written."""
        error = self._settle()
        was_reset = self._epoch is not None and self._epoch != self._method.state.epoch
        if self._learned or was_reset:
            self._begin_write()
            error = self._settle()
        if error is not None:
            raise error

    def close(self, *, save: bool = True) -> None:
        """Write the rest and leave the store to others.

        Args:
            save: False leaves the rest out.
        """
        try:
            if save:
                self.flush()
        except Exception:
            log.exception("what was learned last could not be saved")
        finally:
            self._closing = True
            if self._tidying is not None and not self._tidying[1].cancel():
                self._tidying[1].exception()  # waits; what was not done is done another time
            self._stack.close()

    @property
    def bytes(self) -> int:
        """What the store has on the disk."""
        return sum(self._sizes.values())

    # -- appending ----------------------------------------------------------------------------------

    def _may_wait(self) -> bool:
        """Whether what is being written may take its time: then a slow disk delays no answer."""
        return self._times.by_clock and self._pending is not None and not self._pending[1].done()

    def _begin_write(self) -> None:
        self._times.started()
        try:
            write = self._prepare()
        except Exception as error:  # no memory for a copy, say
            failed: Future[int] = Future()
            failed.set_exception(error)
            self._pending = None, failed
            return
        self._learned = 0
        self._pending = write, self._writers.submit(self._append, write)

    def _append(self, write: _Write) -> int:
        pieces = write.pieces()
        self._files.append(write.segment, pieces)
        return total_bytes(pieces)

    def _settle(self) -> Exception | None:
        """Wait for what is being written; the error if it failed, in which case it will be tried again."""
        if self._tidying is not None and self._tidying[1].done():
            self._end_tidying()
        if self._pending is None:
            return None
        write, future = self._pending
        self._pending = None
        try:
            size = future.result()
        except Exception as error:  # each kind of file system has errors of its own
            self._fail(write, error)
            return error
        assert write is not None
        self._times.ended()
        self._commit(write, size)
        return None

    def _fail(self, write: _Write | None, error: Exception) -> None:
        self.failures += 1
        self._learned += 0 if write is None else write.images
        self._starts_segment = True  # the end of this one may be damaged
        if self.failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... time
            log.error(
                "what was learned could not be saved (%s); answers go on, and it is tried again with the "
                "next batch (%d times so far)",
                error,
                self.failures,
            )

    def _prepare(self) -> _Write:
        """A record of all that is not on the disk yet."""
        method = self._method
        complete = self._epoch != method.state.epoch or not self._with_rows
        starts = complete or self._starts_segment
        patches = {}
        for prefix in self._with_rows:
            memory = method.state.memories[prefix]
            rows = memory.changed_rows(0 if complete else self._saved[prefix])
            assert rows is not None
            patches[prefix] = [_named(patch, prefix) for patch in memory.patches(rows)]
        # The first record of a segment has what the state belongs to.
        whole = method.state_dict(identity=starts, without_patches=self._with_rows)
        number = self._number + 1
        began = number if complete else self._began
        return _Write(
            segment=self._segment + starts,
            whole={name: tensor.cpu() for name, tensor in whole.items()},
            patches=patches,
            facts={"number": number, "part": 0, "parts": 1, "began": began, "complete": complete},
            answers=self._unsaved,
            seen=self._seen(),
            epoch=method.state.epoch,
            images=self._learned,
            images_seen=method.images_seen,
        )

    def _commit(self, write: _Write, size: int) -> None:
        self._epoch, self._saved, self.saved_images = write.epoch, write.seen, write.images_seen
        self._number, self._began = write.facts["number"], write.facts["began"]
        self._segment, self._starts_segment = write.segment, False
        self._sizes[write.segment] = self._sizes.get(write.segment, 0) + size
        if write.facts["complete"]:
            self._limit = self._most(size)
            for segment in self._sizes.keys() - {write.segment}:
                self._files.remove(segment)
                del self._sizes[segment]
        elif self.bytes > self._limit and self._tidying is None:
            self._starts_segment = True
            self._tidying = self._segment, self._writers.submit(self._tidy, self._segment)

    def _seen(self) -> dict[str, int]:
        return {prefix: self._method.state.memories[prefix].seen for prefix in self._with_rows}

    # -- tidying ------------------------------------------------------------------------------------

    def _most(self, live: int) -> int:
        """The most bytes before the log is tidied."""
        return max(_LEAST_LIMIT, 2 * max(live, self._method.memory_bytes()))

    def _tidy(self, last: int) -> int:
        """Write what is alive in the segments up to ``last`` once more, from the files alone."""
        replay = Replay(self._files, last)
        if replay.lost:
            raise DamagedError("; ".join(replay.lost.values()))  # left for the next opening to report
        return self._files.replace_up_to(last, self._while_open(replay.records()))

    def _while_open(self, records: Iterator[list[memoryview]]) -> Iterator[list[memoryview]]:
        for pieces in records:
            if self._closing:  # which must not take long
                raise InterruptedError("the store was closed")
            yield pieces

    def _end_tidying(self) -> None:
        assert self._tidying is not None
        (last, future), self._tidying = self._tidying, None
        error = future.exception()
        if last not in self._sizes:  # something complete was written meanwhile
            self._files.remove(last)
            return
        if error is not None:
            log.error("the store could not be tidied (%s); it grows, and it is tried again", error)
            self._limit = 2 * self.bytes
            return
        size = future.result()
        self._sizes = {segment: n for segment, n in self._sizes.items() if segment > last} | {last: size}
        self._limit = self._most(size)


def _named(patch: Patch, prefix: str) -> Patch:
    values = {f"{CONTENT}{prefix}{name}": tensor for name, tensor in patch.values.items()}
    return Patch(patch.places, values, patch.length, patch.fill)
