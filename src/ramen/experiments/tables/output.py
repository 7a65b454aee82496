"""Where tables are written: the terminal or a file, in one of the formats."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console

from ramen.experiments.tables.csv_records import csv_text
from ramen.experiments.tables.latex import latex
from ramen.experiments.tables.markdown import markdown_page
from ramen.experiments.tables.table import Table
from ramen.experiments.tables.terminal import print_tables, width
from ramen.utils import atomic_files
from ramen.utils.checks import choice

FORMATS = ("rich", "markdown", "latex", "csv")
_SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".txt": "rich"}


def choose_format(form: str | None, out: Path | None) -> str:
    """The requested format, or the one that the file's suffix stands for; for terminals without either.

    >>> choose_format(None, Path("table.tex"))
    'latex'
    """
    if form is not None:
        return choice("--format", form, FORMATS)
    if out is None:
        return "rich"
    if out.suffix not in _SUFFIXES:
        raise ValueError(f"--out must end with one of {', '.join(_SUFFIXES)}, got {out}; or give --format")
    return _SUFFIXES[out.suffix]


def write(tables: Sequence[Table], form: str, out: Path | None = None) -> None:
    """Write tables to a file, or to standard output."""
    if form == "rich" and out is None:
        console = Console()
        print_tables(console, widest_last(tables, console.width))
        return
    text = as_text(tables, form)
    if out is None:
        print(text, end="")
    else:
        atomic_files.write_text(out, text)


def as_text(tables: Sequence[Table], form: str) -> str:
    """Tables as the text of a file."""
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
    """The same tables; those too wide for a terminal come after those that fit."""
    return sorted(tables, key=lambda table: width(table, 0) > room)
