"""The settings of every row: those that its runs share, and those in which they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from ramen.experiments.html import Markup, element, join
from ramen.experiments.tables.group_rows import GroupRow
from ramen.experiments.tables.html import html_table
from ramen.experiments.tables.table import Cell, Column, Table, number_cell

_HEADINGS = {
    "experiment": "Experiment",
    "preset": "Preset",
    "classifier": "Classifier",
    "dataset": "Data set",
    "stream": "Stream",
    "method": "Method",
    "versions": "Versions",
    "hardware": "Hardware",
    "other": "Run",
}


def settings_block(row: GroupRow, where: str) -> Markup:
    """A block that opens on a click, with all settings of a row's runs.

    Args:
        row: The group.
        where: The section's name, for the block's title.
    """
    runs = [flat_settings(result) for result in row.group.results]
    names = list(dict.fromkeys(name for run in runs for name in run))
    common = [
        name for name in names if len(runs) == 1 or all(run.get(name) == runs[0].get(name) for run in runs)
    ]
    own = [name for name in names if name not in common]
    parts: list[Markup] = [
        element(
            "p",
            "The settings that all runs of this row share, then those in which they differ.",
            class_="note",
        )
        if own
        else Markup()
    ]
    columns = []
    for part, heading in _HEADINGS.items():
        members = [name for name in common if name[0] == part]
        if members:
            columns.append(element("div", element("h3", heading), _list(members, runs[0])))
    parts.append(element("div", *columns, class_="columns"))
    parts.append(html_table(_runs_table(row, own, runs), f"{row.anchor}-runs"))
    seeds = ", ".join(map(str, row.group.seeds))
    summary = element(
        "summary", element("strong", row.name), f" · {where} · seed{'s'[: len(runs) > 1]} {seeds}"
    )
    return element("details", summary, element("div", *parts), id=row.anchor)


def flat_settings(result: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """All settings of a result by part and name, without the seed."""
    found: dict[tuple[str, str], Any] = {}
    for name, value in result["experiment"].items():
        if name != "seed":
            found |= _flatten("experiment", name, value)
    found |= _flatten("preset", "preset", result.get("preset"))
    found |= _flatten("preset", "overrides", result.get("overrides"))
    for part, block in (result.get("provenance") or {}).items():
        if part in _HEADINGS and isinstance(block, Mapping):
            for name, value in block.items():
                found |= _flatten(part, name, value)
        else:
            found |= _flatten("other", part, block)
    return found


def _flatten(part: str, name: str, value: Any) -> dict[tuple[str, str], Any]:
    if isinstance(value, Mapping) and value:
        found: dict[tuple[str, str], Any] = {}
        for inner, content in value.items():
            found |= _flatten(part, f"{name}: {inner}", content)
        return found
    return {(part, name): value}


def _list(names: Sequence[tuple[str, str]], values: Mapping[tuple[str, str], Any]) -> Markup:
    entries = (
        join(element("dt", name[1].replace("_", " ")), element("dd", _value(values[name]))) for name in names
    )
    return element("dl", *entries)


def facts_list(facts: Mapping[str, Any]) -> Markup:
    """A list of names and values, nested ones too."""
    flat: dict[tuple[str, str], Any] = {}
    for name, value in facts.items():
        flat |= _flatten("", name, value)
    return _list(list(flat), flat)


def _value(value: Any) -> Markup:
    """A value as HTML: missing values and booleans in words, all others as code."""
    if value is None or value in ({}, []):
        return element("span", "none", class_="soft")
    if isinstance(value, bool):
        return join("yes" if value else "no")
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return Markup("<br>".join(element("code", item) for item in value))
    return element("code", str(value))


def _runs_table(
    row: GroupRow, own: Sequence[tuple[str, str]], runs: Sequence[Mapping[tuple[str, str], Any]]
) -> Table:
    heads = [f"{_HEADINGS[part]}: {name}".replace("_", " ") for part, name in own]
    rows = []
    for seed, result, run in zip(row.group.seeds, row.group.results, runs, strict=True):
        values = [run.get(name) for name in own]
        rows.append(
            (
                Cell(str(seed), value=seed, anchor=row.run_anchor(seed)),
                number_cell(result["scores"]["average"], ".4f"),
                *(Cell("" if value is None else str(value)) for value in values),
            )
        )
    columns = (Column("Seed"), Column("Average, %"), *(Column(head, "left") for head in heads))
    return Table("Each run", columns, tuple(rows))
