"""The table model: cells, columns, rows. Other modules of this package render it in each format.

A table has text for people, and records of plain numbers for programs; CSV writes the records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ramen.experiments.analysis.spread import Spread

MARK = "*"  # follows a number that differs from the paper's

Emphasis = Literal["best", "second", "aside"]


@dataclass(frozen=True)
class Link:
    """A text that leads to an anchor of the same page; formats other than HTML show the cell's text."""

    text: str
    anchor: str


@dataclass(frozen=True)
class Cell:
    """One place in a table.

    Attributes:
        text: What is printed; empty if there is nothing to show.
        emphasis: How it stands out from its column.
        marked: Whether it differs from the paper's number.
        value: The exact value, by which a page sorts and which it copies.
        deviation: The exact number after the sign ±.
        hint: An explanation that a page shows on hovering.
        links: On a page, shown instead of the text.
        anchor: In the first cell of a row: the row's id on a page.
        method: In the first cell of a row: the method's name, by which a page filters rows.
    """

    text: str
    emphasis: Emphasis | None = None
    marked: bool = False
    value: float | str | None = None
    deviation: float | None = None
    hint: str | None = None
    links: tuple[Link, ...] = ()
    anchor: str | None = None
    method: str | None = None


@dataclass(frozen=True)
class Column:
    """A heading and how its cells are aligned: numbers right, words left.

    Attributes:
        head: The heading.
        align: The side; a page sorts right-aligned columns by number, others by word.
        hint: An explanation that a page shows on hovering.
        spread: What the number after the sign ± is.
    """

    head: str
    align: Literal["left", "right"] = "right"
    hint: str | None = None
    spread: str = "deviation"


ColumnCells = tuple[Column, Sequence[Cell]]


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

    @classmethod
    def from_columns(
        cls,
        title: str,
        columns: Sequence[ColumnCells],
        notes: Sequence[str] = (),
        records: Sequence[dict[str, Any]] = (),
    ) -> "Table":
        """A table of columns with their cells, so that several tables can share a column."""
        heads = tuple(column for column, _ in columns)
        rows = tuple(zip(*(cells for _, cells in columns), strict=True))
        return cls(title, heads, rows, tuple(notes), tuple(records))


def number_cell(value: float | None, form: str = ".2f", *, hint: str | None = None) -> Cell:
    """A number in a format of Python's; nothing for None.

    >>> number_cell(-0.004, "+z.2f").text, number_cell(None).text
    ('+0.00', '')
    """
    return Cell("", hint=hint) if value is None else Cell(format(value, form), value=value, hint=hint)


def spread_cell(
    value: Spread | None, form: str = ".2f", emphasis: Emphasis | None = None, *, hint: str | None = None
) -> Cell:
    """A mean with its deviation, if it has one.

    >>> spread_cell(Spread(1.234, 0.5, 3)).text, spread_cell(Spread(1.234, None, 1), "+.1f").text
    ('1.23 ± 0.50', '+1.2')
    """
    if value is None:
        return Cell("", hint=hint)
    text = format(value.mean, form)
    if value.deviation is not None:
        text += f" \N{PLUS-MINUS SIGN} {format(value.deviation, form.lstrip('+z'))}"
    return Cell(text, emphasis, value=value.mean, deviation=value.deviation, hint=hint)


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
