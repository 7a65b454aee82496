"""Figures of cost: time per stage, accuracy against time."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ramen.experiments.figures.style import COLOURS, INK, STRONG, WIDTH, legend_above, look, new_figure, short


def stage_bars(stages: Mapping[str, Mapping[str, float]], *, title: str) -> Figure:
    """Stacked bars: milliseconds per image that each method spends in each stage."""
    names = list(dict.fromkeys(stage for times in stages.values() for stage in times))
    with look():
        figure, axes = new_figure(WIDTH, 1.4 + 0.33 * len(stages))
        places = np.arange(len(stages))
        start = np.zeros(len(stages))
        for number, name in enumerate(names):
            times = np.array([method.get(name, 0.0) for method in stages.values()])
            colour = COLOURS[number % len(COLOURS)]
            axes.barh(places, times, 0.7, left=start, color=colour, label=short(name))
            start = start + times
        end = _end(start)
        for place, total in enumerate(start):
            beyond = total > end
            axes.annotate(
                f"{total:.3g} →" if beyond else f"{total:.3g}",
                (min(total, end), place),
                (-4 if beyond else 4, 0),
                textcoords="offset points",
                ha="right" if beyond else "left",
                va="center",
                fontsize=8.5,
                color="#ffffff" if beyond else INK,
            )
        axes.set_yticks(places, [short(name) for name in stages])
        axes.set(xlim=(0, end), ylim=(len(stages) - 0.4, -0.6), title=short(title, 90))
        axes.set_xlabel("milliseconds per image")
        axes.grid(axis="x")
        legend_above(axes)
    return figure


def cost_dots(points: Mapping[str, tuple[float, float]], *, title: str) -> Figure:
    """Accuracy against milliseconds per image, one named dot per method; better is up and to the left."""
    with look():
        figure, axes = new_figure(WIDTH, 4.4)
        times, accuracies = np.array(list(points.values()), dtype=float).reshape(-1, 2).T
        axes.scatter(times, accuracies, s=38, color=STRONG, zorder=3)
        if times.min() > 0 and times.max() > 4 * times.min():
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="milliseconds per image", ylabel="accuracy, %", title=short(title, 90))
        axes.margins(x=0.12, y=0.14)
        axes.grid(axis="both")
        figure.draw_without_rendering()  # the layout must be final before names are placed
        _place_names(axes, [short(name) for name in points], times, accuracies)
    return figure


def _end(totals: np.ndarray) -> float:
    """Where the time axis ends: very long bars run past it, or all others would be too short to see."""
    usual = totals[totals <= 8 * np.median(totals)]
    return 1.12 * max(float(usual.max()), 1e-9)


def _place_names(axes: Axes, names: Sequence[str], x: np.ndarray, y: np.ndarray) -> None:
    """Write each name beside its dot, in the spot that hides least of other names and dots."""
    taken: list[Sequence[float]] = [
        (px - 4, py - 4, px + 4, py + 4) for px, py in axes.transData.transform(np.stack([x, y], 1))
    ]
    spots = [(8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center")]
    spots += [(8, 11, "left"), (8, -11, "left"), (-8, 11, "right"), (-8, -11, "right")]
    for name, px, py in zip(names, x, y, strict=True):
        best = None
        for dx, dy, side in spots:
            text = axes.annotate(
                name, (px, py), (dx, dy), textcoords="offset points", ha=side, va="center", fontsize=9
            )
            box = text.get_window_extent().extents
            hidden = sum(_overlap(box, other) for other in taken)
            if best is None or hidden < best[0]:
                if best is not None:
                    best[1].remove()
                best = (hidden, text, box)
            else:
                text.remove()
            if not hidden:
                break
        if best is not None:
            taken.append(best[2])


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
