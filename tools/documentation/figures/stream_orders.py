"""How a stream is cut: the domains and classes of the same images under several protocols, in batches."""

from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap

import ramen
from ramen.data.dataset import Dataset
from ramen.data.streams.stream import Stream
from ramen.experiments.style import COLOURS, INK, SOFT, look, save
from tools.documentation.figures.canvas import new_canvas

DOMAINS = ("fog", "contrast", "chalk", "neon")
PICTURES, BATCH = 60, 30
SHOWN = {
    "mixed": {},
    "single": {},
    "continual": {},
    "cyclic": {"rounds": 3},
    "bursty": {"length": 15},
    "correlated": {},
    "by_class": {},
}


def streams() -> dict[str, Stream]:
    """One stream per protocol, of the same drawings."""
    data: Dataset = ramen.data.load("tiny", domains=list(DOMAINS), pictures=PICTURES)
    return {name: ramen.data.make_stream(name, data, seed=0, **options) for name, options in SHOWN.items()}


def draw(path: Path) -> None:
    """Draw it: a row of domains and a row of classes for each protocol, batches and resets as lines."""
    drawn = streams()
    classes = len(next(iter(drawn.values())).dataset.classes)
    with look():
        figure = new_canvas(9.6, 5.6)
        rows = figure.subplots(len(drawn), 1, sharex=True)
        for axes, (name, stream) in zip(rows, drawn.items(), strict=True):
            axes.imshow(
                stream.domain[None],
                aspect="auto",
                cmap=ListedColormap(COLOURS[: len(DOMAINS)]),
                extent=(0, len(stream), 0.5, 1),
                interpolation="nearest",
            )
            axes.imshow(
                stream.labels()[None] / classes,
                aspect="auto",
                cmap="Greys",
                vmin=-0.2,
                vmax=1.2,
                extent=(0, len(stream), 0, 0.46),
                interpolation="nearest",
            )
            for batch in stream.batches(BATCH):
                axes.axvline(batch.start, color="white", linewidth=1.4)
            for reset in stream.resets:
                axes.axvline(reset, color=INK, linewidth=2.2)
            axes.set_xlim(-2, PICTURES * len(DOMAINS) + 2)
            axes.set_ylim(0, 1)
            axes.set_yticks([])
            axes.set_ylabel(name, rotation=0, ha="right", va="center")
            for spine in axes.spines.values():
                spine.set_visible(False)
        rows[-1].set_xlabel(
            f"place in the stream; white lines part batches of {BATCH}, black lines are resets", color=SOFT
        )
        handles = [
            rows[0].plot([], [], "s", color=colour, label=name)[0]
            for colour, name in zip(COLOURS, DOMAINS, strict=False)
        ]
        handles.append(rows[0].plot([], [], "s", color="#888888", label="class, as a shade of grey")[0])
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
        save(path, figure)


def domains_per_batch() -> dict[str, float]:
    """How many domains a batch has on average, by protocol."""
    return {
        name: float(np.mean([len(set(stream.domain[batch])) for batch in stream.batches(BATCH)]))
        for name, stream in streams().items()
    }
