"""One page for a set of results: tables, figures, and the settings of every number."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ramen.experiments import figures, paper, tables
from ramen.experiments.render import WORDS, Column, Table
from ramen.experiments.results import (
    Collection,
    Result,
    Rows,
    collect,
    identity,
    setting_key,
    settings_of,
)
from ramen.experiments.style import page_svg
from ramen.experiments.tables import Sweep
from ramen.utils import files, pages

MINUS = "\N{MINUS SIGN}"
ZERO_SHOT = "ensemble"  # the method that is the classifier itself
_SHOWN = 6  # methods in a reliability diagram
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

Part = dict[str, Any]  # what the template's macro ``part`` shows


def write_report(paths: Sequence[Path | str], out: Path | str, *, title: str = "Results") -> Collection:
    """Read results and write the page; the same results give the same bytes.

    Args:
        paths: Result files, or folders to search for them.
        out: The HTML file; missing parent folders are created.
        title: The page's heading.
    """
    found = collect(paths)
    files.write_text(out, make_page(found, title=title))
    return found


def make_page(found: Collection, *, title: str = "Results") -> str:
    """The self-contained page as text."""
    settings = _settings(found)
    searches, left_out = _searches(found)
    complaints = [*found.warnings, *left_out]
    sections = [
        ("left-out", "Not shown", [{"list": complaints}] if complaints else []),
        ("overview", "Overview", [_overview(settings)] if settings else []),
        *((one.anchor, one.name, list(_setting_parts(one))) for one in settings),
        ("single-mixed", "Single and mixed domains", list(_pairs(settings))),
        ("sweeps", "Sweeps", list(_sweep_parts(settings))),
        ("searches", "Parameters chosen by searches", searches),
        ("settings", "Settings of every number", [block for one in settings for block in _blocks(one)]),
    ]
    return pages.render(
        "experiments/page.html.j2",
        title=title,
        **_summary(found),
        sections=[{"id": anchor, "title": name, "parts": parts} for anchor, name, parts in sections if parts],
    )


# -- settings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The rows of one stream and classifier, and their sweeps."""

    name: str
    anchor: str  # the section's id
    rows: Rows  # what its tables show
    everything: Rows  # these, and the points of the sweeps
    sweeps: list[Sweep]  # curves, whose points but one are not among rows

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The settings that all of its runs share."""
        experiment: Mapping[str, Any] = self.rows.firsts[0]["experiment"]
        return experiment

    @property
    def own(self) -> dict[str, int]:
        """For each method its first row that is not a variant."""
        rows = list(zip(self.rows.facts("method"), self.rows.facts("label"), strict=True))
        return {method: row for row, (method, label) in reversed(list(enumerate(rows))) if label is None}


def _settings(found: Collection) -> list[Setting]:
    """The settings in an order that does not depend on that of the files."""
    from ramen.data.catalogue import list_datasets

    known = list_datasets()

    def order(groups: list[list[Result]]) -> tuple[int, str, str, str]:
        data, model = (groups[0][0]["experiment"][name] for name in ("data", "model"))
        return known.index(data) if data in known else len(known), data, model, setting_key(groups[0][0])

    runs = sorted(found.results, key=lambda result: str(sorted(result["experiment"].items(), key=str)))
    settings = sorted(settings_of(runs), key=order)
    names = _names([groups[0][0]["experiment"] for groups in settings])
    plans = [_found_plan(plan, found) for plan in sorted(found.plans, key=json.dumps)]
    shown: list[Setting] = []
    anchors = iter(range(1, len(runs) + 1))
    for place, (groups, name) in enumerate(zip(settings, names, strict=True)):
        key = setting_key(groups[0][0])
        own = [plan for plan in plans if plan and setting_key(plan["points"][0]) == key]
        moved = {identity(one) for plan in own for one in plan["points"] if one not in plan["base"]}
        kept = [group for group in groups if identity(group[0]) not in moved] or groups
        others = [group for group in groups if group not in kept]
        everything = _with_methods(
            Rows([*kept, *others], anchors=[f"settings-{next(anchors)}" for _ in groups])
        )
        rows = _with_methods(Rows(kept, anchors=(everything.anchors or [])[: len(kept)]))
        sweeps = [sweep for plan in own if (sweep := _sweep(plan, everything)) is not None]
        shown.append(Setting(name, f"setting-{place + 1}", rows, everything, sweeps))
    return shown


def _with_methods(rows: Rows) -> Rows:
    """The rows, with names of variants that say which method they are variants of."""
    titles = [paper.title(method) for method in rows.facts("method")]
    names = [
        name if name.startswith(title) else f"{title}, {name}"
        for name, title in zip(rows.names, titles, strict=True)
    ]
    return Rows(rows.groups, names, rows.anchors)


def _found_plan(plan: Mapping[str, Any], found: Collection) -> dict[str, Any] | None:
    """A sweep's plan with its results in place of their files; None if too few of them are there."""
    by_name = {found.files[identity(one)].name: one for one in found.results}
    try:
        parts = {
            name: [by_name[file] for file in plan[name] if file in by_name]
            for name in ("points", "base", "references")
        }
        whole = {**parts, "parameter": plan["parameter"], "method": plan["method"]}
    except (KeyError, TypeError):
        return None
    return whole if len({identity(one, without="seed") for one in parts["points"]}) > 1 else None


def _sweep(plan: Mapping[str, Any], everything: Rows) -> Sweep | None:
    wanted = {identity(one, without="seed") for one in (*plan["points"], *plan["references"])}
    places = [row for row, first in enumerate(everything.firsts) if identity(first, without="seed") in wanted]
    try:
        return tables.sweep_of(everything.only(places), plan["parameter"], plan["method"])
    except ValueError:  # its runs differ in more than what was varied
        return None


def _names(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Data, protocol and model; the remaining options too, if that is not unique."""
    short = [f"{_data_title(one['data'])}, {one['protocol']}, {one['model']}" for one in experiments]
    return [
        f"{name} ({_details(one)})" if short.count(name) > 1 else name
        for name, one in zip(short, experiments, strict=True)
    ]


def _details(experiment: Mapping[str, Any]) -> str:
    """Options and parameters of data and protocol, and the templates, in words."""
    facts = {**experiment["data_options"], **experiment["protocol_parameters"]}
    facts["templates"] = experiment["templates"]
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _data_title(name: str) -> str:
    """A data set's name as papers write it; the name itself if it is not registered."""
    from ramen.data.catalogue import describe

    try:
        return describe(name).title
    except ValueError:
        return name


def _summary(found: Collection) -> dict[str, Any]:
    """How much there is, and the commits that made it."""
    experiments = [one["experiment"] for one in found.results]
    names = {"method": "method", "data": "data set", "model": "model", "seed": "seed"}
    counts = {what: len({one[name] for one in experiments}) for name, what in names.items()}
    commits = {one["provenance"].get("commit") for one in found.results if "provenance" in one}
    known = sorted(str(commit)[:12] for commit in commits if commit)
    return {"counts": {"run": len(experiments), **counts}, "commits": known}


# -- parts --------------------------------------------------------------------------------------------------


def _table(table: Table, anchor: str, title: str | None = None) -> Part:
    """A table; below a section's heading, which names the setting, a shorter title is enough."""
    return {"table": table, "id": anchor, "title": title or table.title}


def _figure(kind: str, drawn: Figure, where: str, **facts: Any) -> Part:
    """A figure, as a separate image, so that ids do not clash; the template has its words."""
    svg = base64.b64encode(page_svg(drawn).encode()).decode()
    return {"figure": kind, "svg": svg, "where": where, **facts}


def _setting_parts(setting: Setting) -> Iterator[Part]:
    rows, where, anchor = setting.rows, setting.name, setting.anchor
    images = rows.firsts[0]["scores"]["images"]
    seeds = sorted({seed for one in rows.seeds for seed in one})
    yield {"setting": _details(setting.experiment), "images": images, "seeds": seeds}
    yield _table(_accuracy(rows), f"{anchor}-accuracy", "Accuracy, %")
    labels = rows.facts("label")
    plain = rows.only([row for row in range(len(rows)) if labels[row] is None] or range(len(rows)))
    if len(plain) > 1 and len(images) > 1:
        yield _gains(plain, where)
    yield _table(tables.changes_table(rows), f"{anchor}-changes", "Repaired, broken, calibrated")
    yield _changes(plain, where)
    yield from _reliability(plain, where)
    yield _table(tables.cost_table(rows), f"{anchor}-cost", "Time and memory")
    yield _stages(plain, where)
    if len(plain) > 1:
        points = zip(plain.over("cost.ms_an_image"), plain.over("scores.average"), strict=True)
        drawn = figures.cost_dots(dict(zip(plain.names, points, strict=True)), title="Accuracy against time")
        yield _figure("cost", drawn, where)
    yield from _compositions(plain, where)
    variants = [row for row in range(len(rows)) if rows.names[row] not in plain.names]
    more = list(_compositions(rows.only(variants), where)) if variants else []
    if more:
        yield {"more": "The same for the variants", "parts": more}


def _accuracy(rows: Rows) -> Table:
    """Averages and domains, and zero-shot also if nobody ran it.

    Every run records what the classifier does alone; the row with the most seeds says it.
    """
    if ZERO_SHOT in rows.facts("method"):
        return tables.averages_table(rows, with_domains=True)
    source = max(range(len(rows)), key=lambda row: len(rows.seeds[row]))
    nothing = {"points": 0.0, "margin": 0.0}
    alone = [
        {
            **result,
            "experiment": {**result["experiment"], "method": ZERO_SHOT, "parameters": {}, "label": None},
            "overrides": {},
            "scores": {**result["scores"], **result["scores"]["zero_shot"], "difference": nothing},
        }
        for result in rows.groups[source]
    ]
    anchors = rows.anchors and [rows.anchors[source], *rows.anchors]
    table = tables.averages_table(
        Rows([alone, *rows.groups], ["Zero-shot", *rows.names], anchors), with_domains=True
    )
    note = (
        "Zero-shot: the same classifier on the same images without adaptation, as recorded with the runs "
        f"of {rows.names[source]}."
    )
    return replace(table, notes=(note, *table.notes))


def _overview(settings: Sequence[Setting]) -> Part:
    """Averages of every method in every setting."""
    methods = sorted({name for one in settings for name in one.own}, key=_in_order)
    titles = [paper.title(name) for name in methods]
    columns = [Column("Method", titles, WORDS)]
    for one in settings:
        means, spreads = (one.rows.over("scores.average", how) for how in ("mean", "std"))
        places = [one.own.get(name) for name in methods]
        found = ([numbers.get(place) for place in places] for numbers in (means, spreads))
        columns.append(Column(one.name, next(found), spread=next(found), ranked=True))
    note = "Average accuracy over domains in percent, mean \u00b1 standard deviation over seeds."
    return _table(Table("Averages", columns, [note], methods=titles), "overview-table")


def _in_order(method: str) -> tuple[int, str]:
    return paper.position(method), method


def _pairs(settings: Sequence[Setting]) -> Iterator[Part]:
    """Bars and a table for data that ran with single and with mixed domains."""
    found: dict[str, dict[str, Setting]] = {}
    for one in settings:
        facts = [one.experiment[name] for name in ("data", "model", "data_options", "templates")]
        if one.experiment["protocol"] in ("single", "mixed"):
            pair = found.setdefault(json.dumps(facts, sort_keys=True), {})
            pair.setdefault(one.experiment["protocol"], one)
    pairs = [(pair["single"], pair["mixed"]) for pair in found.values() if len(pair) == 2]
    for number, (single, mixed) in enumerate(pairs, start=1):
        names = sorted(single.own.keys() & mixed.own.keys(), key=_in_order)
        titles = [paper.title(name) for name in names]
        if set(names) <= {"clip", "ensemble"}:
            continue
        where = f"{_data_title(mixed.experiment['data'])}, {mixed.experiment['model']}"
        rows = {
            kind: one.rows.only([one.own[name] for name in names])
            for kind, one in (("single", single), ("mixed", mixed))
        }
        means = pd.DataFrame({kind: one.over("scores.average") for kind, one in rows.items()})
        spreads = pd.DataFrame({kind: one.over("scores.average", "std") for kind, one in rows.items()})
        lines = {
            paper.title(name): mixed.rows.over("scores.average")[mixed.own[name]]
            for name in ("clip", "ensemble")
            if name in mixed.own
        }
        bars = {
            title: {kind: (means[kind][row], spreads[kind][row]) for kind in rows}
            for row, title in enumerate(titles)
            if title not in lines
        }
        drawn = figures.grouped_bars(bars, lines, title=f"Single and mixed domains: {where}")
        yield _figure("pair", drawn, where, methods=len(bars))
        columns = [Column("Method", titles, WORDS)]
        columns += [
            tables.score_column(one, kind.capitalize(), "scores.average") for kind, one in rows.items()
        ]
        columns.append(Column(f"Mixed {MINUS} single", means["mixed"] - means["single"], "+z.2f"))
        for kind, part in rows.items():
            printed = [paper.beside(first) for first in part.firsts]
            values, hints = (
                [numbers.get("average") for numbers, _ in printed],
                [tables.source(*pair) for pair in printed],
            )
            columns.append(tables.paper_column(values, hints, f"{kind.capitalize()}, paper"))
        note = "Average accuracy in percent."
        yield _table(Table(where, columns, [note], methods=titles).trimmed(), f"pair-{number}")


def _sweep_parts(settings: Sequence[Setting]) -> Iterator[Part]:
    """A curve or bars, and a table, for each sweep."""
    found = [(one.name, sweep) for one in settings for sweep in one.sweeps]
    for number, (where, sweep) in enumerate(found, start=1):
        name = paper.title(sweep.method)
        yield _figure("sweep", figures.sweep_figure(sweep), where, method=name, by=sweep.parameter)
        yield _table(tables.sweep_table(sweep), f"sweep-{number}", f"{name}: {sweep.parameter}, {where}")


def _searches(found: Collection) -> tuple[list[Part], list[str]]:
    """The tables of searches for parameters, and why other results are not shown."""
    from ramen.experiments.tune import KIND, chosen_table

    shown: list[Part] = []
    left_out = []
    for one in sorted(found.others, key=lambda one: json.dumps(one, sort_keys=True)):
        kind = one.get("study") if one.get("kind") == "study" else None
        try:
            if kind != KIND:
                raise KeyError(kind)
            shown.append(_table(chosen_table(one["data"]), f"search-{len(shown) + 1}"))
        except (KeyError, TypeError, ValueError):
            what = f"kind {one.get('kind')!r}" if kind is None else f"the study {kind!r}"
            left_out.append(f"a result of {what}")
    return shown, left_out


# -- figures ------------------------------------------------------------------------------------------------


def _gains(rows: Rows, where: str) -> Part:
    domains = list(rows.firsts[0]["scores"]["domains"])
    gains = [
        rows.over(f"scores.domains.{one}") - rows.over(f"scores.zero_shot.domains.{one}") for one in domains
    ]
    by_name = dict(zip(rows.names, zip(*gains, strict=True), strict=True))
    figure = figures.gain_map(domains, by_name, title="Points above zero-shot on each domain")
    return _figure("gains", figure, where, methods=len(rows))


def _changes(rows: Rows, where: str) -> Part:
    shares = [rows.over(tables.change_shares(rows, kind)) for kind in ("repaired", "broken")]
    changes = dict(zip(rows.names, zip(*shares, strict=True), strict=True))
    figure = figures.change_bars(changes, title="Answers repaired and broken, compared with zero-shot")
    return _figure("changes", figure, where)


def _reliability(rows: Rows, where: str) -> Iterator[Part]:
    """Accuracy against confidence of the best methods; nothing for runs that did not record it."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows.over("scores.average").sort_values(ascending=False, kind="stable").index:
        bins = [one["scores"].get("reliability") for one in rows.groups[row]]
        if all(bins) and len(series) < _SHOWN:
            series[rows.names[row]] = [
                (fmean(b["confidence"] for b in same), fmean(b["accuracy"] for b in same))
                for same in zip(*bins, strict=False)
            ]
    if series:
        figure = figures.reliability_diagram(series, title="Accuracy by confidence")
        yield _figure("reliability", figure, where, methods=list(series))


def _stages(rows: Rows, where: str) -> Part:
    """Time per stage, without reading: whoever runs first reads from the disk."""
    images = np.array([max(1, first["cost"]["images"]) for first in rows.firsts])
    times = tables.stage_seconds(rows).mul(1000 / images, axis="index")
    reading = times.pop("read") if "read" in times else None
    took = [] if reading is None else [f"{time:.3g}" for time in (reading.min(), reading.max())]
    stages = {name: times.loc[row].dropna().to_dict() for row, name in enumerate(rows.names)}
    figure = figures.stage_bars(stages, title="Time per stage")
    return _figure("stages", figure, where, reading=list(dict.fromkeys(took)))


def _compositions(rows: Rows, where: str) -> Iterator[Part]:
    """A heat map for each row whose method retrieves, summed over seeds."""
    for name, group in zip(rows.names, rows.groups, strict=True):
        found = [result["composition"] for result in group if result.get("composition")]
        found = [one for one in found if one["domains"] == found[0]["domains"]]
        if not found:
            continue
        figure = figures.composition_map(
            found[0]["domains"],
            np.sum([one["counts"] for one in found], axis=0).tolist(),
            chance=fmean(one["chance_weighted"] for one in found),
            title=f"Domains of the support of {name}",
        )
        weighted = fmean(one["same_domain_weighted"] for one in found)
        yield _figure("composition", figure, where, method=name, weighted=weighted)


# -- the settings of every number ---------------------------------------------------------------------------


def _blocks(setting: Setting) -> Iterator[Part]:
    """Blocks that open on a click, with all settings of each row's runs."""
    rows = setting.everything
    for name, anchor, group, seeds in zip(
        rows.names, rows.anchors or [], rows.groups, rows.seeds, strict=True
    ):
        runs = [dict(_flat(result)) for result in group]
        names = list(dict.fromkeys(name for run in runs for name in run))
        common = [one for one in names if all(run.get(one) == runs[0].get(one) for run in runs)]
        own = [one for one in names if one not in common]
        columns = [
            Column("Seed", seeds, "d"),
            Column("Average, %", [one["scores"]["average"] for one in group], ".4f"),
        ]
        for part, what in own:
            values = ["" if run.get((part, what)) is None else str(run[part, what]) for run in runs]
            columns.append(Column(f"{_HEADINGS[part]}: {what}", values, WORDS))
        yield {
            "settings": [
                (_HEADINGS[part], [(what, runs[0][part, what]) for _, what in members])
                for part, members in groupby(
                    sorted(common, key=lambda one: list(_HEADINGS).index(one[0])), key=lambda one: one[0]
                )
            ],
            "id": anchor,
            "name": name,
            "where": f"{setting.name} · seed{'s'[: len(runs) > 1]} {', '.join(map(str, seeds))}",
            "differ": bool(own),
            "runs": _table(
                Table("Each run", columns, ids=[f"{anchor}-seed{seed}" for seed in seeds]), f"{anchor}-runs"
            ),
        }


def _flat(result: Result) -> Iterator[tuple[tuple[str, str], Any]]:
    """All settings of a result by part and name, without the seed."""
    blocks = {
        "experiment": {name: value for name, value in result["experiment"].items() if name != "seed"},
        "preset": {name: result.get(name) for name in ("preset", "overrides")},
    }
    others: dict[str, Any] = {}
    for name, block in (result.get("provenance") or {}).items():
        known = name in _HEADINGS and isinstance(block, Mapping)
        (blocks if known else others)[name] = block
    for part, block in {**blocks, "other": others}.items():
        for name, value in _leaves(block):
            yield (part, name.replace("_", " ")), value


def _leaves(block: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{name}: {inner}", leaf) for inner, leaf in _leaves(value))
        else:
            yield name, value
