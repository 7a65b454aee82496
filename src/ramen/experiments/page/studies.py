"""Studies on a page: their tables as they are, similarity bins also as a figure."""

from collections.abc import Iterator, Mapping
from typing import Any

from ramen.experiments import figures
from ramen.experiments.figure_style import page_svg
from ramen.experiments.page.html import (
    MISSING,
    Cell,
    Column,
    Markup,
    Row,
    Table,
    element,
    picture,
    render,
    text,
)


def parts(study: Mapping[str, Any], place: int) -> Iterator[Markup]:
    """The study's figure, tables and settings.

    Args:
        study: A result with ``study``, ``title``, ``provenance`` and ``tables``; each of these has ``title``,
            ``columns``, ``rows`` and ``note``.
        place: Its number on the page.
    """
    for number, table in enumerate(study.get("tables") or []):
        if study.get("study") == "similarity_bins":
            yield from _bins(table)
        yield render(_table(table, f"study-{place}-{number}"))
    if study.get("provenance"):
        entries = [
            element("dt", name) + element("dd", element("code", str(value)))
            for name, value in study["provenance"].items()
        ]
        listed = element("dl", Markup("".join(entries)))
        yield element("details", element("summary", "Settings"), element("div", listed))


def _table(table: Mapping[str, Any], anchor: str) -> Table:
    columns = list(map(str, table["columns"]))
    numeric = [
        all(_is_number(row[place]) or row[place] is None for row in table["rows"])
        for place in range(len(columns))
    ]
    heads = [
        Column(name, "number" if is_number else "text")
        for name, is_number in zip(columns, numeric, strict=True)
    ]
    rows = [Row([_cell(value) for value in row]) for row in table["rows"]]
    return Table(anchor, str(table.get("title") or ""), heads, rows, table.get("note"))


def _cell(value: Any) -> Cell:
    if value is None:
        return MISSING
    if _is_number(value):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.4g}", value)
    return text(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bins(table: Mapping[str, Any]) -> Iterator[Markup]:
    """A bar for each row and numeric column behind the first; nothing for a table that has none."""
    names = list(map(str, table["columns"]))
    series = {
        name: [row[place] for row in table["rows"]]
        for place, name in enumerate(names)
        if place and table["rows"] and all(_is_number(row[place]) for row in table["rows"])
    }
    if series:
        labels = [str(row[0]) for row in table["rows"]]
        title = str(table.get("title") or "Similarity bins")
        figure = figures.bin_bars(labels, series, title=title, ylabel="%", xlabel=names[0])
        yield picture(page_svg(figure), f"{title}: {', '.join(series)} by {names[0]}")
