"""The result of a study: tables for people and the numbers behind them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from ramen.experiments.tables.table import Cell, Column, Table
from ramen.experiments.tables.terminal import print_tables

ReportProgress = Callable[[str, int, int], object]  # the step's name, how much of it is done, how much in all
_MISSING = (None, "", "-")
HARM_MARK = "!"  # follows a number that is harm
_NUMBER = re.compile(rf"([+-]?\d[\d,]*\.?\d*)(?: ± (\d+\.?\d*))?(?: {HARM_MARK})?")


def no_progress(step: str, done: int, total: int) -> None:
    """Reports nothing."""


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> Table:
    """A table of texts; the first column names the rows."""
    columns = tuple(Column(head, "right" if number else "left") for number, head in enumerate(heads))
    return Table(title, columns, tuple(tuple(map(Cell, row)) for row in rows), notes)


def study(name: str, title: str, tables: Sequence[Table], data: Mapping[str, Any]) -> dict[str, Any]:
    """A study's result, without its provenance, in the shape that ``write_result`` takes."""
    return {
        "kind": "study",
        "study": name,
        "title": title,
        "tables": [
            {
                "title": table.title,
                "columns": [column.head for column in table.columns],
                "rows": [[cell.text for cell in row] for row in table.rows],
                "note": " ".join(table.notes),
            }
            for table in tables
        ],
        "data": dict(data),
    }


def stored_table(table: Mapping[str, Any]) -> Table:
    """A table of a study's result; columns in which every text is a number become columns of numbers."""
    numeric = [_is_numeric([row[place] for row in table["rows"]]) for place in range(len(table["columns"]))]
    columns = tuple(
        Column(str(head), "right" if is_number else "left")
        for head, is_number in zip(table["columns"], numeric, strict=True)
    )
    rows = tuple(
        tuple(
            _number(value) if is_number else _text(value)
            for value, is_number in zip(row, numeric, strict=True)
        )
        for row in table["rows"]
    )
    notes = (str(table["note"]),) if table.get("note") else ()
    return Table(str(table.get("title") or "Results"), columns, rows, notes)


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value not in _MISSING]
    return bool(values) and all(_number(value).value is not None for value in known)


def _text(value: Any) -> Cell:
    return Cell("" if value in _MISSING else str(value))


def _number(value: Any) -> Cell:
    """A cell with its value, also of a number stored as text such as ``40.10 ± 0.20``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.4g}", value=value)
    found = _NUMBER.fullmatch(str(value))
    if found is None:
        return _text(value)
    deviation = None if found[2] is None else float(found[2])
    return Cell(str(value), value=float(found[1].replace(",", "")), deviation=deviation)


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print a study's tables and their notes."""
    console.print(result["title"], style="bold", highlight=False, markup=False)
    console.print()
    print_tables(console, [stored_table(table) for table in result["tables"]])


def number(value: float | None, digits: int = 1) -> str:
    """A number as studies print it.

    >>> number(3.14159, 2), number(None)
    ('3.14', '-')
    """
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time in readable units.

    >>> duration(0.0305), duration(2.777), duration(848), duration(416538)
    ('30.5 ms', '2.8 s', '14m08s', '115h42m')
    """
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m{rest:02}s"
