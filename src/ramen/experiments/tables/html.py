"""Tables in HTML, for a page whose script sorts, filters and copies them."""

from ramen.experiments.html import Markup, element, join, scrolling_box
from ramen.experiments.tables.table import MARK, Cell, Column, Table

MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
_SPREAD = " \N{PLUS-MINUS SIGN} "
_CLASSES = {"best": "best", "second": "second", "aside": "soft", None: None}


def html_table(table: Table, anchor: str) -> Markup:
    """The table with its title, its button for copying and its notes; ``anchor`` is its id."""
    heads = [
        element(
            "th",
            element("button", column.head, type="button", title=column.hint),
            scope="col",
            aria_sort="none",
            data_kind=_kind(column),
            data_spread=column.spread,
        )
        for column in table.columns
    ]
    rows = [
        element(
            "tr",
            *(
                _cell(cell, column, first=not n)
                for n, (cell, column) in enumerate(zip(row, table.columns, strict=True))
            ),
            data_place=place,
            data_method=row[0].method,
            id=row[0].anchor,
        )
        for place, row in enumerate(table.rows)
    ]
    title = f"{anchor}-title"
    return element(
        "div",
        element(
            "div",
            element("h3", table.title, id=title),
            element("button", "Copy as CSV", type="button", class_="csv", data_table=anchor),
            class_="head",
        ),
        scrolling_box(
            element(
                "div",
                element(
                    "table",
                    element("thead", element("tr", *heads)),
                    element("tbody", *rows),
                    id=anchor,
                    aria_labelledby=title,
                ),
                class_="scroll",
                tabindex="0",
                role="region",
                aria_labelledby=title,
            )
        ),
        *(element("p", note, class_="note") for note in table.notes),
        class_="table",
    )


def _kind(column: Column) -> str:
    return "text" if column.align == "left" else "number"


def _cell(cell: Cell, column: Column, *, first: bool) -> Markup:
    text_value = cell.text.strip() or None if column.align == "left" else None
    classes = [name for name in (_CLASSES[cell.emphasis], "bad" if cell.marked else None) if name]
    return element(
        "th" if first else "td",
        _shown(cell, column),
        scope="row" if first else None,
        data_kind=_kind(column),
        data_sort=text_value if cell.value is None else cell.value,
        data_deviation=cell.deviation,
        title=cell.hint,
        class_=" ".join(classes) or None,
    )


def _shown(cell: Cell, column: Column) -> Markup:
    if cell.links:
        links = [element("a", link.text, href=f"#{link.anchor}") for link in cell.links]
        return links[0] if len(links) == 1 else element("span", Markup(" ".join(links)), class_="seeds")
    text = cell.text.strip() or NOTHING
    if column.align == "right":
        text = text.replace("-", MINUS)
    mark = MARK if cell.marked else ""
    number, sign, spread = text.partition(_SPREAD)
    if cell.deviation is None or not sign:
        return join(text, mark)
    return join(number, element("span", f"{sign}{spread}", class_="spread"), mark)
