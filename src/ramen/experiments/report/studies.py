"""Studies on a page: their tables, what they measured, and the shares by similarity also as a figure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ramen.experiments.figures import results
from ramen.experiments.figures.style import page_svg
from ramen.experiments.report.html import (
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
from ramen.experiments.report.provenance import facts_list

_NUMBER = re.compile(r"([+-]?\d[\d,]*\.?\d*)(?: ± (\d+\.?\d*))?")
_READINGS = {"all": "all pairs", "class": "pairs of one pseudo-class"}


def problem(study: Mapping[str, Any]) -> str | None:
    """What keeps a study from being shown; None if nothing does."""
    tables = study.get("tables")
    if not isinstance(tables, list) or not tables:
        return f"study {study.get('study')!r} has no tables"
    for table in tables:
        columns, rows = table.get("columns"), table.get("rows")
        if not isinstance(columns, list) or not isinstance(rows, list):
            return f"study {study.get('study')!r} has a table without columns or rows"
        if any(len(row) != len(columns) for row in rows):
            return f"study {study.get('study')!r} has a row that does not fit its {len(columns)} columns"
    return None


def parts(study: Mapping[str, Any], place: int) -> Iterator[Markup]:
    """The study's figure, tables and settings.

    Args:
        study: A result with ``study``, ``title``, ``provenance`` and ``tables``; each of these has ``title``,
            ``columns``, ``rows`` and ``note``.
        place: Its number on the page.
    """
    yield from _bins(study)
    for number, table in enumerate(study["tables"]):
        yield render(_table(table, f"study-{place}-{number}"))
    known = {name: study[name] for name in ("experiment", "provenance") if study.get(name)}
    if known:
        blocks = [element("div", facts_list(part)) for part in known.values()]
        yield element("details", element("summary", "Settings"), element("div", *blocks))


def _table(table: Mapping[str, Any], anchor: str) -> Table:
    columns = []
    for place, name in enumerate(table["columns"]):
        cells = [_cell(row[place]) for row in table["rows"]]
        numeric = all(cell is MISSING or isinstance(cell.value, int | float) for cell in cells)
        columns.append(Column(str(name), "number" if numeric and cells else "text"))
    writers = [_cell if column.kind == "number" else text for column in columns]
    rows = [Row([write(value) for write, value in zip(writers, row, strict=True)]) for row in table["rows"]]
    return Table(anchor, str(table.get("title") or "Results"), columns, rows, table.get("note") or None)


def _cell(value: Any) -> Cell:
    """A number where it is one, also one that was written as text, ``40.10 ± 0.20``."""
    if value in (None, "", "-"):
        return MISSING
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.4g}", value)
    found = _NUMBER.fullmatch(str(value))
    if found is None:
        return text(value)
    deviation = None if found[2] is None else float(found[2])
    return Cell(str(value), float(found[1].replace(",", "")), deviation)


def _bins(study: Mapping[str, Any]) -> Iterator[Markup]:
    """Bars for each way to choose pairs; nothing for a study of something else."""
    data = study.get("data") if str(study.get("study")).startswith("similarity") else None
    if not data or not data.get("readings"):
        return
    series = {
        _READINGS.get(name, name): reading["shares"] for name, reading in data["readings"].items() if reading
    }
    if data.get("paper"):
        series["reported in the paper"] = data["paper"]
    labels = [str(place + 1) for place in range(max(map(len, series.values())))]
    figure = results.bin_bars(
        labels,
        series,
        title="Share of pairs that are of one domain",
        ylabel="%",
        xlabel="bin of pairs, from the most similar to the least",
    )
    yield picture(page_svg(figure), f"Share of pairs of one domain by similarity: {', '.join(series)}")
