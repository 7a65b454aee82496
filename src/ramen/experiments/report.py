"""One page for a set of results: tables, figures, and the settings of every number."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ramen.experiments import figures, paper, tables
from ramen.experiments.render import MARK, PLUS_MINUS, WORDS, Column, Table
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
NOTHING = "\N{EN DASH}"
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
    sections = _sections(found)
    searches, left_out = _searches(found)
    shown: list[Part] = []

    def add(anchor: str, heading: str, parts: Sequence[Part]) -> None:
        if parts:
            shown.append({"id": anchor, "title": heading, "parts": list(parts)})

    complaints = [*found.warnings, *left_out]
    add("left-out", "Not shown", [{"list": complaints}] if complaints else [])
    if sections:
        add("overview", "Overview", [table_part(_overview(sections), "overview-table")])
    for section in sections:
        add(section.anchor, section.name, list(_setting_parts(section)))
    add("single-mixed", "Single and mixed domains", list(_pairs(sections)))
    add("sweeps", "Sweeps", list(_sweep_parts(sections)))
    add("searches", "Parameters chosen by searches", searches)
    blocks = [block for section in sections for block in _settings_blocks(section)]
    if blocks:
        note = "Everything that decided a number, as recorded with the result."
        add("settings", "Settings of every number", [{"text": note}, *blocks])
    summary = _summary(found, sections)
    return pages.render("experiments/page.html.j2", title=title, summary=summary, sections=shown)


# -- sections -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """The rows of one stream and classifier, and their sweeps.

    Attributes:
        name: The heading.
        anchor: The section's id.
        rows: What its tables show.
        everything: These, and the points of the sweeps.
        sweeps: Curves, whose points but one are not among ``rows``.
    """

    name: str
    anchor: str
    rows: Rows
    everything: Rows
    sweeps: list[Sweep]

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


def _sections(found: Collection) -> list[Section]:
    """The sections in an order that does not depend on that of the files."""
    runs = sorted(found.results, key=lambda result: str(sorted(result["experiment"].items(), key=str)))
    settings = sorted(settings_of(runs), key=lambda groups: _order(groups[0][0]))
    names = _section_names([groups[0][0]["experiment"] for groups in settings])
    plans = [_found_plan(plan, found) for plan in sorted(found.plans, key=lambda one: json.dumps(one))]
    sections: list[Section] = []
    first = 1
    for place, (groups, name) in enumerate(zip(settings, names, strict=True)):
        own = [plan for plan in plans if plan and setting_key(plan["points"][0]) == setting_key(groups[0][0])]
        moved = {identity(one) for plan in own for one in plan["points"] if one not in plan["base"]}
        kept = [group for group in groups if identity(group[0]) not in moved] or groups
        others = [group for group in groups if group not in kept]
        anchors = [f"settings-{first + number}" for number in range(len(groups))]
        everything = _with_methods(Rows([*kept, *others], anchors=anchors))
        rows = _with_methods(Rows(kept, anchors=anchors[: len(kept)]))
        sweeps = [sweep for plan in own if (sweep := _sweep(plan, everything)) is not None]
        sections.append(Section(name, f"setting-{place + 1}", rows, everything, sweeps))
        first += len(groups)
    return sections


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


def _order(result: Result) -> tuple[int, str, str, str]:
    from ramen.data.catalogue import list_datasets

    data, known = result["experiment"]["data"], list_datasets()
    place = known.index(data) if data in known else len(known)
    return place, data, result["experiment"]["model"], setting_key(result)


def _section_names(experiments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Data, protocol and model; the remaining options too, if that is not unique."""
    short = [f"{_data_title(one['data'])}, {one['protocol']}, {one['model']}" for one in experiments]
    return [
        f"{name} ({_details(one)})" if short.count(name) > 1 else name
        for name, one in zip(short, experiments, strict=True)
    ]


def _details(experiment: Mapping[str, Any]) -> str:
    """Options and parameters of data and protocol, and the templates, in words."""
    facts = {
        **experiment["data_options"],
        **experiment["protocol_parameters"],
        "templates": experiment["templates"],
    }
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _data_title(name: str) -> str:
    """A data set's name as papers write it; the name itself if it is not registered."""
    from ramen.data.catalogue import describe

    try:
        return describe(name).title
    except ValueError:
        return name


def _summary(found: Collection, sections: Sequence[Section]) -> str:
    experiments = [one["experiment"] for one in found.results]
    commits = {str(run["provenance"].get("commit"))[:12] for run in found.results if "provenance" in run}
    counts = [("run", len(found.results))]
    counts += [
        (name.replace("data", "data set"), len({one[name] for one in experiments}))
        for name in ("method", "data", "model", "seed")
    ]
    words = [f"{number:,} {what}{'s'[: number != 1]}" for what, number in counts]
    made = f" Commit {', '.join(sorted(commits - {'None'}))}." if commits - {"None"} else ""
    return f"{', '.join(words)}.{made} Click a column's head to sort, or a name to see its settings."


# -- parts --------------------------------------------------------------------------------------------------


def _setting_parts(section: Section) -> Iterator[Part]:
    rows, experiment = section.rows, section.experiment
    images = sum(rows.firsts[0]["scores"]["images"].values())
    domains = len(rows.firsts[0]["scores"]["domains"])
    seeds = sorted({seed for one in rows.seeds for seed in one})
    yield {
        "text": f"{images:,} images of {domains} domain{'s'[: domains != 1]}, seed{'s'[: len(seeds) > 1]} "
        f"{', '.join(map(str, seeds))}; {_details(experiment)}."
    }
    accuracy = tables.averages_table(_with_zero_shot(rows), with_domains=True)
    if ZERO_SHOT not in rows.facts("method"):
        note = (
            "Zero-shot: the same classifier on the same images without adaptation, as recorded with the runs "
            f"of {rows.names[_most_seeds(rows)]}."
        )
        accuracy = replace(accuracy, notes=(note, *accuracy.notes))
    yield _titled(accuracy, "Accuracy, %", f"{section.anchor}-accuracy")
    labels = rows.facts("label")
    plain = rows.only([row for row in range(len(rows)) if labels[row] is None] or range(len(rows)))
    if len(plain) > 1 and domains > 1:
        yield _gains(plain, section.name)
    yield _titled(tables.changes_table(rows), "Repaired, broken, calibrated", f"{section.anchor}-changes")
    yield _changes(plain, section.name)
    yield from _reliability(plain, section.name)
    yield _titled(tables.cost_table(rows), "Time and memory", f"{section.anchor}-cost")
    yield _stages(plain, section.name)
    if len(plain) > 1:
        points = zip(plain.over("cost.ms_an_image"), plain.over("scores.average"), strict=True)
        drawn = figures.cost_dots(dict(zip(plain.names, points, strict=True)), title="Accuracy against time")  # type: ignore[arg-type]
        yield _figure(drawn, f"Accuracy against milliseconds per image for each method, {section.name}")
    yield from _compositions(plain, section.name)
    variants = [row for row in range(len(rows)) if rows.names[row] not in plain.names]
    more = list(_compositions(rows.only(variants), section.name)) if variants else []
    if more:
        yield {"more": "The same for the variants", "parts": more}


def _most_seeds(rows: Rows) -> int:
    return max(range(len(rows)), key=lambda row: len(rows.seeds[row]))


def _with_zero_shot(rows: Rows) -> Rows:
    """Zero-shot as a row of its own, also if nobody ran it: every run records what the classifier does alone.

    The row with the most seeds says it.
    """
    if ZERO_SHOT in rows.facts("method"):
        return rows
    source = _most_seeds(rows)
    alone = [
        {
            **result,
            "experiment": {**result["experiment"], "method": ZERO_SHOT, "parameters": {}, "label": None},
            "overrides": {},
            "scores": {
                **result["scores"],
                **result["scores"]["zero_shot"],
                "difference": {"points": 0.0, "margin": 0.0},
            },
        }
        for result in rows.groups[source]
    ]
    anchors = None if rows.anchors is None else [rows.anchors[source], *rows.anchors]
    return Rows([alone, *rows.groups], ["Zero-shot", *rows.names], anchors)


def _overview(sections: Sequence[Section]) -> Table:
    """Averages of every method in every setting."""
    methods = sorted(
        {name for one in sections for name in one.own}, key=lambda name: (paper.position(name), name)
    )
    titles = [paper.title(name) for name in methods]
    columns = [Column("Method", titles, WORDS)]
    for section in sections:
        means, spreads = (section.rows.over("scores.average", how) for how in ("mean", "std"))
        places = [section.own.get(name) for name in methods]
        columns.append(
            Column(
                section.name,
                [None if place is None else means[place] for place in places],
                spread=[None if place is None else spreads[place] for place in places],
                ranked=True,
            )
        )
    note = "Average accuracy over domains in percent, mean \u00b1 standard deviation over seeds."
    return Table("Averages", columns, [note], methods=titles)


def _pairs(sections: Sequence[Section]) -> Iterator[Part]:
    """Bars and a table for data that ran with single and with mixed domains."""
    found: dict[str, dict[str, Section]] = {}
    for section in sections:
        facts = [section.experiment[name] for name in ("data", "model", "data_options", "templates")]
        place = json.dumps(facts, sort_keys=True)
        if section.experiment["protocol"] in ("single", "mixed"):
            found.setdefault(place, {}).setdefault(section.experiment["protocol"], section)
    pairs = [pair for pair in found.values() if len(pair) == 2]
    for number, pair in enumerate(pairs, start=1):
        single, mixed = pair["single"], pair["mixed"]
        names = sorted(single.own.keys() & mixed.own.keys(), key=lambda name: (paper.position(name), name))
        lines = {
            paper.title(name): _bar(mixed.rows, mixed.own[name])[0]
            for name in ("clip", "ensemble")
            if name in mixed.own
        }
        barred = [name for name in names if paper.title(name) not in lines]
        if not barred:
            continue
        where = f"{_data_title(mixed.experiment['data'])}, {mixed.experiment['model']}"
        bars = {
            paper.title(name): {
                kind: _bar(pair[kind].rows, pair[kind].own[name]) for kind in ("single", "mixed")
            }
            for name in barred
        }
        drawn = figures.grouped_bars(bars, lines, title=f"Single and mixed domains: {where}")
        yield _figure(drawn, f"Accuracy of {len(barred)} methods on single and on mixed domains, {where}")
        yield table_part(_pair_table(single, mixed, names, where), f"pair-{number}")


def _bar(rows: Rows, row: int) -> tuple[float, float | None]:
    return rows.over("scores.average")[row] or 0.0, rows.over("scores.average", "std")[row]


def _pair_table(single: Section, mixed: Section, names: Sequence[str], where: str) -> Table:
    parts = [one.rows.only([one.own[name] for name in names]) for one in (single, mixed)]
    averages = [one.over("scores.average") for one in parts]
    differences = [(b or 0.0) - (a or 0.0) for a, b in zip(*averages, strict=True)]
    titles = [paper.title(name) for name in names]
    columns = [Column("Method", titles, WORDS)]
    heads = ("Single", "Mixed")
    columns += [
        tables.score_column(one, head, "scores.average") for one, head in zip(parts, heads, strict=True)
    ]
    columns.append(Column(f"Mixed {MINUS} single", differences, "+z.2f"))
    for one, head in zip(parts, heads, strict=True):
        printed = [paper.beside(first) for first in one.firsts]
        values = [numbers.get("average") for numbers, _ in printed]
        hints = [tables.source(*pair) for pair in printed]
        columns.append(replace(tables.paper_column(values, hints), head=f"{head}, paper"))
    return Table(where, columns, ["Average accuracy in percent."], methods=titles).trimmed()


def _sweep_parts(sections: Sequence[Section]) -> Iterator[Part]:
    """A curve or bars, and a table, for each sweep."""
    found = [(section, sweep) for section in sections for sweep in section.sweeps]
    for place, (section, sweep) in enumerate(found):
        title = f"{paper.title(sweep.method)}: {sweep.parameter}, {section.name}"
        alt = f"Accuracy of {paper.title(sweep.method)} by {sweep.parameter}, {section.name}"
        yield _figure(figures.sweep_figure(sweep), alt)
        yield _titled(tables.sweep_table(sweep), title, f"sweep-{place + 1}")


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
            shown.append(table_part(chosen_table(one["data"]), f"search-{len(shown) + 1}"))
        except (KeyError, TypeError, ValueError):
            what = f"kind {one.get('kind')!r}" if kind is None else f"the study {kind!r}"
            left_out.append(f"a result of {what}")
    return shown, left_out


# -- figures ------------------------------------------------------------------------------------------------


def _figure(figure: Figure, alt: str, caption: str | None = None) -> Part:
    """A figure within the page; as a separate image, so that ids do not clash."""
    svg = base64.b64encode(page_svg(figure).encode()).decode()
    return {"figure": {"svg": svg, "alt": alt, "caption": caption}}


def _gains(rows: Rows, where: str) -> Part:
    domains = list(rows.firsts[0]["scores"]["domains"])
    own = {name: rows.over(f"scores.domains.{name}") for name in domains}
    before = {name: rows.over(f"scores.zero_shot.domains.{name}") for name in domains}
    gains = {
        name: [
            None if own[one][row] is None or before[one][row] is None else own[one][row] - before[one][row]  # type: ignore[operator]
            for one in domains
        ]
        for row, name in enumerate(rows.names)
    }
    figure = figures.gain_map(domains, gains, title="Points above zero-shot on each domain")
    caption = "Blue: better than the same classifier without adaptation on the same images. Orange: worse."
    return _figure(figure, f"Points above zero-shot of {len(rows)} methods by domain, {where}", caption)


def _changes(rows: Rows, where: str) -> Part:
    shares = [
        [fmean(values) for values in tables.change_shares(rows, kind)] for kind in ("repaired", "broken")
    ]
    changes = dict(zip(rows.names, zip(*shares, strict=True), strict=True))
    figure = figures.change_bars(changes, title="Answers repaired and broken, compared with zero-shot")
    return _figure(figure, f"Shares of repaired and broken answers of each method, {where}")


def _reliability(rows: Rows, where: str) -> Iterator[Part]:
    """Accuracy against confidence of the best methods; nothing for runs that did not record it."""
    averages = rows.over("scores.average")
    best = sorted(range(len(rows)), key=lambda row: -(averages[row] or 0.0))
    series: dict[str, list[tuple[float, float]]] = {}
    for row in best:
        bins = [one["scores"].get("reliability") for one in rows.groups[row]]
        if all(bins) and len(series) < _SHOWN:
            series[rows.names[row]] = [
                (fmean(b["confidence"] for b in same), fmean(b["accuracy"] for b in same))
                for same in zip(*bins, strict=False)
            ]
    if series:
        caption = (
            "Images in 15 bins of equally many, by confidence. On the dashed line a method is as often right "
            "as it is sure; below it, it is too sure."
        )
        figure = figures.reliability_diagram(series, title="Accuracy by confidence")
        yield _figure(figure, f"Accuracy by confidence of {', '.join(series)}, {where}", caption)


def _stages(rows: Rows, where: str) -> Part:
    """Time per stage, without reading: whoever runs first reads from the disk."""
    spent = tables.stage_seconds(rows)
    images = [max(1, first["cost"]["images"]) for first in rows.firsts]
    times = {
        name: {
            stage: 1000 * (seconds[row] or 0.0) / images[row]
            for stage, seconds in spent.items()
            if seconds[row] is not None
        }
        for row, name in enumerate(rows.names)
    }
    reading = [stages.pop("read") for stages in times.values() if "read" in stages]
    caption = None
    if reading:
        took = " to ".join(dict.fromkeys(f"{time:.3g}" for time in (min(reading), max(reading))))
        caption = (
            f"Without reading, which is not the method's: it took {took} ms per image, from a disk the first "
            "time and from memory later."
        )
    figure = figures.stage_bars(times, title="Time per stage")
    return _figure(figure, f"Milliseconds per image by stage for each method, {where}", caption)


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
        caption = (
            "Each row is a domain of test images and adds up to 100 %. The mean of the diagonal weights all "
            f"domains equally; weighted by images it is {weighted:.1f} %. Chance is the share of the same "
            "domain among random images of the stream."
        )
        yield _figure(figure, f"Shares of support by domain for {name}, {where}", caption)


# -- tables -------------------------------------------------------------------------------------------------


def _titled(table: Table, title: str, anchor: str) -> Part:
    """A table below a section's heading, which already names the setting."""
    return table_part(replace(table, title=title), anchor)


def table_part(table: Table, anchor: str) -> Part:
    """What the template's macro ``table`` shows: texts, and exact numbers to sort and copy by."""
    heads = [
        {
            "text": column.head,
            "hint": column.hint,
            "attributes": {"data-kind": _kind(column), "data-spread": column.what},
        }
        for column in table.columns
    ]
    rows = [
        {
            "attributes": {
                "data-place": place,
                "data-method": table.methods and table.methods[place],
                "id": table.ids and table.ids[place],
            },
            "cells": [_cell(table.columns[at], place, *cell, first=not at) for at, cell in enumerate(cells)],
        }
        for place, cells in enumerate(table.cells())
    ]
    return {"table": {"id": anchor, "title": table.title, "heads": heads, "rows": rows, "notes": table.notes}}


def _kind(column: Column) -> str:
    return "text" if column.left else "number"


def _cell(column: Column, row: int, text: str, style: str, marked: bool, *, first: bool) -> dict[str, Any]:
    value = column.values[row]
    sort = (text.strip() or None) if column.left and (value is None or column.texts is None) else value
    spread = None if column.spread is None or value is None else column.spread[row]
    shown = text.strip() or NOTHING
    if not column.left:
        shown = shown.replace("-", MINUS)
    number, sign, after = shown.partition(PLUS_MINUS)
    split = spread is not None and bool(sign)
    classes = [{"aside": "soft"}.get(style, style), "bad" if marked else ""]
    return {
        "text": number if split else shown,
        "spread": f"{sign}{after}" if split else "",
        "mark": MARK if marked else "",
        "links": column.links[row] if column.links else [],
        "attributes": {
            "scope": "row" if first else None,
            "data-kind": _kind(column),
            "data-sort": sort,
            "data-deviation": spread,
            "title": column.hints and column.hints[row],
            "class": " ".join(filter(None, classes)) or None,
        },
    }


# -- settings -----------------------------------------------------------------------------------------------


def _settings_blocks(section: Section) -> Iterator[Part]:
    """Blocks that open on a click, with all settings of each row's runs."""
    rows = section.everything
    for place, group in enumerate(rows.groups):
        anchor = str((rows.anchors or [])[place])
        runs = [_flat(result) for result in group]
        names = list(dict.fromkeys(name for run in runs for name in run))
        common = [name for name in names if all(run.get(name) == runs[0].get(name) for run in runs)]
        if len(runs) == 1:
            common = names
        own = [name for name in names if name not in common]
        seeds = rows.seeds[place]
        columns = [
            (heading, [(name.replace("_", " "), _value(runs[0][part, name])) for _, name in members])
            for part, heading in _HEADINGS.items()
            if (members := [name for name in common if name[0] == part])
        ]
        heads = [f"{_HEADINGS[part]}: {name}".replace("_", " ") for part, name in own]
        values = [[run.get(name) for run in runs] for name in own]
        listed = [["" if value is None else str(value) for value in column] for column in values]
        table = Table(
            "Each run",
            [
                Column("Seed", seeds, "d"),
                Column("Average, %", [one["scores"]["average"] for one in group], ".4f"),
                *(Column(head, column, WORDS) for head, column in zip(heads, listed, strict=True)),
            ],
            ids=[f"{anchor}-seed{seed}" for seed in seeds],
        )
        yield {
            "id": anchor,
            "name": rows.names[place],
            "where": f"{section.name} · seed{'s'[: len(runs) > 1]} {', '.join(map(str, seeds))}",
            "differ": bool(own),
            "columns": columns,
            "runs": table_part(table, f"{anchor}-runs")["table"],
        }


def _flat(result: Result) -> dict[tuple[str, str], Any]:
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


def _value(value: Any) -> dict[str, Any]:
    """A value for the template: missing values and booleans in words, all others as code."""
    if value is None or value in ({}, []):
        return {"soft": "none"}
    if isinstance(value, bool):
        return {"word": "yes" if value else "no"}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {"codes": value}
    return {"codes": [str(value)]}
