"""Heat maps: which domains the support came from, what each domain gained."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from ramen.experiments.figures.style import look, new_figure, short

_CELL = 0.5  # inches: wide enough for three digits and a point
_LOSS_TO_GAIN = LinearSegmentedColormap.from_list(
    "gain", ["#b3580c", "#f3b577", "#f4f4f2", "#8fc0ea", "#1f5f9e"]
)


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
    if table.shape != (len(domains), len(domains)):
        raise ValueError(f"counts must be {len(domains)} x {len(domains)}, got shape {table.shape}")
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
    table = np.array(
        [[np.nan if value is None else value for value in row] for row in gains.values()], dtype=float
    ).reshape(-1, len(domains))
    known = np.abs(table[~np.isnan(table)])
    reach = max(1.0, float(known.max())) if known.size else 1.0
    with look():
        figure, axes = _cells(
            domains, list(gains), table, _LOSS_TO_GAIN, TwoSlopeNorm(0, -reach, reach), "{:+z.1f}"
        )
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
    axes.tick_params(axis="x", rotation=45, length=0)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    return figure, axes
