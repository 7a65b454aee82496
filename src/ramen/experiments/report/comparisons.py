"""Sections that compare several rows or settings: overview, single and mixed, variants, sweeps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.paper_comparison import paper_row, why_not_comparable
from ramen.experiments.plan.variations import VARIANTS
from ramen.experiments.report import figures
from ramen.experiments.report.document import Page
from ramen.experiments.report.related_rows import (
    ablations,
    reference_lines,
    single_and_mixed,
    unvaried_groups,
)
from ramen.experiments.report.sections import SettingSection, data_title
from ramen.experiments.tables.accuracy import average_column, gain_column
from ramen.experiments.tables.group_rows import GroupRow, linked_cell, seeds_column
from ramen.experiments.tables.html import MINUS, html_table
from ramen.experiments.tables.paper_columns import emphasis, paper_cell
from ramen.experiments.tables.sweeps import sweep_table
from ramen.experiments.tables.table import (
    Cell,
    Column,
    ColumnCells,
    Table,
    number_cell,
    spread_cell,
    without_empty_columns,
)


def overview(sections: Sequence[SettingSection]) -> Table:
    """Averages of every method in every setting."""
    own = [unvaried_groups(one.groups) for one in sections]
    methods = _in_papers_order({name for groups in own for name in groups})
    columns: list[ColumnCells] = [(Column("Method", "left"), [_method_cell(name) for name in methods])]
    for section, groups in zip(sections, own, strict=True):
        averages = [groups[name].average if name in groups else None for name in methods]
        ranks = emphasis(averages, decimals=2)
        cells = [spread_cell(value, emphasis=rank) for value, rank in zip(averages, ranks, strict=True)]
        columns.append((Column(section.name), cells))
    note = "Average accuracy over domains in percent, mean \u00b1 standard deviation over seeds."
    return Table.from_columns("Averages", columns, [note])


def _in_papers_order(methods: set[str]) -> list[str]:
    return sorted(methods, key=lambda name: (paper.position(name), name))


def _method_cell(method: str) -> Cell:
    return Cell(paper.title(method), method=paper.title(method))


def add_pairs(page: Page, sections: Sequence[SettingSection]) -> None:
    """Bars and a table for data that ran with single and with mixed domains."""
    parts = []
    for place, pair in enumerate(single_and_mixed([one.groups for one in sections])):
        experiment = pair["mixed"][0].experiment
        where = f"{data_title(experiment['data'])}, {experiment['model']}"
        drawn = figures.pair_figure(pair, where)
        if drawn is not None:
            parts += [drawn, html_table(_pair_table(pair, where), f"pair-{place + 1}")]
    if parts:
        page.add("single-mixed", "Single and mixed domains", *parts)


def _pair_table(pair: Mapping[str, Sequence[Group]], where: str) -> Table:
    own = {protocol: unvaried_groups(groups) for protocol, groups in pair.items()}
    methods = _in_papers_order(own["mixed"].keys() & own["single"].keys())
    single, mixed = ([own[protocol][name] for name in methods] for protocol in ("single", "mixed"))
    differences = [b.average.mean - a.average.mean for a, b in zip(single, mixed, strict=True)]
    columns: list[ColumnCells] = [
        (Column("Method", "left"), [_method_cell(name) for name in methods]),
        (Column("Single"), [spread_cell(one.average) for one in single]),
        (Column("Mixed"), [spread_cell(one.average) for one in mixed]),
        (Column(f"Mixed {MINUS} single"), [number_cell(value, "+z.2f") for value in differences]),
        (Column("Single, paper"), [_reported_average(one) for one in single]),
        (Column("Mixed, paper"), [_reported_average(one) for one in mixed]),
    ]
    return without_empty_columns(Table.from_columns(where, columns, ["Average accuracy in percent."]))


def _reported_average(one: Group) -> Cell:
    found = paper_row(one)
    if found.reported is None:
        return Cell("", hint=found.reason)
    return paper_cell(found.reported.average, hint=found.reported.source)


def add_ablations(page: Page, sections: Sequence[SettingSection]) -> None:
    """Bars and a table for each family of variants."""
    parts = []
    for place, variants in enumerate(ablations([one.groups for one in sections])):
        some = next(iter(next(iter(variants.values())).values()))
        where = (
            f"{paper.title(some.method)} on {data_title(some.experiment['data'])}, {some.experiment['model']}"
        )
        home = _section_of(some, sections)
        lines = reference_lines([one for one in home.groups if one.method != some.method])
        parts.append(figures.ablation_figure(variants, lines, where))
        parts.append(html_table(_ablation_table(variants, sections, where), f"ablation-{place + 1}"))
    if parts:
        page.add("ablations", "Variants of a method", *parts)


def _section_of(group: Group, sections: Sequence[SettingSection]) -> SettingSection:
    return next(one for one in sections if any(group is row.group for row in one.all_rows))


def _ablation_table(
    variants: Mapping[str, Mapping[str, Group]], sections: Sequence[SettingSection], where: str
) -> Table:
    labels, protocols, rows = [], [], []
    for label, by_protocol in variants.items():
        for protocol, one in by_protocol.items():
            labels.append(label)
            protocols.append(protocol)
            rows.append(_section_of(one, sections).row_of(one))
    names = [linked_cell(label, row, method=label) for label, row in zip(labels, rows, strict=True)]
    columns: list[ColumnCells] = [
        (Column("Variant", "left"), names),
        (Column("Protocol", "left"), [Cell(protocol) for protocol in protocols]),
        average_column(rows),
        gain_column(rows),
        (Column("Paper"), [_reported_variant(row.group) for row in rows]),
        seeds_column(rows),
    ]
    return without_empty_columns(Table.from_columns(where, columns))


def _reported_variant(one: Group) -> Cell:
    """The paper's number for a variant that it names, or for the method itself."""
    label, data, protocol = one.experiment["label"], one.experiment["data"], one.experiment["protocol"]
    if label is None:
        return _reported_average(one)
    known = {
        "ablation": paper.reported_ablation(data, protocol),
        "weights": paper.reported_weights(data) if protocol == "mixed" else {},
    }
    for name, values in known.items():
        value = values.get(label.removeprefix(f"{name}: "))
        varied = frozenset(parameter for changed in VARIANTS[name].values() for parameter in changed)
        if value is not None and one.method == "ramen" and why_not_comparable(one, varied) is None:
            return paper_cell(value)
    return Cell("")


def add_sweeps(page: Page, sections: Sequence[SettingSection]) -> None:
    """A curve and a table for each sweep."""
    parts = []
    numbers = count(1)
    for section in sections:
        for sweep in section.sweeps:
            rows: list[GroupRow] = [section.row_of(point.group) for point in sweep.points]
            title = f"{paper.title(sweep.method)}: {sweep.parameter}, {section.name}"
            parts += [
                figures.sweep_figure(sweep, section.name),
                html_table(replace(sweep_table(sweep, rows), title=title), f"sweep-{next(numbers)}"),
            ]
    if parts:
        page.add("sweeps", "Sweeps", *parts)
