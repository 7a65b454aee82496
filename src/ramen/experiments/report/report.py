"""One page with everything that results tell: tables, figures, and the settings behind every number."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramen.experiments.analysis.grouping import Collection, collect
from ramen.experiments.report import comparisons, figures, studies
from ramen.experiments.report.document import Page, document
from ramen.experiments.report.html import Markup, element, render
from ramen.experiments.report.provenance import settings_block
from ramen.experiments.report.stream_settings import Setting, details, settings_of
from ramen.experiments.report.tables import accuracy_table, change_table, cost_table


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
    settings = settings_of(found)
    page = Page()
    shown, left_out = _studies(found)
    if found.warnings or left_out:
        items = [element("li", warning) for warning in (*found.warnings, *left_out)]
        page.add("left-out", "Left out", element("ul", *items, class_="bad"))
    if settings:
        page.add("overview", "Overview", render(comparisons.overview(settings)))
    for setting in settings:
        page.add(setting.anchor, setting.name, *_setting_parts(setting))
    comparisons.add_pairs(page, settings)
    comparisons.add_ablations(page, settings)
    comparisons.add_sweeps(page, settings)
    for place, study in enumerate(shown):
        title_of = str(study.get("title") or study["study"])
        page.add(f"study-{place}", title_of, *studies.parts(study, place))
    blocks = [settings_block(row, setting.name) for setting in settings for row in setting.all_rows]
    if blocks:
        note = "Everything that decided a number, as it was written down with the result."
        page.add("settings", "Settings behind every number", element("p", note, class_="soft"), *blocks)
    return document(title, _summary(found, settings), page)


def _studies(found: Collection) -> tuple[list[dict[str, Any]], list[str]]:
    """Those that can be shown, and what is to be said of everything else that is no run."""
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


def _setting_parts(setting: Setting) -> Iterator[Markup]:
    first = setting.groups[0]
    images = sum(first.results[0]["scores"]["images"].values())
    seeds = sorted({seed for one in setting.groups for seed in one.seeds})
    facts = (
        f"{images:,} images of {len(first.domains)} domain{'s'[: len(first.domains) != 1]}, "
        f"seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}; {details(first.experiment)}."
    )
    yield element("p", facts, class_="soft")
    yield render(accuracy_table(setting.rows, f"{setting.anchor}-accuracy"))
    plain = [row for row in setting.rows if row.group.experiment["label"] is None] or setting.rows
    variants = [row for row in setting.rows if row not in plain]
    yield from figures.domain_figures(plain, setting.name)
    yield render(change_table(setting.rows, f"{setting.anchor}-changes"))
    yield figures.change_figure(plain, setting.name)
    yield render(cost_table(setting.rows, f"{setting.anchor}-cost"))
    yield from figures.time_figures(plain, setting.name)
    yield from figures.composition_figures(plain, setting.name)
    more = figures.composition_figures(variants, setting.name)
    if more:
        yield element("details", element("summary", "The same of the variants"), element("div", *more))


def _summary(found: Collection, settings: Sequence[Setting]) -> str:
    rows = [row for one in settings for row in one.all_rows]
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
    return f"{', '.join(words)}.{made} Column heads sort; names lead to the settings behind their numbers."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s'[: number != 1]}"
