"""Where tables go: the terminal or a file, in one of the formats."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console

from ramen.experiments.tables.table import FORMATS, Table, csv_text, latex, markdown_page, print_tables, width
from ramen.utils.checks import choice

_ENDINGS = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".txt": "rich"}


def choose_format(form: str | None, out: Path | None) -> str:
    """The format asked for, or the one that the file's ending means; for terminals without either.

    >>> choose_format(None, Path("table.tex"))
    'latex'
    """
    if form is not None:
        return choice("--format", form, FORMATS)
    if out is None:
        return "rich"
    if out.suffix not in _ENDINGS:
        raise ValueError(f"--out {out}: its format is not known by {', '.join(_ENDINGS)}; give --format")
    return _ENDINGS[out.suffix]


def write(tables: Sequence[Table], form: str, out: Path | None = None) -> None:
    """Write tables to a file, or to standard output."""
    if form == "rich" and out is None:
        console = Console()
        print_tables(console, widest_last(tables, console.width))
        return
    text = as_text(tables, form)
    if out is None:
        print(text, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as file:  # CSV ends its lines itself
        file.write(text)


def as_text(tables: Sequence[Table], form: str) -> str:
    """Tables as a file has them."""
    if form == "csv":
        return csv_text(tables)
    if form == "latex":
        return "\n".join(map(latex, tables))
    if form == "markdown":
        return markdown_page(tables)
    console = Console(file=StringIO(), width=max([100, *(width(table, 0) for table in tables)]))
    print_tables(console, tables)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def widest_last(tables: Sequence[Table], room: int) -> list[Table]:
    """Tables that do not fit into a terminal go behind those that do."""
    return sorted(tables, key=lambda table: width(table, 0) > room)
