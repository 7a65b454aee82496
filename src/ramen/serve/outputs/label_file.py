"""A file of rows that grows while images are classified, and survives being killed."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from ramen.serve.outputs.row_formats import RowFormat
from ramen.serve.result import Result
from ramen.utils.atomic_files import atomic_write


@dataclass
class Tally:
    """What the results in a file add up to.

    Attributes:
        files: All rows.
        errors: Files without an answer.
        changed: Answers whose label adaptation changed.
        fallbacks: Answers that are zero-shot because adaptation could not use the image, or failed.
        labels: How often each class was predicted.
    """

    files: int = 0
    errors: int = 0
    changed: int = 0
    fallbacks: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    @property
    def answers(self) -> int:
        """Files with an answer."""
        return self.files - self.errors

    def add(self, result: Result) -> None:
        """Count a result."""
        self.files += 1
        if result.error is not None or result.label is None:
            self.errors += 1
            return
        self.changed += result.changed
        self.fallbacks += not result.adapted
        self.labels[result.label] += 1


class LabelFile:
    """Rows on disk, in order; what was there before stays, but for a row that was not written to its end.

    Args:
        path: The file; it is created if it is missing.
        form: How rows are written.
        durable: Have rows on the disk before the next ones are written, so that a power cut loses at most the
            last ones.
        keep: Rows for which it is False are removed first.

    Attributes:
        path: The file.
        keys: Of all results in it.
        tally: Of all results in it.
        cut: How many bytes of an unfinished row were removed from its end.
    """

    def __init__(
        self,
        path: Path,
        form: RowFormat,
        *,
        durable: bool = False,
        keep: Callable[[Result], bool] = lambda result: True,
    ) -> None:
        self.path, self._form = path, form
        self._syncs = ThreadPoolExecutor(1, thread_name_prefix="ramen-output") if durable else None
        self._sync: Future[None] | None = None  # of what was written last, in the background
        self.keys: set[str] = set()
        self.tally = Tally()
        self.cut = 0
        dropped = path.exists() and self._scan(keep)
        if dropped:
            self._rewrite(keep)
        # not buffered: what was written survives the end of the process
        self._file = path.open("ab", buffering=0)
        if self._file.tell() == 0:
            self._write(form.header())

    def _scan(self, keep: Callable[[Result], bool]) -> bool:
        """Count the rows, cut off what follows the last complete one; says whether some are not to stay."""
        dropped = False
        with self.path.open("r+b") as file:
            end = 0
            for result, end in self._read(file):  # noqa: B007  # the last one is used
                if keep(result):
                    self._count(result)
                else:
                    dropped = True
            end = end or self._header_end(file)
            self.cut = file.seek(0, os.SEEK_END) - end
            if self.cut:
                file.truncate(end)
        return dropped

    def _header_end(self, file: IO[bytes]) -> int:
        """Where the header ends in a file without rows; 0 if the header is not complete."""
        file.seek(0)
        line = file.readline() if self._form.header() else b""
        return len(line) if line.endswith(b"\n") else 0

    def _read(self, file: IO[bytes]) -> Iterator[tuple[Result, int]]:
        """Results of complete rows, each with the place where its row ends."""
        for number, row in enumerate(self._rows(file), 1):
            try:
                yield self._form.decode(row), file.tell()
            except ValueError as error:
                problem = f"{self.path} is damaged: result {number} cannot be read: {error}"
                raise ValueError(f"{problem}; repair or remove the file") from None

    def _rows(self, file: IO[bytes]) -> Iterator[bytes]:
        try:
            yield from self._form.rows(file)
        except ValueError as error:
            raise ValueError(f"{self.path} was not written by this command: {error}") from None

    def _rewrite(self, keep: Callable[[Result], bool]) -> None:
        with atomic_write(self.path) as file:
            file.write(self._form.header())
            for result in self.results():
                if keep(result):
                    file.write(self._form.encode(result))

    def _count(self, result: Result) -> None:
        self.keys.add(result.key)
        self.tally.add(result)

    def results(self) -> Iterator[Result]:
        """All results, from the first on."""
        with self.path.open("rb") as file:
            for result, _ in self._read(file):
                yield result

    def append(self, results: Iterable[Result]) -> None:
        """Write results; when it returns, they survive the end of this process."""
        found = list(results)
        self._write(b"".join(map(self._form.encode, found)))
        for result in found:
            self._count(result)

    def _write(self, data: bytes) -> None:
        self._wait_for_disk()
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        if self._syncs is not None:
            self._sync = self._syncs.submit(os.fsync, self._file.fileno())

    def _wait_for_disk(self) -> None:
        if self._sync is not None:
            sync, self._sync = self._sync, None
            sync.result()

    def remove_last(self, count: int) -> None:
        """Remove the last rows."""
        if not count:
            return
        with self.path.open("rb") as file:
            ends = deque((end for _, end in self._read(file)), maxlen=count + 1)
            end = ends[0] if len(ends) > count else self._header_end(file)
        self._file.truncate(end)
        self.keys, self.tally = set(), Tally()
        self._scan(lambda result: True)

    def close(self) -> None:
        """Close the file; all rows are on the disk then, if they are to be durable."""
        try:
            self._wait_for_disk()
        finally:
            if self._syncs is not None:
                self._syncs.shutdown()
            self._file.close()


def in_parts(results: Iterable[Result], size: int) -> Iterator[list[Result]]:
    """Results in lists of ``size``, the last one shorter."""
    iterator = iter(results)
    while part := list(islice(iterator, size)):
        yield part
