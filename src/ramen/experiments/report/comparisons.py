"""Sections that look at several rows or settings at once: overview, single and mixed, variants, sweeps."""

from collections.abc import Mapping, Sequence
from itertools import count

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.paper_comparison import beside_paper, obstacle
from ramen.experiments.analysis.scoring import Spread
from ramen.experiments.plan.variations import NAMED
from ramen.experiments.report import figures
from ramen.experiments.report.document import Page
from ramen.experiments.report.html import (
    MINUS,
    NOTHING,
    Cell,
    Column,
    Row,
    Table,
    element,
    number,
    render,
    spread,
    text,
    without_empty_columns,
)
from ramen.experiments.report.related_rows import (
    Swept,
    ablations,
    own_groups,
    reference_lines,
    single_and_mixed,
)
from ramen.experiments.report.stream_settings import Setting, data_title
from ramen.experiments.report.tables import best_mean, gain_cell


def overview(settings: Sequence[Setting]) -> Table:
    """Averages of every method in every setting."""
    own = [own_groups(one.groups) for one in settings]
    methods = sorted({name for groups in own for name in groups}, key=lambda name: (paper.place(name), name))
    columns = [Column("Method", "text"), *(Column(one.name) for one in settings)]
    best = [best_mean([one.average for one in groups.values()]) for groups in own]
    body = []
    for method in methods:
        cells: list[Cell] = [text(paper.title(method))]
        for groups, top in zip(own, best, strict=True):
            average = groups[method].average if method in groups else None
            cells.append(spread(average, best=average is not None and average.mean == top))
        body.append(Row(cells, method=paper.title(method)))
    note = "Average accuracy over domains in percent, mean ± standard deviation over seeds."
    return Table("overview-table", "Averages", columns, body, note)


def add_pairs(page: Page, settings: Sequence[Setting]) -> None:
    """Bars and a table for data that ran with single and with mixed domains."""
    parts = []
    for place, pair in enumerate(single_and_mixed([one.groups for one in settings])):
        experiment = pair["mixed"][0].experiment
        where = f"{data_title(experiment['data'])}, {experiment['model']}"
        drawn = figures.pair_figure(pair, where)
        if drawn is not None:
            parts += [drawn, render(_pair_table(pair, f"pair-{place + 1}", where))]
    if parts:
        page.add("single-mixed", "Single against mixed domains", *parts)


def _pair_table(pair: Mapping[str, Sequence[Group]], anchor: str, where: str) -> Table:
    own = {protocol: own_groups(groups) for protocol, groups in pair.items()}
    columns = [
        Column("Method", "text"),
        *(
            Column(name)
            for name in ("Single", "Mixed", f"Mixed {MINUS} single", "Single, reported", "Mixed, reported")
        ),
    ]
    body = []
    for method in sorted(
        own["mixed"].keys() & own["single"].keys(), key=lambda name: (paper.place(name), name)
    ):
        single, mixed = own["single"][method], own["mixed"][method]
        cells = [
            text(mixed.title),
            spread(single.average),
            spread(mixed.average),
            number(mixed.average.mean - single.average.mean, "+z.2f"),
            *map(_reported_average, (single, mixed)),
        ]
        body.append(Row(cells, method=mixed.title))
    return without_empty_columns(Table(anchor, where, columns, body, "Average accuracy in percent."))


def _reported_average(one: Group) -> Cell:
    beside = beside_paper(one)
    if beside.reported is None:
        return Cell(NOTHING, hint=beside.reason)
    value = beside.reported.average
    return spread(Spread(value.mean, value.deviation, 1), ".1f", hint=beside.reported.source)


def add_ablations(page: Page, settings: Sequence[Setting]) -> None:
    """Bars and a table for each family of variants."""
    parts = []
    for place, variants in enumerate(ablations([one.groups for one in settings])):
        some = next(iter(next(iter(variants.values())).values()))
        where = (
            f"{paper.title(some.method)} on {data_title(some.experiment['data'])}, {some.experiment['model']}"
        )
        home = next(one for one in settings if any(some is other for other in one.groups))
        lines = reference_lines([one for one in home.groups if one.method != some.method])
        parts.append(figures.ablation_figure(variants, lines, where))
        parts.append(render(_ablation_table(variants, settings, f"ablation-{place + 1}", where)))
    if parts:
        page.add("ablations", "Variants of a method", *parts)


def _ablation_table(
    variants: Mapping[str, Mapping[str, Group]], settings: Sequence[Setting], anchor: str, where: str
) -> Table:
    columns = [
        Column("Variant", "text"),
        Column("Protocol", "text"),
        Column("Average"),
        Column("Above zero-shot", spread="margin"),
        Column("Reported"),
        Column("Seeds", "text"),
    ]
    body = []
    for label, by_protocol in variants.items():
        for protocol, one in by_protocol.items():
            row = next(home.named(one) for home in settings if any(one is row.group for row in home.all_rows))
            link = Cell(element("a", label, href=f"#{row.anchor}"), label)
            cells = [
                link,
                text(protocol),
                spread(one.average),
                gain_cell(one),
                _reported_variant(one),
                row.seed_links,
            ]
            body.append(Row(cells, method=label))
    return without_empty_columns(Table(anchor, where, columns, body))


def _reported_variant(one: Group) -> Cell:
    """The paper's number for a variant with a name of its own, or for the method itself."""
    label, data, protocol = one.experiment["label"], one.experiment["data"], one.experiment["protocol"]
    if label is None:
        return _reported_average(one)
    known = {
        "ablation": paper.reported_ablation(data, protocol),
        "weights": paper.reported_weights(data) if protocol == "mixed" else {},
    }
    for name, values in known.items():
        value = values.get(label.removeprefix(f"{name}: "))
        varied = frozenset(parameter for changed in NAMED[name].values() for parameter in changed)
        if value is not None and one.method == "ramen" and obstacle(one, varied) is None:
            return spread(Spread(value.mean, value.deviation, 1))
    return Cell(NOTHING)


def add_sweeps(page: Page, settings: Sequence[Setting]) -> None:
    """A curve and a table for each sweep."""
    parts = []
    numbers = count(1)
    for setting in settings:
        for swept in setting.sweeps:
            anchor = f"sweep-{next(numbers)}"
            parts += [
                figures.sweep_figure(swept, setting.name),
                render(_sweep_table(swept, setting, anchor)),
            ]
    if parts:
        page.add("sweeps", "Sweeps", *parts)


def _sweep_table(swept: Swept, setting: Setting, anchor: str) -> Table:
    sweep = swept.sweep
    columns = [
        Column(sweep.parameter),
        Column("Average"),
        Column("Above zero-shot", spread="margin"),
        Column("Reported"),
        Column("ms an image"),
        Column("Seeds", "text"),
    ]
    body = []
    for point, one in zip(sweep.points, swept.groups, strict=True):
        row = setting.named(one)
        value = point.value if isinstance(point.value, int | float) else None
        cells = [
            Cell(
                element("a", point.label, href=f"#{row.anchor}"), value if value is not None else point.label
            ),
            spread(one.average),
            gain_cell(one),
            number(point.reported, ".2f"),
            spread(one.over("cost", "ms_an_image"), ".3g"),
            row.seed_links,
        ]
        body.append(Row(cells, method=paper.title(sweep.method)))
    name = f"{paper.title(sweep.method)}: {sweep.parameter}, {setting.name}"
    return without_empty_columns(Table(anchor, name, columns, body, sweep.note))
