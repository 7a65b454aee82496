"""The sections of a page: which runs share a stream and a classifier, in which order, under which name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Collection, Group, by_setting, group
from ramen.experiments.analysis.sweep_curve import Sweep
from ramen.experiments.report.related_rows import split_sweeps
from ramen.experiments.tables.group_rows import GroupRow, group_rows


@dataclass(frozen=True)
class SettingSection:
    """The rows of one stream and classifier, and their sweeps.

    Attributes:
        name: The heading.
        anchor: The section's id.
        rows: What its tables show.
        sweeps: Curves, whose points but one are not among ``rows``.
        all_rows: The rows, and the points of the sweeps.
    """

    name: str
    anchor: str
    rows: list[GroupRow]
    sweeps: list[Sweep]
    all_rows: list[GroupRow]

    @property
    def groups(self) -> list[Group]:
        """The groups in the tables."""
        return [row.group for row in self.rows]

    def row_of(self, group: Group) -> GroupRow:
        """The row of a group, also of one in a sweep."""
        return next(row for row in self.all_rows if row.group is group)


def make_sections(found: Collection) -> list[SettingSection]:
    """The sections in an order that does not depend on that of the files."""
    runs = sorted(found.results, key=lambda result: str(sorted(result["experiment"].items(), key=str)))
    settings = sorted(by_setting(group(runs)), key=lambda groups: _order(groups[0]))
    names = _names([groups[0].experiment for groups in settings])
    sections: list[SettingSection] = []
    first = 1
    for place, (groups, name) in enumerate(zip(settings, names, strict=True)):
        kept, sweeps = split_sweeps(groups)
        rows = _linked_rows(kept, first)
        moved = [one for one in groups if not any(one is other for other in kept)]
        others = _linked_rows([*kept, *moved], first)[len(kept) :]
        sections.append(SettingSection(name, f"setting-{place + 1}", rows, sweeps, [*rows, *others]))
        first += len(groups)
    return sections


def _linked_rows(groups: Sequence[Group], first: int) -> list[GroupRow]:
    """Rows with anchors, numbered from ``first``."""
    return [
        GroupRow(row.group, _with_method(row), f"settings-{first + number}")
        for number, row in enumerate(group_rows(groups))
    ]


def _with_method(row: GroupRow) -> str:
    """A variant's name says which method it is a variant of."""
    method = paper.title(row.group.method)
    return row.name if row.name.startswith(method) else f"{method}, {row.name}"


def _order(one: Group) -> tuple[int, str, str, str]:
    from ramen.data.registry import list_datasets

    data, known = one.experiment["data"], list_datasets()
    return known.index(data) if data in known else len(known), data, one.experiment["model"], one.setting


def _names(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Data, protocol and model; the remaining options too, if that is not unique."""
    short = [f"{data_title(one['data'])}, {one['protocol']}, {one['model']}" for one in experiments]
    return [
        f"{name} ({details(one)})" if short.count(name) > 1 else name
        for name, one in zip(short, experiments, strict=True)
    ]


def details(experiment: Mapping[str, Any]) -> str:
    """Options and parameters of data and protocol, and the templates, in words."""
    facts = {
        **experiment["data_options"],
        **experiment["protocol_parameters"],
        "templates": experiment["templates"],
    }
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def data_title(name: str) -> str:
    """A data set's name as papers write it; the name itself if it is not registered."""
    from ramen.data.registry import describe

    try:
        return describe(name).title
    except ValueError:
        return name
