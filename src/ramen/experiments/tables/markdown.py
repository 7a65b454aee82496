"""Tables in Markdown."""

from collections.abc import Sequence
from dataclasses import replace

from ramen.experiments.tables.table import MARK, Cell, Table


def markdown_page(tables: Sequence[Table]) -> str:
    """Several tables; a repeated note is written once."""
    pages, written = [], set[str]()
    for table in tables:
        fresh = tuple(note for note in table.notes if note not in written)
        pages.append(markdown(replace(table, notes=fresh)))
        written |= set(table.notes)
    return "\n".join(pages)


def markdown(table: Table) -> str:
    """A Markdown table: the best value bold, the second best in italics."""
    heads = [_escaped(column.head) for column in table.columns]
    rulers = ["---" if column.align == "left" else "---:" for column in table.columns]
    lines = [f"**{_escaped(table.title)}**", "", _pipes(heads), _pipes(rulers)]
    lines += [_pipes([_cell(cell) for cell in row]) for row in table.rows]
    lines += [f"\n{_escaped(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    for char in "\\|*_`<":
        text = text.replace(char, f"\\{char}")
    return text


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    around = {"best": "**", "second": "_"}.get(cell.emphasis or "", "") if text else ""
    return f"{around}{text}{around}{_escaped(MARK) if cell.marked else ''}"
