"""The figures of a page: the mix of classes and the entropy over time, for wide and for narrow screens."""

import base64
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ramen.classify.changes_page.summary import ChangesSummary, TimePart
from ramen.classify.changes_page.text import visible
from ramen.experiments.style import (
    COLOURS,
    QUIET,
    STRONG,
    WIDTH,
    legend_above,
    look,
    new_figure,
    page_svg,
    short,
)
from ramen.utils.html import Markup, element

NARROW = "(max-width: 44rem)"  # the style sheet's own limit
_NARROW_WIDTH = 4.0  # inches
_SHOWN_CLASSES = 7
_OTHERS = "other classes"


def mix_figure(summary: ChangesSummary) -> Markup:
    """The share of each predicted class over time, before and after adaptation."""
    names = [name for name, _ in _all_labels(summary.parts).most_common(_SHOWN_CLASSES)]
    alt = (
        f"Shares of the predicted classes over {summary.tally.answers:,} images, before and after adaptation"
    )
    return _responsive(lambda width: _draw_mix(summary, names, width), alt)


def entropy_figure(summary: ChangesSummary) -> Markup:
    """The mean entropy over time, before and after adaptation."""
    alt = f"Mean entropy over {summary.tally.answers:,} images, before and after adaptation"
    return _responsive(lambda width: _draw_entropy(summary, width), alt)


def _responsive(draw: Callable[[float], Figure], alt: str) -> Markup:
    sources = []
    for width in (WIDTH, _NARROW_WIDTH):
        with warnings.catch_warnings():
            # the browser's fonts count, since text stays text
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            svg = page_svg(draw(width))
        sources.append(f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}")
    wide, narrow = sources
    picture = element(
        "picture", element("source", media=NARROW, srcset=narrow), element("img", src=wide, alt=alt)
    )
    return element("figure", element("div", picture, class_="picture"))


def _all_labels(parts: Sequence[TimePart]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part.before)
        found.update(part.after)
    return found


def _edges(summary: ChangesSummary) -> NDArray[np.float64]:
    """Where each part starts, and where the last one ends, in images."""
    return np.cumsum([0.0, *(part.answers for part in summary.parts)])


def _draw_mix(summary: ChangesSummary, names: Sequence[str], width: float) -> Figure:
    wide = width > _NARROW_WIDTH
    edges = _edges(summary)
    with look():
        figure = Figure(figsize=(width, 3.9 if wide else 6.2), layout="constrained", facecolor="none")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, 2, sharey=True) if wide else figure.subplots(2, 1)
        for axes, title, mixes in zip(
            panels,
            ("Before: zero-shot", "After: adapted"),
            ([part.before for part in summary.parts], [part.after for part in summary.parts]),
            strict=True,
        ):
            _draw_shares(axes, edges, mixes, names)
            axes.set(title=title, xlim=(0, edges[-1]), ylim=(0, 100))
            _count_images(axes, "images so far" if wide or axes is panels[-1] else "")
        panels[0].set_ylabel("share of answers, %")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=4 if wide else 2, fontsize=9)
    return figure


def _draw_shares(
    axes: Axes, edges: NDArray[np.float64], mixes: Sequence[Counter[str]], names: Sequence[str]
) -> None:
    totals = np.array([mix.total() for mix in mixes], dtype=float)
    rows = {visible(name): np.array([mix[name] for mix in mixes]) for name in names}
    rest = totals - sum(rows.values(), np.zeros(len(mixes)))
    if rest.any():
        rows[_OTHERS] = rest
    floor = np.zeros(len(mixes))
    for number, (name, counts) in enumerate(rows.items()):
        top = floor + 100 * counts / totals
        colour = QUIET if name == _OTHERS else COLOURS[number % len(COLOURS)]
        low, high = (np.append(height, height[-1]) for height in (floor, top))
        axes.fill_between(edges, low, high, step="post", color=colour, linewidth=0, label=short(name, 18))
        floor = top


def _draw_entropy(summary: ChangesSummary, width: float) -> Figure:
    edges = _edges(summary)
    answers = np.diff(edges)
    series = {
        "before: zero-shot": ([part.entropy_before for part in summary.parts], QUIET),
        "after: adapted": ([part.entropy_after for part in summary.parts], STRONG),
    }
    with look():
        figure, axes = new_figure(width, 3.0)
        for name, (sums, colour) in series.items():
            means = np.array(sums) / answers
            axes.step(edges, np.append(means, means[-1]), where="post", color=colour, linewidth=2, label=name)
        axes.set(xlim=(0, edges[-1]), ylim=(0, None))
        axes.set_ylabel("mean entropy, nats")
        _count_images(axes, "images so far")
        axes.grid(axis="y")
        legend_above(axes)
    return figure


def _count_images(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
