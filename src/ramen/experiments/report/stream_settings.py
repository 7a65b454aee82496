"""The settings of a page: which runs share a stream and a classifier, in which order, under which name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramen.experiments.analysis.grouping import Collection, Group, by_setting, group
from ramen.experiments.report.related_rows import Swept, split_sweeps
from ramen.experiments.report.tables import Named, name_groups


@dataclass(frozen=True)
class Setting:
    """The rows of one stream and classifier, and their sweeps."""

    name: str
    anchor: str
    rows: list[Named]
    sweeps: list[Swept]
    all_rows: list[Named]

    @property
    def groups(self) -> list[Group]:
        """Those in the table."""
        return [row.group for row in self.rows]

    def named(self, group: Group) -> Named:
        """The row of a group, also of one in a sweep."""
        return next(row for row in self.all_rows if row.group is group)


def settings_of(found: Collection) -> list[Setting]:
    """In a fixed order, whichever the files came in."""
    runs = sorted(found.results, key=lambda result: str(sorted(result["experiment"].items(), key=str)))
    gathered = sorted(by_setting(group(runs)), key=lambda groups: _setting_order(groups[0]))
    names = _setting_names([groups[0].experiment for groups in gathered])
    settings: list[Setting] = []
    first = 1
    for place, (groups, name) in enumerate(zip(gathered, names, strict=True)):
        kept, sweeps = split_sweeps(groups)
        rows = name_groups(kept, first)
        moved = [one for one in groups if not any(one is other for other in kept)]
        others = name_groups([*kept, *moved], first)[len(kept) :]
        settings.append(Setting(name, f"setting-{place + 1}", rows, sweeps, [*rows, *others]))
        first += len(groups)
    return settings


def _setting_order(one: Group) -> tuple[int, str, str, str]:
    from ramen.data.registry import list_datasets

    data, known = one.experiment["data"], list_datasets()
    return known.index(data) if data in known else len(known), data, one.experiment["model"], one.setting


def _setting_names(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Data, protocol and model; where that is not enough, also what else decides."""
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
    """A data set's name as it is written in papers; its own for one that is not registered."""
    from ramen.data.registry import describe

    try:
        return describe(name).title
    except ValueError:
        return name
