"""The state of a method in a store: read when it is opened, and written batch by batch."""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramen.client.result import Result
from ramen.memory.base import Patch
from ramen.methods._method import CONTENT, Method
from ramen.state.opening import Opened, read_store
from ramen.state.records import write_record
from ramen.state.replay import NO_COPIES, NamedPatch, record_content, with_copies
from ramen.state.save_times import SaveTimes
from ramen.state.segments import LocalSegments, Segments
from ramen.utils.sealed import total_bytes

log = logging.getLogger("ramen")

_LEAST_LIMIT = 2**18  # bytes that a log may have, however small the memory is
# Shares of what a log may have at most:
_SEGMENT = 1 / 16  # what one segment has
_CLEANING = 0.8  # from which on the oldest segment is cleaned, a few rows at a time
_HURRY = 0.95  # from which on it is cleaned at once
_PACE = 2  # rows that are written once more, per new row


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
            store has one of its own. Stores that share threads are not all written at the same time.

    Raises:
        ValueError: The state is of another model, class list or method; it stays as it is.
        LockedError: Another process uses the store.
    """
    times = SaveTimes(save_every, spread=writers is not None)
    return StateStore(LocalSegments(local_folder(location, "store")), method, times, writers)


def local_folder(location: str | os.PathLike[str], argument: str) -> Path:
    """The folder of a state; ValueError for a URL."""
    text = os.fspath(location)
    if "://" in text:
        raise ValueError(
            f"{argument} must be a folder, got the URL {text}: mount the bucket as a folder, or upload what "
            "method.save() writes"
        )
    return Path(text).expanduser()


@dataclass(frozen=True)
class _Write:
    """A record on its way to the disk, and what will be true when it is there."""

    segment: int
    whole: dict[str, Tensor]
    patches: list[NamedPatch]
    facts: dict[str, Any]
    answers: Sequence[Result]
    copies: dict[str, Tensor]  # by a memory's prefix: the segment of each row's newest copy
    alive: set[int]  # the segments among these
    seen: dict[str, int]  # by the same: the images of the stream that it covers
    epoch: int
    images: int
    images_seen: int

    def pieces(self) -> list[memoryview]:
        """The record; done in the background, as it takes longer than copying the rows."""
        answers = [result.to_dict() for result in self.answers]
        return write_record(*record_content(self.whole, self.patches, {**self.facts, "answers": answers}))


class StateStore:
    """Writes what a method learns, in the background; ``open_store`` opens one.

    It is used by one thread at a time, and the method must not be called while it saves.

    Attributes:
        answers: The results of the last batch that the store has learned from, when it was opened.
        recovered: What had to be repaired when it was opened, in words; None if nothing.
        failures: How many times what was learned could not be written.
        saved_images: How many images the state on the disk has learned from.
    """

    def __init__(
        self, segments: Segments, method: Method, times: SaveTimes, writers: Executor | None = None
    ) -> None:
        self._segments, self._method, self._times = segments, method, times
        self.failures = 0
        with ExitStack() as opening:
            opening.enter_context(segments.lock())
            found = read_store(segments, method)
            self._stack = opening.pop_all()
        self._adopt(found)
        if writers is None:
            writers = self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="ramen-store"))
        self._writers = writers
        self._pending: tuple[_Write | None, Future[int]] | None = None
        self._unsaved: Sequence[Result] = found.answers  # of the last batch, once there is one
        self._learned = 0  # images since the last write
        if found.rewrite:
            self._begin_write()
            self._settle()

    def _adopt(self, found: Opened) -> None:
        self.answers, self.recovered = found.answers, found.recovered
        self._copies, self._sizes, self._counts = found.copies, found.sizes, found.counts
        self._damaged = found.damaged
        # After reading: a state may bring its own capacity and codec.
        self._limit = max(_LEAST_LIMIT, 2 * self._method.memory_bytes())
        self._number = max(found.sizes, default=0)  # of the newest segment; this process begins a new one
        self._active: int | None = None
        has_rows = (prefix for prefix, m in self._method.memories.items() if m.changed_rows(0) is not None)
        self._with_rows = tuple(has_rows)
        # Of the content that was replaced last, this much is on the disk; None: nothing of it.
        self._epoch = None if found.rewrite or not found.sizes else self._method.epoch
        self.saved_images = self._method.images_seen if found.sizes else 0
        self._saved = self._seen()

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
        was_reset = self._epoch is not None and self._epoch != self._method.epoch
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
            self._stack.close()

    @property
    def bytes(self) -> int:
        """What the store has on the disk."""
        return sum(self._sizes.values())

    # -- writing ------------------------------------------------------------------------------------

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
        self._segments.append(write.segment, pieces)
        return total_bytes(pieces)

    def _settle(self) -> Exception | None:
        """Wait for what is being written; the error if it failed, in which case it will be tried again."""
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
        self._active = None  # its end may be damaged: continue in a new segment
        if self.failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... time
            log.error(
                "what was learned could not be saved (%s); answers go on, and it is tried again with the "
                "next batch (%d times so far)",
                error,
                self.failures,
            )

    def _prepare(self) -> _Write:
        """A record of all that is not on the disk yet, and of some old rows if the log is long."""
        method = self._method
        is_fresh = self._epoch != method.epoch
        starts = self._begins_segment(is_fresh)
        segment = self._number + 1 if starts else self._number
        rows = {prefix: self._rows_to_write(prefix, is_fresh) for prefix in self._with_rows}
        patches = [
            NamedPatch(_named(patch, prefix), prefix if place == 0 else None)
            for prefix, chosen in rows.items()
            for place, patch in enumerate(method.memories[prefix].patches(chosen))
        ]
        copies = self._copies_with(rows, segment, is_fresh)
        alive = _segments_in(copies)
        identity = method.state_identity() if starts else {}  # which the first record of a segment has
        content = {f"{CONTENT}{n}": t for n, t in method.unpatched_content(self._with_rows).items()}
        return _Write(
            segment=segment,
            whole={n: t.cpu() for n, t in {**identity, **method.state_counters(), **content}.items()},
            patches=patches,
            facts={
                "fresh": is_fresh,
                "segments": {str(number): n for number, n in self._counts.items() if number in alive},
            },
            answers=self._unsaved,
            copies=copies,
            alive=alive,
            seen=self._seen(),
            epoch=method.epoch,
            images=self._learned,
            images_seen=method.images_seen,
        )

    def _copies_with(self, rows: dict[str, Tensor], segment: int, is_fresh: bool) -> dict[str, Tensor]:
        """Where the newest copy of each row is, once these are in ``segment``."""
        before = {} if is_fresh else self._copies
        return {
            prefix: with_copies(before.get(prefix, NO_COPIES).clone(), chosen, segment)
            for prefix, chosen in rows.items()
        }

    def _begins_segment(self, is_fresh: bool) -> bool:
        full = self._sizes.get(self._number, 0) > _SEGMENT * self._limit
        return self._active is None or is_fresh or full or not self._with_rows

    def _rows_to_write(self, prefix: str, is_fresh: bool) -> Tensor:
        memory = self._method.memories[prefix]
        new = memory.changed_rows(0 if is_fresh else self._saved[prefix])
        assert new is not None
        old = torch.empty(0, dtype=torch.int64) if is_fresh else self._rows_to_move(prefix, len(new))
        return torch.cat([new, old]).unique() if len(old) else new

    def _rows_to_move(self, prefix: str, new: int) -> Tensor:
        """Rows that are alive in the oldest segment, which is to be removed, if the log is long."""
        used, copies = self.bytes / self._limit, self._copies.get(prefix, NO_COPIES)
        older = [number for number in self._sizes if number != self._active]
        if used < _CLEANING or not older:
            return torch.empty(0, dtype=torch.int64)
        alive = (copies == min(older)).nonzero()[:, 0]
        return alive if used > _HURRY else alive[: _PACE * new]

    def _commit(self, write: _Write, size: int) -> None:
        self._epoch, self._saved, self._copies = write.epoch, write.seen, write.copies
        self.saved_images = write.images_seen
        self._active = self._number = write.segment
        self._sizes[write.segment] = self._sizes.get(write.segment, 0) + size
        self._counts[write.segment] = self._counts.get(write.segment, 0) + 1
        for number in self._sizes.keys() - write.alive - {write.segment}:
            if number not in self._damaged:  # which were set aside
                self._segments.remove(number)
            del self._sizes[number], self._counts[number]

    def _seen(self) -> dict[str, int]:
        return {prefix: self._method.memories[prefix].seen for prefix in self._with_rows}


def _segments_in(copies: dict[str, Tensor]) -> set[int]:
    """The segments that have the newest copy of a row."""
    found: set[int] = set()
    for each in copies.values():
        oldest = int(each.min())  # counting from there takes less time than unique()
        found.update((torch.bincount(each - oldest).nonzero()[:, 0] + oldest).tolist())
    return found


def _named(patch: Patch, prefix: str) -> Patch:
    values = {f"{CONTENT}{prefix}{name}": tensor for name, tensor in patch.values.items()}
    return Patch(patch.places, values, patch.length, patch.fill)
