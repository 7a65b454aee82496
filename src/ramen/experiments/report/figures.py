"""The figures of a page, with alternative texts."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.grouping import Group
from ramen.experiments.analysis.sweep_curve import Sweep
from ramen.experiments.figures import cost, heatmaps, results
from ramen.experiments.figures.style import page_svg
from ramen.experiments.html import Markup, svg_figure
from ramen.experiments.report.related_rows import reference_lines, unvaried_groups
from ramen.experiments.tables.changes import change_shares
from ramen.experiments.tables.cost import stage_means
from ramen.experiments.tables.group_rows import GroupRow

_SHOWN = 4  # methods in colour among dots


def domain_figures(rows: Sequence[GroupRow], zero_shot: GroupRow | None, where: str) -> list[Markup]:
    """Methods by domains; empty if there is only one of either.

    Args:
        rows: The methods that were run.
        zero_shot: Zero-shot as their runs recorded it, if it is not one of the methods.
        where: The setting in words.
    """
    if len(rows) < 2 or len(rows[0].group.domains) < 2:
        return []
    return [_gains(rows, where), _dots([*([zero_shot] if zero_shot else []), *rows], where)]


def time_figures(rows: Sequence[GroupRow], where: str) -> list[Markup]:
    """Time per stage, and accuracy against time."""
    return [_stages(rows, where), *([_cost(rows, where)] if len(rows) > 1 else [])]


def _gains(rows: Sequence[GroupRow], where: str) -> Markup:
    domains = list(rows[0].group.domains)
    gains = {row.name: [_domain_gain(row.group, domain) for domain in domains] for row in rows}
    figure = heatmaps.gain_map(domains, gains, title="Points above zero-shot on each domain")
    caption = "Blue: better than the same classifier without adaptation on the same images. Orange: worse."
    return svg_figure(
        page_svg(figure), f"Points above zero-shot of {len(rows)} methods by domain, {where}", caption
    )


def _domain_gain(group: Group, domain: str) -> float | None:
    if domain not in group.domains:
        return None
    return fmean(
        scores["domains"][domain] - scores["zero_shot"]["domains"][domain] for scores in group.each("scores")
    )


def _dots(rows: Sequence[GroupRow], where: str) -> Markup:
    domains = list(rows[0].group.domains)
    accuracies = {row.name: _domain_means(row.group, domains) for row in rows}
    by_average = sorted(rows, key=lambda row: -row.group.average.mean)
    plain = [row for method in ("ensemble", "clip") for row in rows if row.group.method == method][:1]
    shown = [row.name for row in (*plain, *(row for row in by_average if row not in plain))][:_SHOWN]
    figure = results.domain_dots(domains, accuracies, shown, title="Accuracy on each domain")
    caption = None
    if plain:
        caption = (
            f"In colour: {plain[0].name}, and the methods with the highest averages. Methods that tie on a "
            "domain are drawn one below the other."
        )
    return svg_figure(page_svg(figure), f"Accuracy of {', '.join(shown)} by domain, {where}", caption)


def _domain_means(group: Group, domains: Sequence[str]) -> list[float | None]:
    return [group.domains[domain].mean if domain in group.domains else None for domain in domains]


def change_figure(rows: Sequence[GroupRow], where: str) -> Markup:
    """Repaired and broken answers."""
    changes = {
        row.name: (fmean(change_shares(row.group, "repaired")), fmean(change_shares(row.group, "broken")))
        for row in rows
    }
    figure = results.change_bars(changes, title="Answers repaired and broken, compared with zero-shot")
    return svg_figure(page_svg(figure), f"Shares of repaired and broken answers of each method, {where}")


def _stages(rows: Sequence[GroupRow], where: str) -> Markup:
    stages = {
        row.name: {
            stage: 1000 * seconds / max(1, row.group.results[0]["cost"]["images"])
            for stage, seconds in stage_means(row.group).items()
        }
        for row in rows
    }
    reading = [times.pop("read") for times in stages.values() if "read" in times]
    figure = cost.stage_bars(stages, title="Time per stage")
    caption = None
    if reading:
        took = " to ".join(dict.fromkeys(f"{time:.3g}" for time in (min(reading), max(reading))))
        caption = (
            f"Without reading, which is not the method's: it took {took} ms per image, from a disk the first "
            "time and from memory later."
        )
    return svg_figure(page_svg(figure), f"Milliseconds per image by stage for each method, {where}", caption)


def _cost(rows: Sequence[GroupRow], where: str) -> Markup:
    points = {row.name: (row.group.over("cost", "ms_an_image").mean, row.group.average.mean) for row in rows}
    figure = cost.cost_dots(points, title="Accuracy against time")
    return svg_figure(page_svg(figure), f"Accuracy against milliseconds per image for each method, {where}")


def composition_figures(rows: Sequence[GroupRow], where: str) -> list[Markup]:
    """A heat map for each row whose method retrieves, summed over seeds."""
    drawn = []
    for row in rows:
        found = [result["composition"] for result in row.group.results if result.get("composition")]
        found = [one for one in found if one["domains"] == found[0]["domains"]]
        if not found:
            continue
        counts = np.sum([one["counts"] for one in found], axis=0)
        chance = fmean(one["chance_weighted"] for one in found)
        figure = heatmaps.composition_map(
            found[0]["domains"],
            counts.tolist(),
            chance=chance,
            title=f"Domains of the support of {row.name}",
        )
        weighted = fmean(one["same_domain_weighted"] for one in found)
        caption = (
            "Each row is a domain of test images and adds up to 100 %. The mean of the diagonal weights all "
            f"domains equally; weighted by images it is {weighted:.1f} %. Chance is the share of the same "
            "domain among random images of the stream."
        )
        drawn.append(
            svg_figure(page_svg(figure), f"Shares of support by domain for {row.name}, {where}", caption)
        )
    return drawn


def sweep_figure(sweep: Sweep, where: str) -> Markup:
    """The curve of a sweep."""
    return svg_figure(
        page_svg(results.sweep_figure(sweep)),
        f"Accuracy of {paper.title(sweep.method)} by {sweep.parameter}, {where}",
    )


def pair_figure(pair: Mapping[str, Sequence[Group]], where: str) -> Markup | None:
    """Bars of the methods that ran on single and on mixed domains; None if there are none."""
    own = {protocol: unvaried_groups(groups) for protocol, groups in pair.items()}
    lines = reference_lines(pair["mixed"], ("clip", "ensemble"))
    names = [one for one in own["mixed"] if one in own["single"] and paper.title(one) not in lines]
    names.sort(key=paper.position)
    if not names:
        return None
    groups = {
        paper.title(name): {protocol: own[protocol][name].average for protocol in ("single", "mixed")}
        for name in names
    }
    figure = results.grouped_bars(groups, lines, title=f"Single and mixed domains: {where}")
    return svg_figure(
        page_svg(figure), f"Accuracy of {len(names)} methods on single and on mixed domains, {where}"
    )


def ablation_figure(
    variants: Mapping[str, Mapping[str, Group]], lines: Mapping[str, float], where: str
) -> Markup:
    """Bars of a method's variants for each protocol."""
    groups = {
        label: {protocol: one.average for protocol, one in sorted(by_protocol.items(), reverse=True)}
        for label, by_protocol in variants.items()
    }
    figure = results.grouped_bars(groups, lines, title=f"Variants: {where}")
    return svg_figure(page_svg(figure), f"Accuracy of {', '.join(variants)}, {where}")
