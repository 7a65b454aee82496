"""The output of ``ramen classify``: a hidden journal, and the file that users read as a view of it.

The journal of ``labels.csv`` is ``.labels.csv.journal``: one JSON object per line, in the order in which
things happened. The first line says what all results are made with; then a line when a run starts, one per
result, and one when the run ends. It is written before the view, and it alone is read when a run resumes. CSV
and JSON lines grow with it, a Parquet file is written when a run ends.
"""

import csv
import io
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from ramen.classify.files import readable
from ramen.client.result import Result
from ramen.utils.files import atomic_write, file_lock

SUFFIXES = (".csv", ".jsonl", ".parquet")
COLUMNS = (
    *("file", "label", "probability", "zero_shot_label", "zero_shot_probability", "changed", "adapted"),
    *("error", "entropy", "zero_shot_entropy", "support", "state_version"),
)
TOP = 5  # classes in a result
FORMULAS = ("prefix", "keep")
_ACTIVE = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins with one of these
_PARQUET_ROWS = 20_000  # in memory at a time
VERSION = 2  # of outputs; those of version 1 had no journal
_NOTES = {"identity", "started", "seconds", "written"}  # lines of a journal that are no results
_NAMES = {
    "weights": "other weights",
    "classes": "other classes",
    "templates": "other prompt templates",
    "method": "another method",
    "parameters": "other parameters of the method",
    "orient": "another setting of --no-orient",
}


class OtherOutputError(ValueError):
    """The output holds results that do not fit the new ones, or something else altogether."""


@dataclass(frozen=True)
class Identity:
    """What all results in an output have in common."""

    model: str  # two names for the same weights are the same model
    weights: str  # their hash
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    method: str
    parameters: Mapping[str, Any]  # those that were given; the method chooses the others
    orient: bool  # whether images were turned as their EXIF data say
    dtype: str  # of the model's weights

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"classes": list(self.classes), "templates": list(self.templates)}

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """In words, how this differs from what a journal has."""
        own = self.to_dict()
        return [
            f"{words} ({_short(stored.get(name))} there, {_short(own[name])} now)"
            for name, words in _NAMES.items()
            if stored.get(name) != own[name]
        ]


@dataclass
class Run:
    """One run of the command."""

    started: str  # when, in UTC
    state: str | None  # where what it learned is kept, if anywhere
    before: int = 0  # how many results were in the output
    seconds: float | None = None  # how long it took; None while it runs, and for good if it was killed
    files: int = 0  # how many results it has added


@dataclass
class Tally:
    """What results add up to."""

    files: int = 0
    errors: int = 0  # files without an answer
    changed: int = 0  # answers whose label adaptation changed
    fallbacks: int = 0  # answers that are zero-shot because adaptation could not use the image, or failed
    labels: Counter[str] = field(default_factory=Counter)  # how often each class was predicted

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


# -- the journal ------------------------------------------------------------------------------------------


def journal_path(output: Path) -> Path:
    """Where the journal of an output is."""
    return output.with_name(f".{output.name}.journal")


def journal_lines(output: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The complete lines of an output's journal, each with the place where it ends."""
    journal, end = journal_path(output), 0
    with journal.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                value = json.loads(line)
                if ("identity" in value) != (number == 1):
                    raise ValueError("it is no line of a journal")
                if number == 1 and value["version"] != VERSION:
                    raise ValueError(f"version {value['version']}, not {VERSION}")
                if value.keys().isdisjoint(_NOTES):
                    Result.from_dict(value)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise OtherOutputError(
                    f"{journal} is damaged in line {number} ({error}): {start_again(output)}"
                ) from None
            yield value, end


def dtypes_of(output: Path) -> Iterator[str | None]:
    """The dtype of what an output was made with, if there is one; None if it does not say, as in 0.2."""
    if journal_path(output).exists():
        for value, _ in islice(journal_lines(output), 1):
            yield value["identity"].get("dtype")
    elif output.exists():
        yield None


def results_of(output: Path) -> Iterator[Result]:
    """All results of an output, from the first on."""
    lines = journal_lines(output)
    return (Result.from_dict(value) for value, _ in lines if value.keys().isdisjoint(_NOTES))


# -- views: CSV for spreadsheets, JSON lines for programs, Parquet for tables ------------------------------


class JsonRows:
    """One JSON object per line, with everything that a result has."""

    def header(self) -> bytes:
        """What the file starts with: nothing."""
        return b""

    def encode(self, result: Result) -> bytes:
        """A result's line."""
        return json.dumps(as_plain(result), ensure_ascii=False).encode() + b"\n"


class CsvRows:
    """Columns for spreadsheets: ``COLUMNS``, then the second to fifth class with its probability.

    Args:
        classes: How many there are: with two classes there is no third one to write.
        formulas: "prefix" writes an apostrophe before a text that a spreadsheet would compute, such as a file
            whose name begins with "="; "keep" leaves it as it is.
    """

    def __init__(self, classes: int, formulas: str = FORMULAS[0]) -> None:
        places = range(2, min(TOP, classes) + 1)
        others = [name for place in places for name in (f"label_{place}", f"probability_{place}")]
        self.columns = (*COLUMNS, *others)
        self._is_prefixed = formulas == "prefix"

    def header(self) -> bytes:
        """The names of the columns."""
        return self._line(self.columns)

    def encode(self, result: Result) -> bytes:
        """A line, or several if a name contains line breaks; numbers have six digits."""
        values = as_plain(result)
        top = [cell for entry in result.top[1:] for cell in entry]
        return self._line([values[name] for name in COLUMNS] + top)

    def _line(self, values: Sequence[Any]) -> bytes:
        width = len(self.columns)
        cells = [*map(self._cell, values[:width]), *[""] * (width - len(values))]
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\r\n").writerow(cells)  # so that either of both is quoted
        return buffer.getvalue().removesuffix("\r\n").encode() + b"\n"

    def _cell(self, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return f"'{value}" if self._is_prefixed and value.startswith(_ACTIVE) else value
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_plain(result: Result) -> dict[str, Any]:
    """A result by the names of ``COLUMNS``, and ``top``; every text can be written as UTF-8."""
    values = result.to_dict()
    values["file"] = readable(values.pop("key"))
    values["error"] = None if result.error is None else readable(result.error)
    values["changed"] = result.changed
    return {name: values[name] for name in (*COLUMNS, "top")}


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a .parquet output needs the package pyarrow: pip install 'ramen-tta[parquet]', "
            "or write .csv or .jsonl"
        ) from error
    return pyarrow


def write_parquet(path: Path, results: Iterable[Result]) -> None:
    """Replace ``path`` by a file with these results, atomically."""
    pyarrow = _pyarrow()
    text, number, flag, whole = pyarrow.string(), pyarrow.float64(), pyarrow.bool_(), pyarrow.int64()
    types = dict.fromkeys(COLUMNS, number)
    types |= dict.fromkeys(("file", "label", "zero_shot_label", "error"), text)
    types |= dict.fromkeys(("changed", "adapted"), flag) | dict.fromkeys(("support", "state_version"), whole)
    types["top"] = pyarrow.list_(pyarrow.struct([("label", text), ("probability", number)]))
    schema = pyarrow.schema(list(types.items()))
    left = iter(results)
    with atomic_write(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while part := [_parquet_row(result) for result in islice(left, _PARQUET_ROWS)]:
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


def _parquet_row(result: Result) -> dict[str, Any]:
    top = [{"label": label, "probability": probability} for label, probability in result.top]
    return as_plain(result) | {"top": top}


# -- an output --------------------------------------------------------------------------------------------


class Output:
    """Results on disk, those of earlier runs included; ``open_output`` makes one.

    Attributes:
        path: The file that users read.
        head: The first line of the journal.
        runs: Of the command, in order.
        keys: Of all results.
        tally: Of all results.
        before: How many results there were when this run started.
        recovering: Whether the last run was killed while it used the state that this run uses: then the
            state may have learned images whose results are not in the output.
    """

    def __init__(self, path: Path, state: str | None) -> None:
        self.path, self._state = path, state
        self._journal = journal_path(path)
        self._read()
        last = self.runs[-1] if self.runs else None
        killed = last is not None and last.seconds is None
        self.recovering = killed and state is not None and last is not None and last.state == state
        self.before, self._start = self.tally.files, time.monotonic()
        self._run: Run | None = None
        self._changed = False  # since it was opened
        self._file = self._journal.open("ab", buffering=0)  # what was written survives the end of the process
        self._rows: CsvRows | JsonRows | None = None  # of the view, if it grows
        self._view: IO[bytes] | None = None
        self._syncs = ThreadPoolExecutor(1, thread_name_prefix="ramen-output") if state is not None else None
        self._sync: Future[None] | None = None  # of what was written last, in the background

    # -- the journal ---------------------------------------------------------------------------------

    def _read(self) -> None:
        """Count what the journal has, and cut off a line that was not written to its end."""
        self.head: dict[str, Any] = {}
        self.runs: list[Run] = []
        self.keys: set[str] = set()
        self.tally = Tally()
        self._written, end = False, 0
        for value, end in journal_lines(self.path):  # noqa: B007  # the last one is used
            if "identity" in value:
                self.head = value
            elif "started" in value:
                self.runs.append(Run(value["started"], value["state"], self.tally.files))
            elif "seconds" in value:
                self.runs[-1].seconds, self.runs[-1].files = value["seconds"], value["files"]
            elif "written" in value:
                self._written = True
            else:
                self._count(Result.from_dict(value))
        if not self.head:
            raise OtherOutputError(f"{self._journal} is empty: {start_again(self.path)}")
        if end < self._journal.stat().st_size:
            os.truncate(self._journal, end)

    def _count(self, result: Result) -> None:
        self.keys.add(result.key)
        self.tally.add(result)
        if self.runs:
            self.runs[-1].files += 1

    def _write(self, values: Iterable[Mapping[str, Any]]) -> None:
        if self._sync is not None:
            sync, self._sync = self._sync, None
            sync.result()
        _write_all(self._file, b"".join(map(_line, values)))
        if self._syncs is not None:
            self._sync = self._syncs.submit(os.fsync, self._file.fileno())

    def _rewrite(self, keep: Callable[[Mapping[str, Any]], bool]) -> None:
        """Replace the journal by one with the present head and those lines, and the view accordingly."""
        lines = (value for value, _ in journal_lines(self.path) if "identity" not in value and keep(value))
        with atomic_write(self._journal) as file:
            file.writelines(map(_line, chain([self.head], lines)))
        self._file.close()
        self._file = self._journal.open("ab", buffering=0)
        self._read()
        self.before = self.tally.files
        self._replace_view()

    # -- the view ------------------------------------------------------------------------------------

    @property
    def was_removed(self) -> bool:
        """Whether somebody has removed the file that users read."""
        return not self.path.exists() and (self._written or self.path.suffix.lower() != ".parquet")

    def open_view(self, formulas: str, *, retry_failed: bool, carried_over: bool) -> None:
        """Make the file say what the journal says; OtherOutputError if somebody has changed it."""
        self._rows = self._make_rows()
        if self.path.exists() and not carried_over:
            self._check_view()
        else:
            self._replace_view()
        if self.head["formulas"] != formulas or (retry_failed and self.tally.errors):
            self.head["formulas"] = formulas
            self._rows = self._make_rows()
            self._rewrite(lambda value: not retry_failed or value.get("error") is None)

    def _make_rows(self) -> "CsvRows | JsonRows | None":
        """How the view grows; None for a file that cannot."""
        if self.path.suffix.lower() == ".csv":
            return CsvRows(len(self.head["identity"]["classes"]), self.head["formulas"])
        return JsonRows() if self.path.suffix.lower() == ".jsonl" else None

    def _check_view(self) -> None:
        """Compare the file with what its rows must be, and add what a kill has left out."""
        if self._rows is None:
            return
        with self.path.open("r+b") as file:
            rows = filter(None, chain([self._rows.header()], map(self._rows.encode, self.results())))
            for row in chain(rows, [b""]):  # nothing may follow
                there = file.read(len(row) or 1)
                if not row.startswith(there):
                    raise OtherOutputError(
                        f"{self.path} was changed by something else after {file.tell() - len(there):,} "
                        f"bytes, so that nothing can be added to it: {start_again(self.path)}"
                    )
                if len(there) < len(row):
                    file.seek(0, os.SEEK_END)
                    file.write(row[len(there) :])
        self._view = self.path.open("ab", buffering=0)

    def _replace_view(self) -> None:
        """Write the file anew; a Parquet file when the output is closed."""
        self._changed = True
        if self._rows is None:
            return
        if self._view is not None:
            self._view.close()
        with atomic_write(self.path) as file:
            file.write(self._rows.header())
            file.writelines(map(self._rows.encode, self.results()))
        self._view = self.path.open("ab", buffering=0)

    # -- what runs call ------------------------------------------------------------------------------

    def start(self) -> None:
        """Note that a run starts. Whatever can be refused has been refused before."""
        self.before, self._start = self.tally.files, time.monotonic()
        self._run = Run(datetime.now(UTC).isoformat(timespec="seconds"), self._state, self.before)
        self._write([{"started": self._run.started, "state": self._state}])
        self.runs.append(self._run)

    def append(self, results: Iterable[Result]) -> None:
        """Add results; when it returns, they survive the end of this process."""
        found = list(results)
        self._write(result.to_dict() for result in found)
        self._changed = True
        if self._rows is not None and self._view is not None:
            _write_all(self._view, b"".join(map(self._rows.encode, found)))
        for result in found:
            self._count(result)

    def finish(self) -> None:
        """Note that this run has come to its end, and that all results it got are in the output."""
        if self._run is None:
            raise RuntimeError("finish: no run was started")
        self._run.seconds = round(time.monotonic() - self._start, 3)
        self._write([{"seconds": self._run.seconds, "files": self.new_files}])

    @property
    def new_files(self) -> int:
        """How many results this run has added."""
        return self.tally.files - self.before

    def results(self) -> Iterator[Result]:
        """All results, from the first on."""
        return results_of(self.path)

    def results_of_last_run(self) -> Iterator[Result]:
        """Those of the last run before this one."""
        return islice(self.results(), self.runs[-1].before if self.runs else 0, None)

    def remove_last(self, count: int) -> None:
        """Remove the last results of a run that was killed."""
        if count:
            ends = deque((end for _, end in journal_lines(self.path)), maxlen=count + 1)
            self._file.truncate(ends[0])
            self._read()
            self.before = self.tally.files
            self._replace_view()

    def close(self) -> None:
        """Close the files; all results are on the disk then, if there is a state. Parquet is written now."""
        try:
            if self._rows is None and self._changed and (self.runs or self.tally.files):
                write_parquet(self.path, self.results())
                self._write([{"written": self.tally.files}])
            if self._sync is not None:
                self._sync.result()
        finally:
            if self._syncs is not None:
                self._syncs.shutdown()
            for file in filter(None, (self._file, self._view)):
                file.close()


@contextmanager
def open_output(
    path: Path,
    identity: Identity,
    *,
    state: str | None = None,
    retry_failed: bool = False,
    formulas: str = FORMULAS[0],
) -> Iterator[Output]:
    """Create an output, or open one that exists to add to it.

    An output of version 0.2, without a journal, gets one from its rows. A new output in whose block no run
    was started is removed again.

    Args:
        path: A file whose suffix is one of ``SUFFIXES``; missing parent folders are created. If somebody has
            removed it, the output starts again.
        identity: What the results are made with. An output of something else is refused.
        state: Where what is learned is kept; with one, results are made durable too.
        retry_failed: Remove the results of files that failed, so that they are tried again.
        formulas: What becomes of a text that a spreadsheet would compute, in CSV: "prefix" puts an
            apostrophe before it, "keep" leaves it as it is.

    Raises:
        OtherOutputError: The file is not ours, was changed since, or holds results of something else.
    """
    check_output(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = journal_path(path)
    with file_lock(path.with_name(f".{path.name}.lock"), "is writing this file", trust_hosts=True):
        carried_over = not journal.exists() and _carry_over(path)
        is_new = not journal.exists()
        if is_new:
            _write_journal(path, identity.to_dict(), [])
        output = Output(path, state)
        try:
            if output.was_removed and not is_new:
                output.close()
                _write_journal(path, identity.to_dict(), [])
                output, is_new = Output(path, state), True
            differences = identity.differences(output.head["identity"])
            if differences:
                raise OtherOutputError(
                    f"{path} holds results of {'; '.join(differences)}: {start_again(path)}"
                )
            output.open_view(formulas, retry_failed=retry_failed, carried_over=carried_over)
            yield output
        finally:
            output.close()
            if is_new and not (output.runs or output.tally.files):  # refused before it began
                journal.unlink()
                path.unlink(missing_ok=True)


def _write_journal(path: Path, identity: Mapping[str, Any], values: Iterable[Mapping[str, Any]]) -> None:
    head = {"version": VERSION, "identity": identity, "formulas": FORMULAS[0]}
    with atomic_write(journal_path(path)) as file:
        file.writelines(map(_line, chain([head], values)))


def _carry_over(path: Path) -> bool:
    """Make the journal of an output of version 0.2; False if there is no output."""
    from ramen.classify import earlier

    try:
        found = earlier.read(path)
    except ValueError as error:
        raise OtherOutputError(f"{error}: {start_again(path)}") from None
    if found is None:
        if path.exists():
            raise OtherOutputError(
                f"{path} exists but has no journal ({journal_path(path).name}) of what made it: "
                f"{start_again(path)}"
            )
        return False
    _write_journal(path, found.identity, found.lines())
    found.remove()
    return True


def check_output(path: Path) -> None:
    """ValueError if the suffix is none of ``SUFFIXES``; ModuleNotFoundError if what writes it is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--out must end with one of {', '.join(SUFFIXES)}, got {path}")
    if path.is_dir():
        raise ValueError(f"--out must be a file, got the folder {path}")
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def start_again(path: Path) -> str:
    """What a user can do about an output that is refused."""
    return f"choose another --out, or remove {path} and {journal_path(path)} to start again"


def _write_all(file: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file.fileno(), rest) :]


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"  # ASCII: names of files need not be valid Unicode


def _short(value: object) -> str:
    if isinstance(value, list):
        listed = ", ".join(map(str, value[:4]))
        return f"{listed}, ... ({len(value)})" if len(value) > 4 else listed
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={entry}" for name, entry in value.items()) or "none"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:16]}..."
