"""The demo's figure: accuracy on each domain, the domains of the support, and example images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from ramen.utils.atomic_files import atomic_write

# Distinct for colour-blind readers too; zero-shot is the grey one, the last method the strong one.
_COLOURS = ("#b8bcc4", "#8fb8de", "#f2c078", "#4b8f6b", "#7d5ba6")
_STRONG = "#c1435d"
_SAME, _OTHER = (58, 150, 92), (213, 216, 221)
_FRAME, _GAP = 2, 1  # in image pixels


def draw(
    path: Path,
    *,
    domains: Sequence[str],
    accuracies: Mapping[str, Sequence[float]],
    composition: Tensor | None,
    pixels: Tensor,
    stream_domains: Tensor,
    examples: Mapping[int, Sequence[int]],
) -> None:
    """Write the figure; without retrieval it shows only the bars and one image per domain.

    Args:
        path: A PNG file.
        domains: Their names.
        accuracies: For each method's title, the accuracy of each domain in percent.
        composition: Support entries of each domain (column) for the images of each domain (row).
        pixels: The stream's images ``(N, 3, H, W)``.
        stream_domains: Their domains.
        examples: For each domain an image and its nearest entries, as positions in the stream.
    """
    names = [name.replace("_", " ") for name in domains]
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False}):
        figure = Figure(figsize=(16, 11.2), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(2, 2, width_ratios=(10, 6.4), height_ratios=(6.2, 5.2))
        if composition is None:
            _bars(figure.add_subplot(grid[0, :]), names, accuracies)
        else:
            _bars(figure.add_subplot(grid[0, 0]), names, accuracies)
            _matrix(figure.add_subplot(grid[0, 1]), names, composition)
        shown = examples or {d: [int((stream_domains == d).nonzero()[0, 0])] for d in range(len(names))}
        _strip(figure.add_subplot(grid[1, :]), names, pixels, stream_domains, shown)
        with atomic_write(path) as file:
            figure.savefig(file, format="png", dpi=110)


def _bars(axes: Axes, names: Sequence[str], accuracies: Mapping[str, Sequence[float]]) -> None:
    places = np.arange(len(names))
    width = 0.86 / len(accuracies)
    for index, (title, values) in enumerate(accuracies.items()):
        last = len(accuracies) > 1 and index == len(accuracies) - 1
        colour = _STRONG if last else _COLOURS[index % len(_COLOURS)]
        label = f"{title}  {np.mean(values):.1f} %"
        axes.bar(
            places + (index - (len(accuracies) - 1) / 2) * width, values, width, color=colour, label=label
        )
    axes.set_xticks(places, names, rotation=55, ha="right", rotation_mode="anchor")
    axes.set(ylim=(0, 100), ylabel="accuracy, %", xlim=(-0.6, len(names) - 0.4))
    axes.spines[["right"]].set_visible(False)
    axes.grid(axis="y", color="#e8eaed", zorder=0)
    axes.set_axisbelow(True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(accuracies), frameon=False)
    axes.set_title("Accuracy on each domain of the mixed stream", loc="left", pad=30, weight="bold")


def _matrix(axes: Axes, names: Sequence[str], composition: Tensor) -> None:
    shares = 100 * composition.numpy() / np.maximum(composition.sum(1, keepdim=True).numpy(), 1)
    image = axes.imshow(shares, cmap="magma_r", vmin=0, vmax=max(50.0, float(shares.max())), aspect="equal")
    axes.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=8.5)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.set_xlabel("domain of the retrieved entries")
    axes.set_ylabel("domain of the image")
    axes.set_title("Where Ramen's support comes from", loc="left", weight="bold")
    axes.figure.colorbar(image, ax=axes, label="share of the support, %", shrink=0.7, pad=0.02)


def _strip(
    axes: Axes,
    names: Sequence[str],
    pixels: Tensor,
    stream_domains: Tensor,
    examples: Mapping[int, Sequence[int]],
) -> None:
    """One column per domain: an image of the stream, and below it the entries nearest to it."""
    rows = max(map(len, examples.values()))
    size = pixels.shape[-1]
    cell = size + 2 * (_FRAME + _GAP)
    lead = 4 * _GAP  # between an image and its entries
    canvas = np.full((rows * cell + lead, len(names) * cell, 3), 255, dtype=np.uint8)
    for column, numbers in examples.items():
        for row, number in enumerate(numbers):
            y, x = row * cell + (lead if row else 0) + _GAP, column * cell + _GAP
            frame = _SAME if int(stream_domains[number]) == column else _OTHER
            if row > 0:
                canvas[y : y + size + 2 * _FRAME, x : x + size + 2 * _FRAME] = frame
            y, x = y + _FRAME, x + _FRAME
            canvas[y : y + size, x : x + size] = pixels[number].permute(1, 2, 0).numpy()
    axes.imshow(canvas, interpolation="nearest")
    axes.set_xticks(
        [(column + 0.5) * cell for column in range(len(names))],
        [name.replace(" ", "\n", 1) for name in names],
        fontsize=8.5,
    )
    axes.set_yticks([cell / 2], ["image"], fontsize=9)
    if rows > 1:
        axes.set_yticks(
            [cell / 2, rows * cell / 2 + cell / 2], ["image", "nearest\npast\nimages"], fontsize=9
        )
        note = "An image of each domain, and the past images nearest to it (green frame: of the same domain)"
        axes.set_title(note, loc="left", weight="bold", pad=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
