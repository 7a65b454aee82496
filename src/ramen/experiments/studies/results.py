"""What a study gives: a result with tables for people and the numbers behind them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

Advance = Callable[[str, int, int], object]  # what is going on, how much is done, how much there is


def no_advance(what: str, done: int, total: int) -> None:
    """For those who do not watch."""


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column names the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"rows of {self.title!r} must have {len(self.columns)} cells each")


def study(name: str, title: str, tables: Sequence[Table], data: dict[str, Any]) -> dict[str, Any]:
    """A study's result, without its provenance, in the shape that ``write_result`` takes."""
    return {
        "kind": "study",
        "study": name,
        "title": title,
        "tables": [asdict(table) for table in tables],
        "data": data,
    }


def cell(value: float | None, digits: int = 1) -> str:
    """A number as tables have it.

    >>> cell(3.14159, 2), cell(None)
    ('3.14', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.0305), duration(64.2), duration(848), duration(416538)
    ('30.5 ms', '1m04s', '14m08s', '115h42m')
    """
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m{rest:02}s"


def show(result: dict[str, Any], console: Console) -> None:
    """Print a study's tables and their notes."""
    console.print(result["title"], style="bold")
    for table in result["tables"]:
        shown = RichTable(title=table["title"])
        for number, column in enumerate(table["columns"]):
            shown.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
        for row in table["rows"]:
            shown.add_row(*row)
        console.print(shown)
        if table["note"]:
            console.print(table["note"], highlight=False, markup=False, soft_wrap=True)
