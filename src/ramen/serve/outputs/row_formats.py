"""Results as rows of a file: CSV for spreadsheets, JSON lines for programs.

A file may end in the middle of a row, if the process that wrote it was killed. Each format knows where its
rows end, so that such a rest is noticed.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any, Protocol

from ramen.serve.outputs.readable_names import original, readable
from ramen.serve.result import Result

COLUMNS = (
    "file",
    "label",
    "probability",
    "zero_shot_label",
    "zero_shot_probability",
    "changed",
    "adapted",
    "error",
    "entropy",
    "zero_shot_entropy",
    "support",
    "state_version",
)
TOP = 5  # classes in a result
_NUMBERS = ("probability", "zero_shot_probability", "entropy", "zero_shot_entropy")
_FLAGS = {"true": True, "false": False}


class RowFormat(Protocol):
    """How results are written to a file, one row each."""

    def header(self) -> bytes:
        """What the file starts with."""

    def encode(self, result: Result) -> bytes:
        """A result's row, with the end of its line."""

    def decode(self, row: bytes) -> Result:
        """The result of a row; ValueError if it is damaged."""

    def rows(self, file: IO[bytes]) -> Iterator[bytes]:
        """The complete rows of an open file, after its header; ValueError if the header is another one."""


class JsonRows:
    """One JSON object per line, with everything that a result has."""

    def header(self) -> bytes:
        """Nothing."""
        return b""

    def encode(self, result: Result) -> bytes:
        """A line."""
        return json.dumps(as_plain(result), ensure_ascii=False).encode() + b"\n"

    def decode(self, row: bytes) -> Result:
        """The result of a line."""
        try:
            return from_plain(json.loads(row))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no result of this command ({type(error).__name__}: {error})") from None

    def rows(self, file: IO[bytes]) -> Iterator[bytes]:
        """Lines that have an end."""
        yield from (line for line in file if line.endswith(b"\n"))


class CsvRows:
    """Columns for spreadsheets: ``COLUMNS``, then the second to fifth class with its probability.

    Args:
        classes: How many there are: with two classes there is no third one to write.
    """

    def __init__(self, classes: int) -> None:
        places = range(2, min(TOP, classes) + 1)
        others = [name for place in places for name in (f"label_{place}", f"probability_{place}")]
        self.columns = (*COLUMNS, *others)

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
        cells = [*map(_cell, values[:width]), *[""] * (width - len(values))]
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(cells)
        return buffer.getvalue().encode()

    def decode(self, row: bytes) -> Result:
        """The result of a row."""
        cells = _parse(row)
        if len(cells) != len(self.columns):
            raise ValueError(f"a row must have {len(self.columns)} columns, got {len(cells)}")
        values: dict[str, Any] = dict(zip(self.columns, (cell or None for cell in cells), strict=True))
        for name in _NUMBERS:
            values[name] = None if values[name] is None else float(values[name])
        values["support"] = None if values["support"] is None else int(values["support"])
        values["state_version"] = int(values["state_version"] or "")
        if values["adapted"] not in _FLAGS:
            raise ValueError(f"adapted must be true or false, got {values['adapted']!r}")
        values["adapted"] = _FLAGS[values["adapted"]]
        others = [values.pop(name) for name in self.columns[len(COLUMNS) :]]
        first = [] if values["label"] is None else [values["label"], values["probability"]]
        top = [cell for cell in (*first, *others) if cell is not None]
        values["top"] = [[top[n], float(top[n + 1])] for n in range(0, len(top), 2)]
        return from_plain(values)

    def rows(self, file: IO[bytes]) -> Iterator[bytes]:
        """Rows whose quotes are closed and whose line has an end."""
        found = _records(file)
        header = next(found, None)
        if header is not None and tuple(_parse(header.removeprefix(b"\xef\xbb\xbf"))) != self.columns:
            raise ValueError(f"its first line must be {','.join(self.columns)}")
        yield from found


def _records(file: IO[bytes]) -> Iterator[bytes]:
    record = b""
    for line in file:
        record += line
        # a quote within quotes is written twice: a complete row has an even number of them
        if line.endswith(b"\n") and record.count(b'"') % 2 == 0:
            yield record
            record = b""


def _parse(row: bytes) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(row.decode(), newline="")))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _cell(value: object) -> str:
    if value is None:
        return ""
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


def from_plain(values: dict[str, Any]) -> Result:
    """What ``as_plain`` was given; ``changed`` follows from the labels."""
    rest = {name: value for name, value in values.items() if name not in ("file", "changed")}
    return Result.from_dict({**rest, "key": original(values["file"])})
