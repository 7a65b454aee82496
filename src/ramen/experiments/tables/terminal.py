"""Tables in a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from ramen.experiments.tables.table import MARK, Cell, Table

_STYLES = {"best": "bold", "second": "underline", "aside": "dim", None: ""}


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print tables; columns that do not fit follow below, a repeated note is printed once."""
    printed: set[str] = set()
    for table in tables:
        gap = 0 if width(table, 0) <= console.width < width(table) else 1
        if table.title:
            console.print(Text(table.title, style="bold"))
        for part in _parts(table, console.width, gap):
            for line in _lines(part, gap):
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
        max(len(text) for text in (column.head, *(row[place].text for row in table.rows))) + 1 + gap
        for place, column in enumerate(table.columns)
    ]


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
    even = -(-len(widths) // len(blocks))  # no column is left alone if others fit beside it
    evenly = [
        list(range(1, len(table.columns))[at : at + even]) for at in range(0, len(widths), max(even, 1))
    ]
    if all(first + sum(widths[place - 1] for place in block) <= room for block in evenly):
        blocks = evenly or blocks
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
            # The mark has a place of its own, so that the digits of a column stay aligned.
            line.append(MARK if cell.marked else " ", style="red")
            line.append((space if column.align == "left" else "") + " " * gap)
        line.rstrip()
        yield line
