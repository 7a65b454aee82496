"""Figures of experiments: curves, bars, dots. Each function turns plain data into a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ramen.experiments.analysis import paper
from ramen.experiments.analysis.spread import Spread
from ramen.experiments.analysis.sweep_curve import Sweep
from ramen.experiments.figures.style import (
    COLOURS,
    INK,
    QUIET,
    SOFT,
    STRONG,
    WIDTH,
    legend_above,
    look,
    new_figure,
    save,
    short,
)

_ROW = 0.4  # inches: the height of a row of dots
_MARKER = 7  # points
_STEP = 0.24  # of a row: just enough to set two markers apart
_DASHES = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))


def draw_sweep(path: Path | str, sweep: Sweep) -> None:
    """Write the figure of a sweep."""
    save(path, sweep_figure(sweep))


def sweep_figure(sweep: Sweep) -> Figure:
    """A curve if numbers were varied, otherwise bars."""
    if not sweep.points:
        raise ValueError("sweep must have points, got none")
    if all(isinstance(point.value, int | float) for point in sweep.points):
        return sweep_curve(sweep)
    bars = {point.label: {"measured": Spread(point.mean, point.deviation, 1)} for point in sweep.points}
    for point in sweep.points:
        if point.reported is not None:
            bars[point.label]["reported"] = Spread(point.reported, None, 1)
    return grouped_bars(bars, sweep.lines, title=_sweep_title(sweep))


def _sweep_title(sweep: Sweep) -> str:
    return f"{paper.title(sweep.method)}, {sweep.parameter}: {sweep.data}, {sweep.protocol}, {sweep.model}"


def sweep_curve(sweep: Sweep) -> Figure:
    """The curve with error bars, the paper's curve dashed, and lines for the other methods.

    Values are evenly spaced, because the steps of most sweeps grow.
    """
    places = np.arange(len(sweep.points))
    means = [point.mean for point in sweep.points]
    spreads = [point.deviation or 0.0 for point in sweep.points]
    with look():
        figure, axes = new_figure(7.2, 3.9)
        axes.errorbar(
            places, means, spreads, color=STRONG, marker="o", markersize=5, linewidth=1.8, label="measured"
        )
        reported = [np.nan if point.reported is None else point.reported for point in sweep.points]
        if not np.isnan(reported).all():
            axes.plot(places, reported, "s--", mfc="none", color=COLOURS[0], linewidth=1.3, label="reported")
        for place, mean, paper in zip(places, means, reported, strict=True):
            away = -15 if paper > mean else 7  # from the other curve
            axes.annotate(f"{mean:.1f}", (place, mean), (0, away), textcoords="offset points", ha="center")
        _reference_lines(axes, sweep.lines)
        axes.set_xticks(places, [short(point.label, 12) for point in sweep.points])
        axes.set(xlabel=sweep.parameter, ylabel="accuracy, %", xlim=(-0.4, len(places) - 0.6))
        axes.set_title(short(_sweep_title(sweep), 90))
        axes.margins(y=0.18)
        axes.grid(axis="y")
        legend_above(axes, ["measured", "reported"])
    return figure


def grouped_bars(
    groups: Mapping[str, Mapping[str, Spread]], lines: Mapping[str, float] | None = None, *, title: str
) -> Figure:
    """Bars of accuracy with error bars, for ablations and for single against mixed domains.

    Args:
        groups: For each name below the axis, its bars by their name in the legend.
        lines: Levels to compare with, by name.
        title: The heading.
    """
    lines = lines or {}
    series = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    if not series:
        raise ValueError("groups must hold at least one bar, got none")
    means = [spread.mean for bars in groups.values() for spread in bars.values()] + list(lines.values())
    floor = _floor(means)
    width = 0.8 / len(series)
    with look():
        figure, axes = new_figure(max(7.2, 1.4 + len(groups) * max(0.8, 0.52 * len(series))), 4.1)
        for number, name in enumerate(series):
            found = [(place, bars[name]) for place, bars in enumerate(groups.values()) if name in bars]
            places = [place + (number - (len(series) - 1) / 2) * width for place, _ in found]
            heights = [spread.mean for _, spread in found]
            errors = [spread.deviation or 0.0 for _, spread in found]
            bars = axes.bar(
                places,
                heights,
                width * 0.92,
                yerr=errors,
                ecolor=INK,
                color=COLOURS[number % len(COLOURS)],
                label=name,
            )
            axes.bar_label(bars, [f"{height:.1f}" for height in heights], padding=2, fontsize=8)
        _reference_lines(axes, lines)
        axes.set_xticks(range(len(groups)), [short(name) for name in groups])
        if len(groups) > 6 or max(map(len, groups)) > 12:
            axes.tick_params(axis="x", rotation=30)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        start = f" (the axis starts at {floor:g})" if floor else ""
        axes.set(ylim=(floor, max(means) + 0.12 * (max(means) - floor)), ylabel=f"accuracy, %{start}")
        axes.set(xlim=(-0.6, len(groups) - 0.4), title=short(title, 90))
        axes.grid(axis="y")
        legend_above(axes, series)
    return figure


def domain_dots(
    domains: Sequence[str],
    accuracies: Mapping[str, Sequence[float | None]],
    shown: Sequence[str],
    *,
    title: str,
) -> Figure:
    """Accuracy on each domain: the methods in ``shown`` in colour, all others as grey dots."""
    with look():
        figure, axes = new_figure(WIDTH, 1.5 + _ROW * len(domains))
        places = np.arange(len(domains))
        for name, values in accuracies.items():
            if name not in shown:
                axes.plot(_gaps(values), places, "o", color=QUIET, alpha=0.55, markersize=4.5)
        if len(accuracies) > len(shown):
            axes.lines[-1].set_label("other methods")
        moved = dodged([_gaps(accuracies[name]) for name in shown], _gaps(_all(accuracies)))
        for number, name in enumerate(shown):
            marker, colour = "oDs^vP"[number % 6], COLOURS[number % len(COLOURS)]
            heights = places + moved[number]
            axes.plot(_gaps(accuracies[name]), heights, marker, color=colour, markersize=_MARKER, label=name)
        axes.set_yticks(places, [short(domain) for domain in domains])
        axes.set(ylim=(len(domains) - 0.5, -0.5), xlabel="accuracy, %", title=short(title, 90))
        axes.grid(axis="both")
        legend_above(axes, shown)
    return figure


def dodged(values: Sequence[Sequence[float]], everything: Sequence[float]) -> np.ndarray:
    """How far each marker is moved from its row, so that markers that tie do not hide each other.

    Args:
        values: The numbers of each method ``(methods, rows)``; NaN for none.
        everything: All numbers along the axis, which decide its scale.

    >>> dodged([[50.0, 10.0], [50.0, 90.0], [80.0, 10.1]], [10.0, 90.0]).tolist()
    [[-0.12, -0.12], [0.12, 0.0], [0.0, 0.12]]
    """
    table = np.asarray(values, dtype=float)
    moved = np.zeros_like(table)
    # the width of a marker in units of the axis, which takes most of the figure's width
    near = _MARKER / 72 / (0.75 * WIDTH) * float(np.nanmax(everything) - np.nanmin(everything))
    for row in range(table.shape[1]):
        order = [n for n in np.argsort(table[:, row], kind="stable") if not np.isnan(table[n, row])]
        ties: list[list[int]] = []
        for number in order:
            if ties and table[number, row] - table[ties[-1][-1], row] <= near:
                ties[-1].append(int(number))
            else:
                ties.append([int(number)])
        for tie in ties:
            step = min(_STEP, 0.8 / len(tie))
            for place, number in enumerate(sorted(tie)):
                moved[number, row] = step * (place - (len(tie) - 1) / 2)
    return moved


def _all(accuracies: Mapping[str, Sequence[float | None]]) -> list[float | None]:
    return [value for values in accuracies.values() for value in values]


def change_bars(changes: Mapping[str, tuple[float, float]], *, title: str) -> Figure:
    """The shares of images that each method repaired (right) and broke (left), in percent."""
    with look():
        figure, axes = new_figure(WIDTH, 1.4 + 0.33 * len(changes))
        places = np.arange(len(changes))
        repaired, broken = np.array(list(changes.values()), dtype=float).reshape(-1, 2).T
        right = axes.barh(places, repaired, 0.7, color=COLOURS[0], label="repaired: zero-shot was wrong")
        left = axes.barh(places, -broken, 0.7, color=COLOURS[1], label="broken: zero-shot was right")
        axes.bar_label(right, [f"{share:.1f}" for share in repaired], padding=4, fontsize=8.5)
        axes.bar_label(left, [f"{share:.1f}" if share else "" for share in broken], padding=4, fontsize=8.5)
        axes.axvline(0, color=SOFT, linewidth=1)
        axes.set_yticks(places, [short(name) for name in changes])
        reach = 1.2 * max(1.0, float(repaired.max()), float(broken.max()))
        axes.set(xlim=(-reach, reach), ylim=(len(changes) - 0.4, -0.6), title=short(title, 90))
        axes.set_xlabel("share of all images, %")
        axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        axes.grid(axis="x")
        legend_above(axes)
    return figure


def bin_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, ylabel: str, xlabel: str = ""
) -> Figure:
    """One bar per bin and series."""
    width = 0.84 / len(series)
    with look():
        figure, axes = new_figure(WIDTH, 3.8)
        for number, (name, values) in enumerate(series.items()):
            places = np.arange(len(labels)) + (number - (len(series) - 1) / 2) * width
            bars = axes.bar(places, values, 0.94 * width, color=COLOURS[number % len(COLOURS)], label=name)
            axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=2, fontsize=8)
        axes.set_xticks(range(len(labels)), [short(label, 12) for label in labels])
        axes.set(xlabel=xlabel, ylabel=ylabel, title=short(title, 90))
        axes.margins(x=0.02, y=0.1)
        axes.grid(axis="y")
        if len(series) > 1:
            legend_above(axes, list(series))
    return figure


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


def _gaps(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
