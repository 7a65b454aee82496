"""One page that shows what adaptation changed, for people who look before they trust.

Its HTML is in ``page.html.j2``. It is made in one pass over an output, and does not grow with it.
"""

import base64
import heapq
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ramen.classify.files import readable
from ramen.classify.output import Output, Run, Tally
from ramen.client.result import Result
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
from ramen.images.file_checks import DecodingSettings
from ramen.images.thumbnails import Thumbnail, make_thumbnails
from ramen.utils import files
from ramen.utils.pages import render

ARROW = "\N{RIGHTWARDS ARROW}"
SHOWN = 200  # images, and files that failed
_PARTS = 40  # of the time, at most
_PER_PART = 20  # images, at least
_TRANSITIONS = 10  # in the table
_LISTED = 12  # nobody reads a list of a thousand classes
_NARROW_WIDTH = 4.0  # inches
_SHOWN_CLASSES = 7
_OTHERS = "other classes"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")


@dataclass(frozen=True)
class PageSettings:
    """What a page says about how its results were made."""

    output: Path  # the file with all results
    model: str  # the model's name
    method: str  # the method's name, as people write it
    classes: Sequence[str]  # all class names
    # Further settings by name, each with its value in words
    facts: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the method, in words
    # Why, for each parameter that the method chose itself
    chosen: Mapping[str, str] = field(default_factory=dict)
    # How images are read, for the thumbnails
    decoding: DecodingSettings = field(default_factory=DecodingSettings)


def write_page(path: Path, output: Output, settings: PageSettings, *, shown: int = SHOWN) -> None:
    """Write the page of all results in an output, atomically.

    Args:
        path: The HTML file; missing parent folders are created.
        output: The results.
        settings: How they were made.
        shown: The most changed images, and the most failed files, that are shown.
    """
    summary = ChangesSummary.of(output.results(), output.tally.answers, shown)
    thumbnails = list(make_thumbnails([result.key for result in summary.changes], settings.decoding))
    files.write_text(path, make_page(summary, thumbnails, output.runs, settings))


def make_page(
    summary: "ChangesSummary",
    thumbnails: Sequence[Thumbnail | None],
    runs: Sequence[Run],
    settings: PageSettings,
) -> str:
    """The page as text.

    Args:
        summary: What to show.
        thumbnails: Of its changes; None for those that there are none of.
        runs: When and how long the command ran.
        settings: How the results were made.
    """
    tally, method = summary.tally, settings.method
    transitions = summary.transitions.most_common(_TRANSITIONS)
    listed, rest = ", ".join(map(visible, settings.classes[:_LISTED])), len(settings.classes) - _LISTED
    chosen = {name: f" ({why})" for name, why in settings.chosen.items()}
    return render(
        "classify/page.html.j2",
        title=f"{method} on {_count(tally.files, 'file')}",
        method=method,
        model=settings.model,
        output=settings.output.name,
        numbers=_numbers(summary),
        cards=list(zip(summary.changes, thumbnails, strict=True)),
        more_changes=tally.changed - len(summary.changes),
        transitions=transitions,
        more_transitions=len(summary.transitions) - len(transitions),
        figures=_figures(summary),
        per_part=summary.per_part,
        failures=[(result.key, _reason(result)) for result in summary.failures],
        more_failures=tally.errors - len(summary.failures),
        facts={
            "model": settings.model,
            "method": method,
            "classes": f"{listed} and {rest:,} more" if rest > 0 else listed,
            **settings.facts,
            "output": visible(str(settings.output)),
            "runs": "; ".join(map(_run, runs)),
        },
        parameters={name: value + chosen.get(name, "") for name, value in settings.parameters.items()},
        visible=visible,
        count=_count,
    )


def visible(text: str) -> str:
    r"""Text in which characters that nobody sees, and bytes that are no text, are written as escapes.

    >>> visible("two\nlines"), visible("caf\udce9")
    ('two\\x0alines', 'caf\\xe9')
    """
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", readable(text))


def _numbers(summary: "ChangesSummary") -> dict[str, str]:
    tally = summary.tally
    before, after = summary.entropies
    facts = {
        "answered": f"{tally.answers:,}",
        "labels changed": f"{tally.changed:,} ({100 * tally.changed / max(1, tally.answers):.1f} %)",
        "files failed": f"{tally.errors:,}",
        "mean entropy": f"{before:.2f} {ARROW} {after:.2f}" if tally.answers else "none",
    }
    return facts | ({"answered zero-shot": f"{tally.fallbacks:,}"} if tally.fallbacks else {})


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s'[: number != 1]}"


def _reason(result: Result) -> str:
    """The error without the name of the file, which is beside it."""
    reason = (result.error or "").removeprefix(result.key).lstrip(": ")
    return reason or str(result.error)


def _run(run: Run) -> str:
    started = run.started.replace("T", " ").replace("+00:00", " UTC")
    if run.seconds is None:
        return f"{started}, {_count(run.files, 'file')}" if run.files else f"{started}, ended early"
    rate = f", {run.files / run.seconds:,.0f} per second" if run.seconds and run.files else ""
    return f"{started}, {_count(run.files, 'file')} in {run.seconds:,.0f} s{rate}"


# -- what is shown ------------------------------------------------------------------------------------------


@dataclass
class TimePart:
    """A stretch of answers: its labels and the sums of its entropies, before and after adaptation."""

    answers: int = 0
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    entropy_before: float = 0.0
    entropy_after: float = 0.0

    def add(self, result: Result) -> None:
        """Count an answer."""
        self.answers += 1
        self.before[result.zero_shot_label or ""] += 1
        self.after[result.label or ""] += 1
        self.entropy_before += result.zero_shot_entropy or 0.0
        self.entropy_after += result.entropy or 0.0


@dataclass
class ChangesSummary:
    """All that a page shows."""

    per_part: int  # how many answers each part of the time has; the last may have fewer
    tally: Tally = field(default_factory=Tally)  # of all results
    parts: list[TimePart] = field(default_factory=list)  # the time
    # How often each label became each other one
    transitions: Counter[tuple[str, str]] = field(default_factory=Counter)
    # The changed results with the highest probabilities, the highest first
    changes: list[Result] = field(default_factory=list)
    failures: list[Result] = field(default_factory=list)  # the first files that failed

    @classmethod
    def of(cls, results: Iterable[Result], answers: int, shown: int = SHOWN) -> "ChangesSummary":
        """Summarise results.

        Args:
            results: In the order in which they came.
            answers: How many of them have no error.
            shown: The most changes and the most failures to keep.
        """
        summary = cls(per_part=max(_PER_PART, -(-answers // _PARTS)))
        changed = summary._count(results, shown)
        summary.changes = heapq.nlargest(shown, changed, key=lambda result: result.probability or 0.0)
        return summary

    def _count(self, results: Iterable[Result], shown: int) -> Iterator[Result]:
        """Count all results and pass on the changed ones."""
        for result in results:
            self.tally.add(result)
            if result.error is not None:
                if len(self.failures) < shown:
                    self.failures.append(result)
                continue
            if not self.parts or self.parts[-1].answers == self.per_part:
                self.parts.append(TimePart())
            self.parts[-1].add(result)
            if result.changed:
                self.transitions[result.zero_shot_label or "", result.label or ""] += 1
                yield result

    @property
    def entropies(self) -> tuple[float, float]:
        """Mean entropy before and after adaptation, in nats."""
        answers = max(1, self.tally.answers)
        before = sum(part.entropy_before for part in self.parts)
        return before / answers, sum(part.entropy_after for part in self.parts) / answers


# -- figures ------------------------------------------------------------------------------------------------


def _figures(summary: ChangesSummary) -> dict[str, dict[str, str]]:
    """The mix of classes and the entropy over time, for wide and for narrow screens."""
    if not summary.parts:
        return {}
    over = f"over {summary.tally.answers:,} images, before and after adaptation"
    return {
        "mix": _responsive(_draw_mix, summary, f"Shares of the predicted classes {over}"),
        "entropy": _responsive(_draw_entropy, summary, f"Mean entropy {over}"),
    }


def _responsive(
    draw: Callable[[ChangesSummary, float], Figure], summary: ChangesSummary, alt: str
) -> dict[str, str]:
    found = {"alt": alt}
    for name, width in (("wide", WIDTH), ("narrow", _NARROW_WIDTH)):
        with warnings.catch_warnings():
            # the browser's fonts count, since text stays text
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            svg = page_svg(draw(summary, width))
        found[name] = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return found


def _edges(summary: ChangesSummary) -> NDArray[np.float64]:
    """Where each part starts, and where the last one ends, in images."""
    return np.cumsum([0.0, *(part.answers for part in summary.parts)])


def _draw_mix(summary: ChangesSummary, width: float) -> Figure:
    wide, edges = width > _NARROW_WIDTH, _edges(summary)
    before, after = [part.before for part in summary.parts], [part.after for part in summary.parts]
    labels = sum([*before, *after], Counter[str]())
    names = [name for name, _ in labels.most_common(_SHOWN_CLASSES)]
    with look():
        figure = Figure(figsize=(width, 3.9 if wide else 6.2), layout="constrained", facecolor="none")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, 2, sharey=True) if wide else figure.subplots(2, 1)
        for axes, title, mixes in zip(
            panels, ("Before: zero-shot", "After: adapted"), (before, after), strict=True
        ):
            _draw_shares(axes, edges, mixes, names)
            axes.set(title=title, xlim=(0, edges[-1]), ylim=(0, 100))
            _count_images(axes, "images so far" if wide or axes is panels[-1] else "")
        panels[0].set_ylabel("share of answers, %")
        handles, shown = panels[0].get_legend_handles_labels()
        figure.legend(handles, shown, loc="outside lower left", ncols=4 if wide else 2, fontsize=9)
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
    series = {
        "before: zero-shot": ([part.entropy_before for part in summary.parts], QUIET),
        "after: adapted": ([part.entropy_after for part in summary.parts], STRONG),
    }
    with look():
        figure, axes = new_figure(width, 3.0)
        for name, (sums, colour) in series.items():
            means = np.array(sums) / np.diff(edges)
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
