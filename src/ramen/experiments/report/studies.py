"""Studies on a page: tables, settings, and a figure of the shares by similarity."""

from collections.abc import Iterator, Mapping
from typing import Any

from ramen.experiments.figures import results
from ramen.experiments.figures.style import page_svg
from ramen.experiments.html import Markup, element, svg_figure
from ramen.experiments.report.provenance import facts_list
from ramen.experiments.studies.study_result import stored_table
from ramen.experiments.tables.html import html_table

_READINGS = {"all": "all pairs", "class": "pairs of one pseudo-class"}


def problem(study: Mapping[str, Any]) -> str | None:
    """Why a study cannot be shown; None if it can."""
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
        yield html_table(stored_table(table), f"study-{place}-{number}")
    known = {name: study[name] for name in ("experiment", "provenance") if study.get(name)}
    if known:
        blocks = [element("div", facts_list(part)) for part in known.values()]
        yield element("details", element("summary", "Settings"), element("div", *blocks))


def _bins(study: Mapping[str, Any]) -> Iterator[Markup]:
    """Bars for each way to choose pairs; nothing for other studies."""
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
    yield svg_figure(page_svg(figure), f"Share of pairs of one domain by similarity: {', '.join(series)}")
