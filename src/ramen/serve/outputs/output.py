"""The output of a run that may be interrupted and started again: rows, their record, a lock."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from ramen.serve.outputs import parquet
from ramen.serve.outputs.label_file import LabelFile, Tally
from ramen.serve.outputs.record import Identity, OutputRecord, RunRecord, read_record, record_path
from ramen.serve.outputs.row_formats import CsvRows, JsonRows
from ramen.serve.result import Result
from ramen.utils.atomic_files import atomic_write
from ramen.utils.file_locks import file_lock

SUFFIXES = (".csv", ".jsonl", ".parquet")


def check_output(path: Path) -> None:
    """ValueError if the suffix is none of ``SUFFIXES``; ModuleNotFoundError if what writes it is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out must end with one of {', '.join(SUFFIXES)}, got {path}")
    if path.is_dir():
        raise ValueError(f"--out must be a file, got the folder {path}")
    if path.suffix.lower() == ".parquet":
        parquet.check_available()


class Output:
    """Results on disk, those of earlier runs included; ``open_output`` makes one.

    Attributes:
        path: The file that users read.
        before: How many results it had when this run started.
        recovering: Whether the last run was killed while it used the state that this run uses: then the
            state may have learned images whose results are not in the output.
        by_group: Whether the last run was one of a group of processes, whose state is written less often.
    """

    def __init__(self, path: Path, rows: LabelFile, record: OutputRecord, state: str | None) -> None:
        self.path, self.before = path, rows.tally.files
        self._rows, self._record, self._state = rows, record, state
        last = record.runs[-1] if record.runs else None
        killed = last is not None and last.seconds is None
        self.recovering = killed and state is not None and last is not None and last.state == state
        self.by_group = last is not None and last.processes is not None
        self._last_before = 0 if last is None else last.before
        self._run: RunRecord | None = None
        self._start = time.monotonic()

    def start(self, processes: int | None = None) -> None:
        """Note that a run starts. Whatever can be refused has been refused before.

        Args:
            processes: How many answer together; None for one without a group.
        """
        self.before = self._rows.tally.files
        self._run = self._record.start(self._state, self.before, processes)
        self._start = time.monotonic()

    @property
    def runs(self) -> list[RunRecord]:
        """Of the command, this one included."""
        if self._run is not None and self._run.seconds is None:
            self._run.files = self.new_files
        return self._record.runs

    @property
    def keys(self) -> set[str]:
        """Of all results."""
        return self._rows.keys

    @property
    def tally(self) -> Tally:
        """Of all results."""
        return self._rows.tally

    @property
    def new_files(self) -> int:
        """How many results this run has added."""
        return self._rows.tally.files - self.before

    @property
    def cut(self) -> int:
        """How many bytes of an unfinished row were removed from the end."""
        return self._rows.cut

    @property
    def seconds(self) -> float:
        """Since this run started."""
        return time.monotonic() - self._start

    def append(self, results: Iterable[Result]) -> None:
        """Add results; when it returns, they survive the end of this process."""
        self._rows.append(results)

    def results(self) -> Iterator[Result]:
        """All results, from the first on."""
        return self._rows.results()

    def results_of_last_run(self) -> Iterator[Result]:
        """Those of the last run before this one."""
        return islice(self._rows.results(), self._last_before, None)

    def remove_last(self, count: int) -> None:
        """Remove the last results."""
        self._rows.remove_last(count)

    def finish(self) -> None:
        """Note that this run has come to its end, and that all results it got are in the output."""
        if self._run is None:
            raise RuntimeError("finish: no run was started")
        self._run.seconds, self._run.files = round(self.seconds, 3), self.new_files
        self._record.write()


@contextmanager
def open_output(
    path: Path, identity: Identity, *, state: str | None = None, retry_failed: bool = False
) -> Iterator[Output]:
    """Create an output, or open one that exists to add to it.

    A Parquet file cannot grow: rows are added to a hidden journal beside it, from which the file is made
    when the block ends, however it ends. A new output in whose block no run was started is removed again.

    Args:
        path: A file whose suffix is one of ``SUFFIXES``; missing parent folders are created.
        identity: What the results are made with. An output of something else is refused.
        state: Where what is learned is kept; with one, rows are made durable too.
        retry_failed: Remove the rows of files that failed, so that they are tried again.
    """
    check_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    final = path if path.suffix.lower() == ".parquet" else None
    place = path if final is None else path.with_name(f".{path.name}.journal.jsonl")
    with file_lock(path.with_name(f".{path.name}.lock"), "is writing this file", trust_hosts=True):
        there = [file for file in dict.fromkeys((path, place)) if file.exists()]
        record = read_record(path, identity, there) if there else OutputRecord(path, identity.to_dict())
        record.write()  # before the first row, so that no output is ever without one
        if final is not None and final.exists() and not place.exists():
            _write_journal(place, final)
        rows = LabelFile(
            place,
            CsvRows(len(identity.classes)) if path.suffix.lower() == ".csv" else JsonRows(),
            durable=state is not None,
            keep=lambda result: not (retry_failed and result.error is not None),
        )
        try:
            yield Output(path, rows, record, state)
        finally:
            rows.close()
            if not (there or record.runs or rows.tally.files):  # refused before it began
                place.unlink()
                record_path(path).unlink()
            elif final is not None:
                parquet.write_parquet(final, rows.results())
                place.unlink()


def _write_journal(place: Path, final: Path) -> None:
    form = JsonRows()
    with atomic_write(place) as file:
        file.writelines(form.encode(result) for result in parquet.read_parquet(final))
