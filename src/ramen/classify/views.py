"""What users read of an output: CSV for spreadsheets, JSON lines for programs, Parquet for tables."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ramen.classify.files import readable
from ramen.client.result import Result
from ramen.utils.files import atomic_write

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
FORMULAS = ("prefix", "keep")
_ACTIVE = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins with one of these
_PARQUET_ROWS = 20_000  # in memory at a time


class Rows(Protocol):
    """A file that grows row by row."""

    def header(self) -> bytes:
        """What the file starts with."""

    def encode(self, result: Result) -> bytes:
        """A result's row, with the end of its line."""


def rows_of(path: Path, classes: int, formulas: str) -> Rows | None:
    """The rows of an output, by its suffix; None for a file that cannot grow."""
    kinds: dict[str, Rows] = {".csv": CsvRows(classes, formulas), ".jsonl": JsonRows()}
    return kinds.get(path.suffix.lower())


class JsonRows:
    """One JSON object per line, with everything that a result has."""

    def header(self) -> bytes:
        """Nothing."""
        return b""

    def encode(self, result: Result) -> bytes:
        """A line."""
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


def check_parquet() -> None:
    """ModuleNotFoundError, with what to install, if the package that writes Parquet is missing."""
    _pyarrow()


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
