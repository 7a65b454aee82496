"""Groups of results as rows of tables: their names and seeds, which a page links to their settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group, row_titles
from ramen.experiments.tables.table import Cell, Column, ColumnCells, Link


@dataclass(frozen=True)
class GroupRow:
    """A group, its name in tables, and on a page the anchor of its settings."""

    group: Group
    name: str
    anchor: str | None = None

    @property
    def name_cell(self) -> Cell:
        """The name, linked to the settings."""
        return linked_cell(self.name, self, method=self.name)

    @property
    def seeds_cell(self) -> Cell:
        """How many seeds there are; on a page the seeds themselves, each linked to its run."""
        seeds = self.group.seeds
        links = () if self.anchor is None else tuple(Link(str(s), self.run_anchor(s)) for s in seeds)
        return Cell(str(len(seeds)), value=" ".join(map(str, seeds)) if links else len(seeds), links=links)

    def run_anchor(self, seed: int) -> str:
        """The anchor of one run's own settings."""
        return f"{self.anchor}-seed{seed}"


def linked_cell(text: str, row: GroupRow, *, value: float | str | None = None, method: str) -> Cell:
    """A cell that is linked to a row's settings, if it is for a page."""
    links = () if row.anchor is None else (Link(text, row.anchor),)
    return Cell(text, value=value, links=links, method=method)


def group_rows(groups: Sequence[Group]) -> list[GroupRow]:
    """The rows of one setting's tables."""
    return [GroupRow(group, title) for group, title in zip(groups, row_titles(groups), strict=True)]


def name_column(rows: Sequence[GroupRow]) -> ColumnCells:
    """The first column of most tables."""
    return Column("Method", "left"), [row.name_cell for row in rows]


def seeds_column(rows: Sequence[GroupRow]) -> ColumnCells:
    """The seeds: a list of links on a page, else their number."""
    linked = any(row.anchor is not None for row in rows)
    return Column("Seeds", "left" if linked else "right"), [row.seeds_cell for row in rows]


def describe_setting(group: Group) -> str:
    """Data, model and stream in words."""
    experiment = group.experiment
    known = paper.setting(experiment["data"])
    data = known.title if known else experiment["data"]
    options = {**experiment["data_options"], **experiment["protocol_parameters"]}
    listed = "".join(f", {name} {value}" for name, value in options.items() if value is not None)
    templates = "" if experiment["templates"] == "ensemble" else f", templates {experiment['templates']}"
    return f"{data}, {experiment['model']}, {experiment['protocol']} stream{listed}{templates}"


def group_record(group: Group) -> dict[str, Any]:
    """The part of a record that says what was measured."""
    experiment = group.experiment
    overrides = group.results[0]["overrides"]
    return {
        "data": experiment["data"],
        "model": experiment["model"],
        "protocol": experiment["protocol"],
        "method": group.method,
        "label": experiment["label"],
        "overrides": " ".join(f"{name}={value}" for name, value in overrides.items()),
        "batch": experiment["batch"],
        "seeds": len(group.seeds),
    }
