"""A small table, and how it is written: for terminals, Markdown, LaTeX, CSV.

A table has text for people and, beside it, records of plain numbers for programs; CSV writes the records.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

FORMATS = ("rich", "markdown", "latex", "csv")
MARK = "*"  # of a number that differs from the paper's
_STYLES = {"best": "bold", "second": "underline", "aside": "dim", None: ""}
_LATEX = {
    "\\": r"\textbackslash{}",
    **{char: "\\" + char for char in "_%&#${}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "<": r"$<$",
    ">": r"$>$",
    "—": "---",
}

Emphasis = Literal["best", "second", "aside"]


@dataclass(frozen=True)
class Cell:
    """Text, how it stands out, and whether it is marked as different from the paper's."""

    text: str
    emphasis: Emphasis | None = None
    marked: bool = False


@dataclass(frozen=True)
class Column:
    """A heading and the side that its cells keep to."""

    head: str
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Rows of cells below columns; the first column names the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    records: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row has {len(row)} cells, not {len(self.columns)}")


def width(table: Table, gap: int = 1) -> int:
    """How many characters the table takes in a terminal, without its notes."""
    return sum(_widths(table, gap))


def _widths(table: Table, gap: int) -> list[int]:
    """Of each column, with the place of a mark behind its text, and the gap."""
    return [
        max(len(text) for text in (column.head, *(row[place].text for row in table.rows))) + 1 + gap
        for place, column in enumerate(table.columns)
    ]


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print them; columns that do not fit follow below, a note that came before is not said again."""
    said: set[str] = set()
    for table in tables:
        gap = 0 if width(table, 0) <= console.width < width(table) else 1
        console.print(Text(table.title, style="bold"))
        for part in _parts(table, console.width, gap):
            for line in _lines(part, gap):
                console.print(line, no_wrap=True, crop=False, soft_wrap=True)
        for note in table.notes:
            if note not in said:
                console.print(Text(note, style="dim"))
        console.print()
        said |= set(table.notes)


def _parts(table: Table, room: int, gap: int) -> list[Table]:
    first, *widths = _widths(table, gap)
    blocks: list[list[int]] = [[]]
    used = first
    for place, wide in enumerate(widths, start=1):
        if blocks[-1] and used + wide > room:
            blocks.append([])
            used = first
        blocks[-1].append(place)
        used += wide
    even = -(-len(widths) // len(blocks))  # no column is left alone where others could stand beside it
    evenly = [list(range(1, len(table.columns))[at : at + even]) for at in range(0, len(widths), even)]
    if all(first + sum(widths[place - 1] for place in block) <= room for block in evenly):
        blocks = evenly
    return [
        Table(
            table.title,
            (table.columns[0], *(table.columns[place] for place in block)),
            tuple((row[0], *(row[place] for place in block)) for row in table.rows),
        )
        for block in blocks
    ]


def _lines(table: Table, gap: int) -> Iterator[Text]:
    widths = [wide - 1 - gap for wide in _widths(table, gap)]
    heads = tuple(Cell(column.head, "best") for column in table.columns)
    for row in (heads, *table.rows):
        line = Text()
        for cell, column, wide in zip(row, table.columns, widths, strict=True):
            style = f"{_STYLES[cell.emphasis]}{' red' if cell.marked else ''}"
            space = " " * (wide - len(cell.text))
            line.append(space if column.align == "right" else "").append(cell.text, style=style)
            # what is not marked leaves the mark's place free, so that digits stand below each other
            line.append(MARK if cell.marked else " ", style="red")
            line.append((space if column.align == "left" else "") + " " * gap)
        line.rstrip()
        yield line


def markdown_page(tables: Sequence[Table]) -> str:
    """Several tables; a note that came before is not said again."""
    pages, said = [], set[str]()
    for table in tables:
        fresh = tuple(note for note in table.notes if note not in said)
        pages.append(markdown(replace(table, notes=fresh)))
        said |= set(table.notes)
    return "\n".join(pages)


def markdown(table: Table) -> str:
    """As a Markdown table: best bold, second best in italics."""
    heads = [_markdown_text(column.head) for column in table.columns]
    rulers = ["---" if column.align == "left" else "---:" for column in table.columns]
    lines = [f"**{_markdown_text(table.title)}**", "", _pipes(heads), _pipes(rulers)]
    lines += [_pipes([_markdown_cell(cell) for cell in row]) for row in table.rows]
    lines += [f"\n{_markdown_text(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    for char in "\\|*_`<":
        text = text.replace(char, f"\\{char}")
    return text


def _markdown_cell(cell: Cell) -> str:
    text = _markdown_text(cell.text)
    around = {"best": "**", "second": "_"}.get(cell.emphasis or "", "") if text else ""
    return f"{around}{text}{around}{_markdown_text(MARK) if cell.marked else ''}"


def latex(table: Table) -> str:
    r"""As a LaTeX table; it needs the package ``booktabs``.

    >>> print(latex(Table("a_b", (Column("100 %", "left"),), ((Cell("x & y"),),))).splitlines()[3])
      100 \% \\
    """
    letters = "".join("l" if column.align == "left" else "r" for column in table.columns)
    lines = [
        r"\begin{table}",
        rf"\begin{{tabular}}{{{letters}}}",
        r"\toprule",
        _ampersands([_latex_text(column.head) for column in table.columns]),
        r"\midrule",
        *(_ampersands([_latex_cell(cell) for cell in row]) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_latex_text(' '.join([_sentence(table.title), *map(_sentence, table.notes)]))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _ampersands(cells: Sequence[str]) -> str:
    return rf"  {' & '.join(cells)} \\"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def _latex_cell(cell: Cell) -> str:
    text = _latex_text(cell.text)
    command = {"best": r"\textbf", "second": r"\underline"}.get(cell.emphasis or "")
    return f"{f'{command}{{{text}}}' if command and text else text}{'$^{*}$' if cell.marked else ''}"


def without_empty_columns(table: Table) -> Table:
    """The table without columns in which no row has text."""
    kept = [
        place
        for place in range(len(table.columns))
        if not place or any(row[place].text for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
    )


def signed(value: float, decimals: int = 2) -> str:
    """A difference with its sign; what rounds to zero has a plus.

    >>> signed(-0.004), signed(-0.4)
    ('+0.00', '-0.40')
    """
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def csv_text(tables: Sequence[Table]) -> str:
    """The records of tables of one kind, as RFC 4180 has it."""
    records = [record for table in tables for record in table.records]
    names = list(dict.fromkeys(name for record in records for name in record))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()
