"""One page for a set of results: tables, figures, and the settings of every number."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramen.experiments.analysis.grouping import Collection, collect
from ramen.experiments.html import Markup, element
from ramen.experiments.report import comparisons, figures, studies
from ramen.experiments.report.document import Page, document
from ramen.experiments.report.provenance import settings_block
from ramen.experiments.report.sections import SettingSection, details, make_sections
from ramen.experiments.report.zero_shot_row import zero_shot_note, zero_shot_row
from ramen.experiments.tables.accuracy import averages_table
from ramen.experiments.tables.changes import changes_table
from ramen.experiments.tables.cost import cost_table
from ramen.experiments.tables.html import html_table
from ramen.experiments.tables.table import Table
from ramen.utils import atomic_files


def write_report(paths: Sequence[Path | str], out: Path | str, *, title: str = "Results") -> Collection:
    """Read results and write the page; the same results give the same bytes.

    Args:
        paths: Result files, or folders to search for them.
        out: The HTML file; missing parent folders are created.
        title: The page's heading.
    """
    found = collect(paths)
    atomic_files.write_text(out, make_page(found, title=title))
    return found


def make_page(found: Collection, *, title: str = "Results") -> str:
    """The self-contained page as text."""
    sections = make_sections(found)
    page = Page()
    shown, left_out = _studies(found)
    if found.warnings or left_out:
        items = [element("li", warning) for warning in (*found.warnings, *left_out)]
        page.add("left-out", "Not shown", element("ul", *items, class_="bad"))
    if sections:
        page.add("overview", "Overview", html_table(comparisons.overview(sections), "overview-table"))
    for section in sections:
        page.add(section.anchor, section.name, *_section_parts(section))
    comparisons.add_pairs(page, sections)
    comparisons.add_ablations(page, sections)
    comparisons.add_sweeps(page, sections)
    for place, study in enumerate(shown):
        title_of = str(study.get("title") or study["study"])
        page.add(f"study-{place}", title_of, *studies.parts(study, place))
    blocks = [settings_block(row, section.name) for section in sections for row in section.all_rows]
    if blocks:
        note = "Everything that decided a number, as recorded with the result."
        page.add("settings", "Settings of every number", element("p", note, class_="soft"), *blocks)
    return document(title, _summary(found, sections), page)


def _studies(found: Collection) -> tuple[list[dict[str, Any]], list[str]]:
    """The studies that can be shown, and why other results cannot."""
    shown, left_out = [], []
    for one in sorted(found.others, key=lambda one: json.dumps(one, sort_keys=True)):
        reason = (
            studies.problem(one) if one.get("kind") == "study" else f"a result of kind {one.get('kind')!r}"
        )
        if reason is None:
            shown.append(one)
        else:
            left_out.append(reason)
    return shown, left_out


def _section_parts(section: SettingSection) -> Iterator[Markup]:
    first = section.groups[0]
    images = sum(first.results[0]["scores"]["images"].values())
    seeds = sorted({seed for one in section.groups for seed in one.seeds})
    facts = (
        f"{images:,} images of {len(first.domains)} domain{'s'[: len(first.domains) != 1]}, "
        f"seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}; {details(first.experiment)}."
    )
    yield element("p", facts, class_="soft")
    zero_shot = zero_shot_row(section.rows)
    accuracy = averages_table([*([zero_shot] if zero_shot else []), *section.rows], with_domains=True)
    if zero_shot:
        accuracy = replace(accuracy, notes=(zero_shot_note(section.rows), *accuracy.notes))
    yield _titled(accuracy, "Accuracy, %", f"{section.anchor}-accuracy")
    plain = [row for row in section.rows if row.group.experiment["label"] is None] or section.rows
    variants = [row for row in section.rows if row not in plain]
    yield from figures.domain_figures(plain, zero_shot, section.name)
    yield _titled(changes_table(section.rows), "Repaired, broken, calibrated", f"{section.anchor}-changes")
    yield figures.change_figure(plain, section.name)
    yield _titled(cost_table(section.rows), "Time and memory", f"{section.anchor}-cost")
    yield from figures.time_figures(plain, section.name)
    yield from figures.composition_figures(plain, section.name)
    more = figures.composition_figures(variants, section.name)
    if more:
        yield element("details", element("summary", "The same for the variants"), element("div", *more))


def _titled(table: Table, title: str, anchor: str) -> Markup:
    """A table below a section's heading, which already names the setting."""
    return html_table(replace(table, title=title), anchor)


def _summary(found: Collection, sections: Sequence[SettingSection]) -> str:
    rows = [row for one in sections for row in one.all_rows]
    methods = {row.group.method for row in rows}
    commits = sorted(
        {str(run["provenance"].get("commit"))[:12] for run in found.results if "provenance" in run} - {"None"}
    )
    words = [
        _counted(len(found.results), "run"),
        _counted(len(methods), "method"),
        _counted(len({row.group.experiment["data"] for row in rows}), "data set"),
        _counted(len({row.group.experiment["model"] for row in rows}), "model"),
        _counted(len({seed for row in rows for seed in row.group.seeds}), "seed"),
    ]
    made = f" Commit {', '.join(commits)}." if commits else ""
    return f"{', '.join(words)}.{made} Click a column's head to sort, or a name to see its settings."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s'[: number != 1]}"
