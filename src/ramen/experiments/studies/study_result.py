"""What a study gives: a result with tables for people and the numbers behind them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from ramen.experiments.tables.table import Cell, Column, Table, print_tables

Advance = Callable[[str, int, int], object]  # what is going on, how much is done, how much there is


def no_advance(what: str, done: int, total: int) -> None:
    """For those who do not watch."""


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


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print a study's tables and their notes."""
    console.print(result["title"], style="bold", highlight=False, markup=False)
    console.print()
    tables = [
        text_table(table["title"], table["columns"], table["rows"], *filter(None, [table["note"]]))
        for table in result["tables"]
    ]
    print_tables(console, tables)


def number(value: float | None, digits: int = 1) -> str:
    """A number as tables have it.

    >>> number(3.14159, 2), number(None)
    ('3.14', '-')
    """
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.0305), duration(2.777), duration(848), duration(416538)
    ('30.5 ms', '2.8 s', '14m08s', '115h42m')
    """
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m{rest:02}s"
