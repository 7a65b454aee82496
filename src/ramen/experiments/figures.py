"""Figures of experiments: each function turns plain data into a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ramen.experiments import paper
from ramen.experiments.style import (
    COLOURS,
    INK,
    SOFT,
    STRONG,
    WIDTH,
    legend_above,
    look,
    new_figure,
    save,
    short,
)
from ramen.experiments.tables import Sweep

Bar = tuple[float, float | None]  # a mean and its deviation

_DASHES = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))
_CELL = 0.5  # inches: wide enough for three digits and a point
_LOSS_TO_GAIN = LinearSegmentedColormap.from_list(
    "gain", ["#b3580c", "#f3b577", "#f4f4f2", "#8fc0ea", "#1f5f9e"]
)


def draw_sweep(path: Path | str, sweep: Sweep) -> None:
    """Write the figure of a sweep."""
    save(path, sweep_figure(sweep))


def sweep_figure(sweep: Sweep) -> Figure:
    """A curve if numbers were varied, otherwise bars."""
    title = f"{paper.title(sweep.method)}, {sweep.parameter}: {sweep.data}, {sweep.protocol}, {sweep.model}"
    if all(isinstance(point.value, int | float) for point in sweep.points):
        return _curve(sweep, title)
    bars: dict[str, dict[str, Bar]] = {}
    for point in sweep.points:
        bars[point.label] = {"measured": (point.mean, point.deviation)}
        if point.printed is not None:
            bars[point.label]["reported"] = point.printed.mean, None
    return grouped_bars(bars, sweep.lines, title=title)


def _curve(sweep: Sweep, title: str) -> Figure:
    """Points with error bars, the paper's curve dashed, and lines for the other methods.

    Values are evenly spaced, because the steps of most sweeps grow.
    """
    places = np.arange(len(sweep.points))
    means = [point.mean for point in sweep.points]
    spreads = [point.deviation or 0.0 for point in sweep.points]
    reported = [np.nan if point.printed is None else point.printed.mean for point in sweep.points]
    with look():
        figure, axes = new_figure(7.2, 3.9)
        axes.errorbar(
            places, means, spreads, color=STRONG, marker="o", markersize=5, linewidth=1.8, label="measured"
        )
        if not np.isnan(reported).all():
            axes.plot(places, reported, "s--", mfc="none", color=COLOURS[0], linewidth=1.3, label="reported")
        for place, mean, printed in zip(places, means, reported, strict=True):
            away = -15 if printed > mean else 7  # from the other curve
            axes.annotate(f"{mean:.1f}", (place, mean), (0, away), textcoords="offset points", ha="center")
        _reference_lines(axes, sweep.lines)
        axes.set_xticks(places, [short(point.label, 12) for point in sweep.points])
        axes.set(xlabel=sweep.parameter, ylabel="accuracy, %", xlim=(-0.4, len(places) - 0.6))
        axes.set_title(short(title, 90))
        axes.margins(y=0.18)
        axes.grid(axis="y")
        legend_above(axes, ["measured", "reported"])
    return figure


def grouped_bars(
    groups: Mapping[str, Mapping[str, Bar]], lines: Mapping[str, float] | None = None, *, title: str
) -> Figure:
    """Bars of accuracy with error bars, for variants and for single against mixed domains.

    Args:
        groups: For each name below the axis, its bars by their name in the legend.
        lines: Levels to compare with, by name.
        title: The heading.
    """
    lines = lines or {}
    series = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    means = [mean for bars in groups.values() for mean, _ in bars.values()] + list(lines.values())
    floor = _floor(means)
    width = 0.8 / len(series)
    with look():
        figure, axes = new_figure(max(7.2, 1.4 + len(groups) * max(0.8, 0.52 * len(series))), 4.1)
        for number, name in enumerate(series):
            found = [(place, bars[name]) for place, bars in enumerate(groups.values()) if name in bars]
            places = [place + (number - (len(series) - 1) / 2) * width for place, _ in found]
            heights = [mean for _, (mean, _) in found]
            errors = [deviation or 0.0 for _, (_, deviation) in found]
            colour = COLOURS[number % len(COLOURS)]
            drawn = axes.bar(places, heights, width * 0.92, yerr=errors, ecolor=INK, color=colour, label=name)
            axes.bar_label(drawn, [f"{height:.1f}" for height in heights], padding=2, fontsize=8)
        _reference_lines(axes, lines)
        axes.set_xticks(range(len(groups)), [short(name) for name in groups])
        if len(groups) > 6 or max(map(len, groups)) > 12:
            _slant(axes, 30)
        start = f" (the axis starts at {floor:g})" if floor else ""
        axes.set(ylim=(floor, max(means) + 0.12 * (max(means) - floor)), ylabel=f"accuracy, %{start}")
        axes.set(xlim=(-0.6, len(groups) - 0.4), title=short(title, 90))
        axes.grid(axis="y")
        legend_above(axes, series)
    return figure


def change_bars(changes: Mapping[str, tuple[float, float]], *, title: str) -> Figure:
    """The shares of images that each method repaired (right) and broke (left), in percent."""
    with look():
        figure, axes = _rows(list(changes), title)
        places = np.arange(len(changes))
        repaired, broken = np.array(list(changes.values()), dtype=float).reshape(-1, 2).T
        right = axes.barh(places, repaired, 0.7, color=COLOURS[0], label="repaired: zero-shot was wrong")
        left = axes.barh(places, -broken, 0.7, color=COLOURS[1], label="broken: zero-shot was right")
        axes.bar_label(right, [f"{share:.1f}" for share in repaired], padding=4, fontsize=8.5)
        axes.bar_label(left, [f"{share:.1f}" if share else "" for share in broken], padding=4, fontsize=8.5)
        axes.axvline(0, color=SOFT, linewidth=1)
        reach = 1.2 * max(1.0, float(repaired.max()), float(broken.max()))
        axes.set(xlim=(-reach, reach), xlabel="share of all images, %")
        axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        legend_above(axes)
    return figure


def stage_bars(stages: Mapping[str, Mapping[str, float]], *, title: str) -> Figure:
    """Stacked bars: milliseconds per image that each method spends in each stage."""
    names = list(dict.fromkeys(stage for times in stages.values() for stage in times))
    with look():
        figure, axes = _rows(list(stages), title)
        start = np.zeros(len(stages))
        for number, name in enumerate(names):
            times = np.array([method.get(name, 0.0) for method in stages.values()])
            colour = COLOURS[number % len(COLOURS)]
            drawn = axes.barh(np.arange(len(stages)), times, 0.7, left=start, color=colour, label=short(name))
            start = start + times
        axes.bar_label(drawn, [f"{total:.3g}" for total in start], padding=4, fontsize=8.5)
        axes.set(xlim=(0, 1.12 * max(float(start.max()), 1e-9)), xlabel="milliseconds per image")
        legend_above(axes)
    return figure


def cost_dots(points: Mapping[str, tuple[float, float]], *, title: str) -> Figure:
    """Accuracy against milliseconds per image, one named dot per method; better is up and to the left."""
    with look():
        figure, axes = new_figure(WIDTH, 4.4)
        times, accuracies = np.array(list(points.values()), dtype=float).reshape(-1, 2).T
        axes.scatter(times, accuracies, s=38, color=STRONG, zorder=3)
        for name, time, accuracy in zip(points, times, accuracies, strict=True):
            axes.annotate(short(name), (time, accuracy), (8, 0), textcoords="offset points", va="center")
        if times.min() > 0 and times.max() > 4 * times.min():
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="milliseconds per image", ylabel="accuracy, %", title=short(title, 90))
        axes.margins(x=0.16, y=0.14)
        axes.grid(axis="both")
    return figure


def reliability_diagram(series: Mapping[str, Sequence[tuple[float, float]]], *, title: str) -> Figure:
    """Accuracy against confidence, both in percent; on the diagonal a method is as right as it is sure."""
    with look():
        figure, axes = new_figure(7.2, 4.6)
        axes.plot([0, 100], [0, 100], color=SOFT, linestyle="--", linewidth=1.1)
        for number, (name, points) in enumerate(series.items()):
            marker, colour = "oDs^vP"[number % 6], COLOURS[number % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), f"{marker}-", color=colour, markersize=4, label=name)
        axes.set(xlabel="confidence, %", ylabel="accuracy, %", title=short(title, 90))
        axes.set(xlim=(0, 101), ylim=(0, 101))
        axes.grid(axis="both")
        legend_above(axes, list(series))
    return figure


def composition_map(
    domains: Sequence[str], counts: Sequence[Sequence[float]], *, chance: float, title: str
) -> Figure:
    """The share of each domain (column) in the support of each domain's images (row), in percent.

    Args:
        domains: Their names.
        counts: Support entries of each domain for the images of each domain.
        chance: The share of the same domain in percent, if entries were drawn from the stream at random.
        title: The heading; the mean of the diagonal is added.
    """
    table = np.asarray(counts, dtype=float)
    totals = table.sum(1, keepdims=True)
    shares = np.where(totals > 0, 100 * table / np.where(totals > 0, totals, 1), np.nan)
    same = float(np.nanmean(np.diag(shares))) if (totals > 0).any() else float("nan")
    with look():
        figure, axes = _cells(domains, domains, shares, mpl.colormaps["magma_r"], Normalize(0, 100), "{:.1f}")
        axes.set(xlabel="domain of the support entries", ylabel="domain of the image")
        axes.set_title(f"{short(title, 90)}\nsame domain: {same:.1f} % on average, {chance:.1f} % by chance")
    return figure


def gain_map(domains: Sequence[str], gains: Mapping[str, Sequence[float | None]], *, title: str) -> Figure:
    """Points above zero-shot (blue) or below it (orange) of each method (row) on each domain (column)."""
    rows = [[np.nan if value is None else value for value in row] for row in gains.values()]
    table = np.array(rows, dtype=float).reshape(-1, len(domains))
    known = np.abs(table[~np.isnan(table)])
    reach = max(1.0, float(known.max())) if known.size else 1.0
    with look():
        scale = TwoSlopeNorm(0, -reach, reach)
        figure, axes = _cells(domains, list(gains), table, _LOSS_TO_GAIN, scale, "{:+z.1f}")
        axes.set_title(short(title, 90))
    return figure


def _cells(
    columns: Sequence[str],
    rows: Sequence[str],
    values: np.ndarray,
    colours: Colormap,
    scale: Normalize,
    form: str,
) -> tuple[Figure, Axes]:
    columns, rows = [short(name) for name in columns], [short(name) for name in rows]
    longest = max((len(name) for name in (*columns, *rows)), default=0)
    margin = 0.6 + 0.078 * longest
    figure, axes = new_figure(
        margin + 0.3 + _CELL * max(len(columns), 6), 0.7 + margin * 0.75 + 0.36 * len(rows)
    )
    axes.pcolormesh(np.ma.masked_invalid(values), cmap=colours, norm=scale, edgecolors="face", linewidth=0.2)
    for (row, column), value in np.ndenumerate(values):
        shown = "\N{EN DASH}" if np.isnan(value) else form.format(value).replace("-", "\N{MINUS SIGN}")
        red, green, blue, _ = colours(float(scale(0.0 if np.isnan(value) else value)))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
        letters = "#ffffff" if dark else "#111111"
        cell = axes.text(column + 0.5, row + 0.5, shown, ha="center", va="center", fontsize=8, color=letters)
        cell.set_in_layout(False)  # it fits anyway, and measuring hundreds of texts is slow
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
    axes.tick_params(axis="both", length=0)
    _slant(axes, 45)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    return figure, axes


def _rows(names: Sequence[str], title: str) -> tuple[Figure, Axes]:
    """Axes for one horizontal bar per name."""
    figure, axes = new_figure(WIDTH, 1.4 + 0.33 * len(names))
    axes.set_yticks(np.arange(len(names)), [short(name) for name in names])
    axes.set(ylim=(len(names) - 0.4, -0.6), title=short(title, 90))
    axes.grid(axis="x")
    return figure, axes


def _slant(axes: Axes, degrees: float) -> None:
    axes.tick_params(axis="x", rotation=degrees)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")


def _reference_lines(axes: Axes, lines: Mapping[str, float]) -> None:
    for number, (name, level) in enumerate(lines.items()):
        dashes = _DASHES[number % len(_DASHES)]
        axes.axhline(level, color=SOFT, linestyle=dashes, linewidth=1.3, label=f"{name} {level:.1f}")


def _floor(values: Sequence[float]) -> float:
    """Where the axis of bars starts: at 0, or at a round number if all bars are high and similar."""
    low, high = min(values), max(values)
    if low < 10 or high - low > 0.6 * high:
        return 0.0
    return float(max(0, 5 * np.floor((low - 0.5 * (high - low) - 1) / 5)))
