"""Parts of a page. Text is escaped wherever it goes in; what is HTML already says so by its type."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ramen.experiments.analysis.scoring import Spread

MINUS = "\N{MINUS SIGN}"
_VOID = {"br", "hr", "img", "input", "link", "meta"}


class Markup(str):
    """HTML, not to be escaped once more."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """An element; an attribute that is None or False is left out, ``class_`` and ``data_x`` are as expected.

    >>> element("a", "<b>", href="#1", class_="x", data_sort=None)
    '<a href="#1" class="x">&lt;b&gt;</a>'
    """
    opening = "".join(
        f" {_attribute(name)}" if value is True else f' {_attribute(name)}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{opening}>")
    return Markup(f"<{tag}{opening}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    """One after the other."""
    return Markup(
        "".join(str(child) if isinstance(child, Markup) else html.escape(child) for child in children)
    )


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by: None where there is nothing, which sorts last."""

    shown: str
    value: float | str | None = None
    deviation: float | None = None
    hint: str | None = None
    best: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Column:
    """A head and what stands below it."""

    name: str
    kind: Literal["text", "number"] = "number"
    hint: str | None = None
    spread: str = "deviation"  # what stands behind the sign ±


@dataclass(frozen=True)
class Row:
    """Cells; the first one names the row. ``method`` is what the page's filter looks at."""

    cells: Sequence[Cell]
    method: str | None = None
    anchor: str | None = None


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and copied."""

    anchor: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=list)
    note: str | None = None


NOTHING = "\N{EN DASH}"
MISSING = Cell(NOTHING)


def text(shown: object) -> Cell:
    """A cell of words."""
    return Cell(str(shown), str(shown)) if shown not in (None, "") else MISSING


def number(value: float | None, form: str = ".2f", **options: str | bool | None) -> Cell:
    """A cell with a number."""
    return MISSING if value is None else Cell(_written(value, form), value, **options)  # type: ignore[arg-type]


def _written(value: float, form: str) -> str:
    return format(value, form).replace("-", MINUS)


def spread(value: Spread | None, form: str = ".2f", **options: str | bool | None) -> Cell:
    """A cell with a mean and its deviation over seeds."""
    if value is None:
        return MISSING
    if value.deviation is None:
        return number(value.mean, form, **options)
    shown = join(_written(value.mean, form), element("span", f" ± {value.deviation:.2f}", class_="spread"))
    return Cell(shown, value.mean, value.deviation, **options)  # type: ignore[arg-type]


def without_empty_columns(table: Table) -> Table:
    """The table less the columns in which no row has a value."""
    kept = [
        place
        for place in range(len(table.columns))
        if not place or any(row.cells[place].value is not None for row in table.rows)
    ]
    rows = [replace(row, cells=[row.cells[place] for place in kept]) for row in table.rows]
    return replace(table, columns=[table.columns[place] for place in kept], rows=rows)


def render(table: Table) -> Markup:
    """The table with its title, its button for copying and its note."""
    heads = [
        element(
            "th",
            element("button", column.name, type="button", title=column.hint),
            scope="col",
            aria_sort="none",
            data_kind=column.kind,
            data_spread=column.spread,
        )
        for column in table.columns
    ]
    rows = [
        element("tr", *_cells(row, table.columns), data_place=place, data_method=row.method, id=row.anchor)
        for place, row in enumerate(table.rows)
    ]
    title = f"{table.anchor}-title"
    return element(
        "div",
        element(
            "div",
            element("h3", table.title, id=title),
            element("button", "Copy as CSV", type="button", class_="csv", data_table=table.anchor),
            class_="head",
        ),
        element(
            "div",
            element(
                "table",
                element("thead", element("tr", *heads)),
                element("tbody", *rows),
                id=table.anchor,
                aria_labelledby=title,
            ),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_labelledby=title,
        ),
        element("p", table.note, class_="note") if table.note else Markup(),
        class_="table",
    )


def _cells(row: Row, columns: Sequence[Column]) -> list[Markup]:
    if len(row.cells) != len(columns):
        raise ValueError(f"row must have {len(columns)} cells, got {len(row.cells)}")
    cells = []
    for place, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        cells.append(
            element(
                "td" if place else "th",
                cell.shown,
                scope=None if place else "row",
                data_kind=column.kind,
                data_sort=cell.value,
                data_deviation=cell.deviation,
                title=cell.hint,
                class_="best" if cell.best else "bad" if cell.marked else None,
            )
        )
    return cells


def picture(svg: str, alt: str, caption: str | None = None) -> Markup:
    """A figure inside the page; as an image of its own, so that names within do not meet those of others."""
    data = base64.b64encode(svg.encode()).decode()
    image = element("img", src=f"data:image/svg+xml;base64,{data}", alt=alt)
    return element(
        "figure",
        element("div", image, class_="picture"),
        element("figcaption", caption) if caption else Markup(),
    )
