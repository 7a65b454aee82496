"""The style of all figures, and how they are written: the same data give the same bytes."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ramen.utils.files import atomic_write

# Distinct for colour-blind readers (after Okabe and Ito), visible on white and on near black.
COLOURS = ("#3a86c8", "#e08a2e", "#2fa37c", "#c76aa0", "#d4573b", "#7fb8e6", "#9a7cc7", "#b5a52f")
STRONG, QUIET = "#d4573b", "#a3abb5"
INK, SOFT, RULE = "#24292f", "#66707b", "#dde2e7"
WIDTH = 9.6  # inches: about the width of a page's text
_DARK = {INK: "#e4e8ec", SOFT: "#9da7b1", RULE: "#39414a"}
_VARIABLES = {INK: "--ink", SOFT: "--soft", RULE: "--rule"}

_LOOK: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "errorbar.capsize": 3,
    "text.parse_math": False,  # a name with dollar signs is not a formula
}
_FILES: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small files, and the reader's own fonts
    "svg.hashsalt": "ramen",
}


@contextmanager
def look() -> Iterator[None]:
    """Make figures in our style within the block."""
    with mpl.rc_context(_LOOK):
        yield


def short(name: str, letters: int = 30) -> str:
    """A name, shortened to leave room for the figure.

    >>> short("gaussian_noise"), short("a very long name", 10)
    ('gaussian noise', 'a very lo…')
    """
    name = " ".join(name.replace("_", " ").split())
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    return figure, axes


def legend_above(axes: Axes, first: Sequence[str] = ()) -> None:
    """Put the legend below the title, where it hides no data. The names in ``first`` come first."""
    entries = list(zip(*axes.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: first.index(entry[1]) if entry[1] in first else len(first))
    entries = [(handle, short(label)) for handle, label in entries]
    room = axes.figure.bbox.width / axes.figure.dpi - 1.0
    columns = int(room / (0.6 + 0.075 * max(len(label) for _, label in entries)))
    columns = max(1, min(len(entries), columns))
    axes.legend(
        [handle for handle, _ in entries],
        [label for _, label in entries],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.8,
        columnspacing=1.4,
    )
    axes.set_title(axes.get_title(loc="left"), pad=12 + 14 * -(-len(entries) // columns))


def save(path: Path | str, figure: Figure) -> None:
    """Write a figure on white, atomically; the file's suffix (``.svg``, ``.png``, ``.pdf``) is its format."""
    form = Path(path).suffix.lower().removeprefix(".")
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    with mpl.rc_context(_LOOK | _FILES), atomic_write(path) as file:
        figure.savefig(file, format=form, dpi=150, facecolor="white", metadata=dateless)


def page_svg(figure: Figure) -> str:
    """The figure as SVG text for a page: transparent, and its text follows the page's dark mode."""
    file = io.StringIO()
    with mpl.rc_context(_LOOK | _FILES):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return re.sub("(<svg[^>]*>)", lambda opening: opening[0] + _theme(), text, count=1)


def _theme() -> str:
    def colours(of: dict[str, str]) -> str:
        return "".join(f"{_VARIABLES[name]}:{of[name]};" for name in _VARIABLES)

    light, dark = colours({name: name for name in _VARIABLES}), colours(_DARK)
    # matplotlib writes no fill for black text, so the page's colour applies to text without a fill too
    return (
        f"<style>svg{{{light}color-scheme:light dark}}text{{fill:var(--ink)}}"
        f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    )
