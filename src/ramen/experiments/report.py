"""One page with everything that results tell: tables, figures, and the settings behind every number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from ramen.experiments import paper, report_figures, studies_page
from ramen.experiments.collect import Collection, Group, by_setting, collect, group
from ramen.experiments.comparison import beside_paper
from ramen.experiments.html import (
    MINUS,
    NOTHING,
    Cell,
    Column,
    Markup,
    Row,
    Table,
    element,
    number,
    render,
    spread,
    text,
)
from ramen.experiments.report_settings import settings_block
from ramen.experiments.report_tables import (
    Named,
    accuracy_table,
    best_mean,
    change_table,
    cost_table,
    gain_cell,
    name_groups,
)
from ramen.experiments.variations import (
    Swept,
    ablations,
    own_groups,
    reference_lines,
    single_and_mixed,
    split_sweeps,
)
from ramen.scoring import Spread


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


@dataclass
class _Page:
    """Sections in order, with what the list of contents says of them."""

    sections: list[Markup] = field(default_factory=list)
    contents: list[Markup] = field(default_factory=list)

    def add(self, anchor: str, title: str, *parts: Markup) -> None:
        self.contents.append(element("li", element("a", title, href=f"#{anchor}")))
        self.sections.append(element("section", element("h2", title), *parts, id=anchor))


def write_report(paths: Sequence[Path | str], out: Path | str, *, title: str = "Results") -> Collection:
    """Read results and write the page; the same results give the same bytes.

    Args:
        paths: Result files, or folders with result files somewhere below.
        out: The HTML file; folders on the way are made.
        title: The page's heading.
    """
    found = collect(paths)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(make_page(found, title=title), encoding="utf-8")
    return found


def make_page(found: Collection, *, title: str = "Results") -> str:
    """The page as text, with nothing in it that has to be fetched."""
    settings = _settings(found)
    page = _Page()
    if found.warnings:
        items = [element("li", warning) for warning in found.warnings]
        page.add("left-out", "Files left out", element("ul", *items, class_="bad"))
    if settings:
        page.add("overview", "Overview", render(_overview(settings)))
    for setting in settings:
        page.add(setting.anchor, setting.name, *_setting_parts(setting))
    _add_pairs(page, settings)
    _add_ablations(page, settings)
    _add_sweeps(page, settings)
    for place, study in enumerate(one for one in found.others if one.get("kind") == "study"):
        page.add(
            f"study-{place}", str(study.get("title") or study.get("study")), *studies_page.parts(study, place)
        )
    blocks = [settings_block(row, setting.name) for setting in settings for row in setting.all_rows]
    if blocks:
        note = "Everything that decided a number, as it was written down with the result."
        page.add("settings", "Settings behind every number", element("p", note, class_="soft"), *blocks)
    return _document(title, _summary(found, settings), page)


def _settings(found: Collection) -> list[Setting]:
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
        f"{name} ({_details(one)})" if short.count(name) > 1 else name
        for name, one in zip(short, experiments, strict=True)
    ]


def _details(experiment: Mapping[str, Any]) -> str:
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


def _overview(settings: Sequence[Setting]) -> Table:
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


def _setting_parts(setting: Setting) -> Iterator[Markup]:
    first = setting.groups[0]
    images = sum(first.results[0]["scores"]["images"].values())
    seeds = sorted({seed for one in setting.groups for seed in one.seeds})
    facts = (
        f"{images:,} images of {len(first.domains)} domain{'s'[: len(first.domains) != 1]}, "
        f"seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}; {_details(first.experiment)}."
    )
    yield element("p", facts, class_="soft")
    yield render(accuracy_table(setting.rows, f"{setting.anchor}-accuracy"))
    plain = [row for row in setting.rows if row.group.experiment["label"] is None] or setting.rows
    variants = [row for row in setting.rows if row not in plain]
    yield from report_figures.domain_figures(plain, setting.name)
    yield render(change_table(setting.rows, f"{setting.anchor}-changes"))
    yield report_figures.change_figure(plain, setting.name)
    yield render(cost_table(setting.rows, f"{setting.anchor}-cost"))
    yield from report_figures.cost_figures(plain, setting.name)
    yield from report_figures.composition_figures(plain, setting.name)
    more = report_figures.composition_figures(variants, setting.name)
    if more:
        yield element("details", element("summary", "The same of the variants"), element("div", *more))


def _add_pairs(page: _Page, settings: Sequence[Setting]) -> None:
    parts = []
    for place, pair in enumerate(single_and_mixed([one.groups for one in settings])):
        experiment = pair["mixed"][0].experiment
        where = f"{data_title(experiment['data'])}, {experiment['model']}"
        drawn = report_figures.pair_figure(pair, where)
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
    return Table(anchor, where, columns, body, "Average accuracy in percent.")


def _reported_average(one: Group) -> Cell:
    beside = beside_paper(one)
    if beside.reported is None:
        return Cell(NOTHING, hint=beside.reason)
    value = beside.reported.average
    return spread(Spread(value.mean, value.deviation, 1), ".1f", hint=beside.reported.source)


def _add_ablations(page: _Page, settings: Sequence[Setting]) -> None:
    parts = []
    for place, variants in enumerate(ablations([one.groups for one in settings])):
        some = next(iter(next(iter(variants.values())).values()))
        where = (
            f"{paper.title(some.method)} on {data_title(some.experiment['data'])}, {some.experiment['model']}"
        )
        home = next(one for one in settings if any(some is other for other in one.groups))
        lines = reference_lines([one for one in home.groups if one.method != some.method])
        parts.append(report_figures.ablation_figure(variants, lines, where))
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
            reported = paper.reported_ablation(one.experiment["data"], protocol).get(label)
            shown = None if reported is None else Spread(reported.mean, reported.deviation, 1)
            link = Cell(element("a", label, href=f"#{row.anchor}"), label)
            cells = [link, text(protocol), spread(one.average), gain_cell(one), spread(shown), row.seed_links]
            body.append(Row(cells, method=label))
    return Table(anchor, where, columns, body)


def _add_sweeps(page: _Page, settings: Sequence[Setting]) -> None:
    parts = []
    numbers = count(1)
    for setting in settings:
        for swept in setting.sweeps:
            anchor = f"sweep-{next(numbers)}"
            parts += [
                report_figures.sweep_figure(swept, setting.name),
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
    return Table(anchor, name, columns, body, sweep.note)


def _summary(found: Collection, settings: Sequence[Setting]) -> str:
    rows = [row for one in settings for row in one.all_rows]
    methods = {row.group.method for row in rows}
    commits = sorted(
        {str(run["provenance"].get("commit")) for run in found.results if "provenance" in run} - {"None"}
    )
    words = [
        _counted(len(found.results), "run"),
        _counted(len(methods), "method"),
        _counted(len({row.group.experiment["data"] for row in rows}), "data set"),
        _counted(len({row.group.experiment["model"] for row in rows}), "model"),
        _counted(len({seed for row in rows for seed in row.group.seeds}), "seed"),
    ]
    made = f" Commit {', '.join(commits)}." if commits else ""
    return f"{', '.join(words)}.{made} Column heads sort; names lead to the settings behind their numbers."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s'[: number != 1]}"


def _document(title: str, summary: str, page: _Page) -> str:
    assets = resources.files("ramen.experiments").joinpath("assets")
    style, script = (assets.joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(style)),
    )
    header = element(
        "header",
        element("h1", title),
        element("p", summary, class_="soft"),
        element("nav", element("ul", *page.contents), aria_label="Contents"),
    )
    search = element(
        "div",
        element("label", "Show methods", for_="filter"),
        element("input", id="filter", type="search", placeholder="ramen, tent", aria_label="Methods to show"),
        element("span", id="filter-state", class_="soft", role="status"),
    )
    body = element(
        "body",
        header,
        element("div", search, class_="bar"),
        element("main", *page.sections),
        element("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
