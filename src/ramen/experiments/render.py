"""Tables of numbers, and their text: for a terminal, in Markdown, LaTeX and CSV.

A table has columns of numbers or words for people, and records of plain values for programs.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from ramen.utils import files
from ramen.utils.checks import choice

MARK = "*"  # follows a number that differs from the paper's
WORDS = ""  # the form of a column of words, which are on the left
PLUS_MINUS = " \N{PLUS-MINUS SIGN} "
FORMATS = ("rich", "markdown", "latex", "csv")
_SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".txt": "rich"}


class Cell(NamedTuple):
    """What is printed in one place."""

    text: str
    style: str = ""  # best, second or aside
    marked: bool = False


@dataclass(frozen=True)
class Column:
    """Numbers or words by row, and how they are printed."""

    head: str
    values: Sequence[Any]  # one value per row; None for nothing
    # a format of Python's for numbers, s for words on the right, WORDS for words on the left
    form: str = ".2f"
    spread: Sequence[float | None] | None = None  # the numbers after the sign ±
    what: str = "deviation"  # what these are
    texts: Sequence[str | None] | None = None  # printed instead of the values, by which a page still sorts
    ranked: bool = False  # whether the best and the second best value stand out
    marked: Sequence[bool] | None = None  # which values differ from the paper's
    aside: bool = False  # whether the column is the paper's, not ours
    missing: str = ""  # printed where there is no value
    hint: str | None = None  # an explanation that a page shows on hovering
    hints: Sequence[str | None] | None = None  # likewise, of each value
    # on a page, the texts and anchors that are shown instead
    links: Sequence[Sequence[tuple[str, str]] | None] | None = None

    @property
    def left(self) -> bool:
        """Whether its text is on the left."""
        return self.form == WORDS

    def text(self, row: int) -> str:
        """What is printed in a row."""
        value = self.values[row]
        if self.texts is not None:
            return self.texts[row] or ""
        if missing(value):
            return self.missing
        if self.form in (WORDS, "s"):
            return str(value)
        shown = format(int(value) if self.form.endswith("d") else value, self.form)
        spread = None if self.spread is None else self.spread[row]
        return shown if missing(spread) else f"{shown}{PLUS_MINUS}{format(spread, self.form.lstrip('+z'))}"

    def longer(self, values: Sequence[Any], texts: Sequence[str] | None = None) -> "Column":
        """The column with these values below its own."""
        blank = [None] * len(values)
        below: dict[str, Any] = {"values": values, "texts": texts or blank}
        for name in ("values", "spread", "texts", "marked", "hints", "links"):
            own = getattr(self, name)
            below[name] = own if own is None else [*own, *below.get(name, blank)]
        return replace(self, **below)


def missing(value: Any) -> bool:
    """Whether a value is None or not a number."""
    return value is None or value != value


@dataclass(frozen=True)
class Table:
    """Columns side by side; the first one names the rows."""

    title: str
    columns: Sequence[Column]  # with one value per row each
    notes: Sequence[str] = ()  # below it
    # the numbers for programs, which CSV and JSON have
    records: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    aside: Sequence[bool] | None = None  # which rows are the paper's or references, not ours
    methods: Sequence[str] | None = None  # by which a page filters each row
    ids: Sequence[str] | None = None  # the ids of rows on a page

    def __post_init__(self) -> None:
        for column in self.columns:
            if len(column.values) != len(self):
                raise ValueError(
                    f"table {self.title!r}: column {column.head!r} has {len(column.values)} values, not "
                    f"{len(self)}"
                )

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.columns[0].values)

    @classmethod
    def of_texts(
        cls, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *notes: str, words: int = 1
    ) -> "Table":
        """A table of what is text already; the first columns, ``words`` of them, are on the left."""
        for row in rows:
            if len(row) != len(heads):
                raise ValueError(f"table {title!r}: a row has {len(row)} cells, not {len(heads)}")
        columns = [
            Column(head, [row[place] for row in rows], WORDS if place < words else "s")
            for place, head in enumerate(heads)
        ]
        return cls(title, columns, notes)

    def trimmed(self) -> "Table":
        """The table without columns in which no row has text."""
        kept = [
            column
            for place, column in enumerate(self.columns)
            if not place or any(column.text(row) not in ("", column.missing) for row in range(len(self)))
        ]
        return replace(self, columns=kept)

    def cells(self) -> list[list[Cell]]:
        """What is printed, row by row."""
        return [list(row) for row in zip(*map(self._cells_of, self.columns), strict=True)]

    def _cells_of(self, column: Column) -> list[Cell]:
        aside = self.aside or [False] * len(self)
        styles = self._ranks(column, aside)
        return [
            Cell(
                column.text(row),
                "aside" if column.aside or aside[row] else styles[row],
                bool(column.marked is not None and column.marked[row]),
            )
            for row in range(len(self))
        ]

    def _ranks(self, column: Column, aside: Sequence[bool]) -> list[str]:
        """Best and second best as they are printed; none if there is only one value."""
        if not column.ranked:
            return [""] * len(self)
        decimals = int(column.form.rstrip("f").rpartition(".")[2])
        shown = [
            None if missing(value) or aside[row] else round(value, decimals)
            for row, value in enumerate(column.values)
        ]
        ranks = sorted({value for value in shown if value is not None}, reverse=True)
        names: dict[float | None, str] = {}
        if len(ranks) > 2:
            names[ranks[1]] = "second"
        if len(ranks) > 1:
            names[ranks[0]] = "best"
        return [names.get(value, "") for value in shown]


# -- a terminal ---------------------------------------------------------------------------------------------

_STYLES = {"best": "bold", "second": "underline", "aside": "dim", "": ""}


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print tables; columns that do not fit follow below, a repeated note is printed once."""
    printed: set[str] = set()
    for table in tables:
        gap = 0 if width(table, 0) <= console.width < width(table) else 1
        if table.title:
            console.print(Text(table.title, style="bold"))
        for line in _lines(table, console.width, gap):
            console.print(line, no_wrap=True, crop=False, soft_wrap=True)
        for note in table.notes:
            if note not in printed:
                console.print(Text(note, style="dim"))
        console.print()
        printed |= set(table.notes)


def width(table: Table, gap: int = 1) -> int:
    """How many characters wide the table is, without its notes."""
    return sum(_widths(table, gap))


def _widths(table: Table, gap: int) -> list[int]:
    """The width of each column, with room for a mark after its text, and the gap."""
    return [
        max(len(text) for text in (column.head, *(column.text(row) for row in range(len(table))))) + 1 + gap
        for column in table.columns
    ]


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns that are printed side by side, beside the first one."""
    first, others = widths[0], range(1, len(widths))
    blocks: list[list[int]] = [[]]
    used = first
    for place in others:
        if blocks[-1] and used + widths[place] > room:
            blocks.append([])
            used = first
        blocks[-1].append(place)
        used += widths[place]
    size = max(1, -(-len(others) // len(blocks)))  # no column is left alone if others fit beside it
    evenly = [list(others[at : at + size]) for at in range(0, len(others), size)]
    fits = all(first + sum(widths[place] for place in block) <= room for block in evenly)
    return evenly if fits and evenly else blocks


def _lines(table: Table, room: int, gap: int) -> Iterator[Text]:
    widths = _widths(table, gap)
    heads = [Cell(column.head, "best") for column in table.columns]
    rows = [heads, *table.cells()]
    for block in _blocks(widths, room):
        for row in rows:
            line = Text()
            for place in (0, *block):
                cell, left = row[place], table.columns[place].left
                style = f"{_STYLES[cell.style]}{' red' if cell.marked else ''}"
                space = " " * (widths[place] - 1 - gap - len(cell.text))
                line.append("" if left else space).append(cell.text, style=style)
                # The mark has a place of its own, so that the digits of a column stay aligned.
                line.append(MARK if cell.marked else " ", style="red")
                line.append((space if left else "") + " " * gap)
            line.rstrip()
            yield line


# -- text ---------------------------------------------------------------------------------------------------


def markdown(*tables: Table) -> str:
    """Tables in Markdown: the best value bold, the second best in italics; notes are not repeated."""
    pages, written = [], set[str]()
    for table in tables:
        lines = [f"**{_plain(table.title)}**", ""]
        lines.append(_pipes([_plain(column.head) for column in table.columns]))
        lines.append(_pipes(["---" if column.left else "---:" for column in table.columns]))
        lines += [_pipes([_markdown_cell(cell) for cell in row]) for row in table.cells()]
        lines += [f"\n{_plain(note)}" for note in table.notes if note not in written]
        written |= set(table.notes)
        pages.append("\n".join(lines) + "\n")
    return "\n".join(pages)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    return text.translate({ord(char): f"\\{char}" for char in "\\|*_`<"})


def _markdown_cell(cell: Cell) -> str:
    around = {"best": "**", "second": "_"}.get(cell.style, "") if cell.text else ""
    return f"{around}{_plain(cell.text)}{around}{_plain(MARK) if cell.marked else ''}"


_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{char: "\\" + char for char in "_%&#${}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "<": r"$<$",
    ">": r"$>$",
    "\N{EM DASH}": "---",
}


def latex(table: Table) -> str:
    r"""A LaTeX table; it needs the package ``booktabs``.

    >>> print(latex(Table.of_texts("a_b", ["100 %"], [["x & y"]])).splitlines()[3])
      100 \% \\
    """
    sentences = (text if text.endswith(".") else f"{text}." for text in (table.title, *table.notes))
    lines = [
        r"\begin{table}",
        rf"\begin{{tabular}}{{{''.join('l' if column.left else 'r' for column in table.columns)}}}",
        r"\toprule",
        _ampersands([_escaped(column.head) for column in table.columns]),
        r"\midrule",
        *(_ampersands([_latex_cell(cell) for cell in row]) for row in table.cells()),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_escaped(' '.join(sentences))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _ampersands(cells: Sequence[str]) -> str:
    return rf"  {' & '.join(cells)} \\"


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(char, char) for char in text)


def _latex_cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    command = {"best": r"\textbf", "second": r"\underline"}.get(cell.style)
    return f"{f'{command}{{{text}}}' if command and text else text}{'$^{*}$' if cell.marked else ''}"


def csv_text(tables: Sequence[Table]) -> str:
    """The records of tables of one kind, in the format of RFC 4180."""
    records = [record for table in tables for record in table.records]
    names = list(dict.fromkeys(name for record in records for name in record))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


# -- output -------------------------------------------------------------------------------------------------


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
        # those too wide for the terminal come after those that fit
        print_tables(console, sorted(tables, key=lambda table: width(table, 0) > console.width))
        return
    text = as_text(tables, form)
    if out is None:
        print(text, end="")
    else:
        files.write_text(out, text)


def as_text(tables: Sequence[Table], form: str) -> str:
    """Tables as the text of a file."""
    if form == "csv":
        return csv_text(tables)
    if form == "latex":
        return "\n".join(map(latex, tables))
    if form == "markdown":
        return markdown(*tables)
    file = io.StringIO()
    print_tables(Console(file=file, width=max([100, *(width(table, 0) for table in tables)])), tables)
    return file.getvalue()


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
