"""The five steps of Ramen on a real image of a real stream, with what the method itself reports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

import ramen
from ramen.experiments.style import COLOURS, INK, QUIET, SOFT, STRONG, look, save
from ramen.models.tiny_clip.model import load_tiny
from tools.documentation.figures.canvas import new_canvas

PICTURES, BATCH, SHOWN_ENTRIES, SHOWN_CLASSES, SHOWN_PARAMETERS = 60, 60, 8, 4, 14
TITLES = (
    "1. Encode, and take\nthe gradient of the\nentropy per image",
    "2. Store both in the\nqueue of the predicted\nclass",
    "3. Retrieve the entries\nof every queue that\nlook most like it",
    "4. Add up their\ngradients; one signed\nstep from the base",
    "5. Encode again with\nthese weights, and\nanswer",
)
Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Example:
    """What happened to one image."""

    image: Image
    truth: str
    classes: tuple[str, ...]
    before: NDArray[np.float32]  # probabilities without adaptation
    after: NDArray[np.float32]
    queue_sizes: NDArray[np.int64]
    entries: list[tuple[Image, str, float]]  # image, its queue, its weight; the heaviest first
    step: float
    sums: NDArray[np.float32]  # of the retrieved gradients, for some norm parameters


def find_example() -> Example:
    """The first image that adaptation repairs late in a mixed stream of the tiny model's drawings."""
    data = ramen.data.load("tiny", pictures=PICTURES)
    stream = ramen.data.make_stream("mixed", data, seed=0)
    labels, clf = torch.from_numpy(stream.labels()), load_tiny(data.classes)
    method = ramen.create("ramen", clf)
    sizes = torch.zeros(len(data.classes), dtype=torch.int64)
    sums = _recorded_sums(method)
    for batch in stream.batches(BATCH):
        out = method.predict(clf.preprocess(stream.read(batch)), return_support=True)
        zero_shot = out.zero_shot_logits.argmax(1)
        sizes += torch.bincount(zero_shot, minlength=len(sizes))
        repaired = (zero_shot != labels[batch]) & (out.labels == labels[batch])
        if batch.start < len(stream) // 2 or not repaired.any():
            continue
        place = int(repaired.nonzero()[0])
        assert out.support is not None
        own = out.support.numbers[place] != batch.start + place
        weights = torch.where(out.support.valid[place] & own, out.support.weights[place], -1)
        best = weights.argsort(descending=True)[:SHOWN_ENTRIES].tolist()
        entries = [
            (
                _pixels(stream, int(out.support.numbers[place, i])),
                data.classes[int(out.support.queues[place, i])],
                float(weights[i]),
            )
            for i in best
        ]
        return Example(
            _pixels(stream, batch.start + place),
            data.classes[int(labels[batch.start + place])],
            data.classes,
            out.zero_shot_logits[place].softmax(0).numpy(),
            out.logits[place].softmax(0).numpy(),
            sizes.numpy(),
            entries,
            float(method.parameters["lr"]),
            sums[-1][place, :: sums[-1].shape[1] // SHOWN_PARAMETERS][:SHOWN_PARAMETERS].numpy(),
        )
    raise RuntimeError("no answer was repaired: choose another stream")


def _recorded_sums(method: "ramen.Method") -> list[Tensor]:
    """The sums of gradients of each batch from now on, which a method does not give out."""
    memory: Any = method.state.memories[""]
    found: list[Tensor] = []
    aggregate = memory.aggregate

    def recording(*args: Any, **options: Any) -> Tensor:
        found.append(aggregate(*args, **options))
        return found[-1]

    memory.aggregate = recording
    return found


def _pixels(stream: "ramen.data.Stream", place: int) -> Image:
    image = stream.read(slice(place, place + 1))[0]
    pixels: Image = torch.as_tensor(image).permute(1, 2, 0).numpy()
    return pixels


def draw(path: Path) -> None:
    """Draw it."""
    example = find_example()
    with look():
        figure = new_canvas(11.4, 3.9)
        halves: Any = figure.subfigures(2, 1, height_ratios=[1, 2.9])
        top, below = halves
        heads = top.subplots(1, 5)
        for axes, title in zip(heads, TITLES, strict=True):
            axes.axis("off")
            axes.text(0, 0.5, title, va="center", color=INK, fontweight="bold", fontsize=9.5)
        parts = below.subplots(1, 5)
        _show_query(parts[0], example)
        _show_queues(parts[1], example)
        _show_entries(parts[2], example)
        _show_step(parts[3], example)
        _show_answer(parts[4], example)
        save(path, figure)


def _show_query(axes: Axes, example: Example) -> None:
    axes.imshow(example.image)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(
        f"a drawing of: {example.truth}\nthe model alone: {_best(example.classes, example.before)}"
    )


def _show_queues(axes: Axes, example: Example) -> None:
    own = int(example.before.argmax())
    colours = [STRONG if place == own else QUIET for place in range(len(example.queue_sizes))]
    axes.barh(range(len(example.queue_sizes)), example.queue_sizes, color=colours, height=0.75)
    axes.set_yticks([own], [example.classes[own]])
    axes.set_xlabel("entries in the queue of each class")
    axes.invert_yaxis()


def _show_entries(axes: Axes, example: Example) -> None:
    axes.axis("off")
    for number, (image, queue, weight) in enumerate(example.entries):
        row, column = divmod(number, 2)
        inset = axes.inset_axes((0.5 * column, 0.77 - 0.255 * row, 0.22, 0.23))
        inset.imshow(image)
        inset.axis("off")
        axes.text(
            0.5 * column + 0.23,
            0.88 - 0.255 * row,
            f"{queue}\n{weight:.2f}",
            va="center",
            fontsize=7.5,
            color=SOFT,
            transform=axes.transAxes,
        )


def _show_step(axes: Axes, example: Example) -> None:
    places, sums = np.arange(len(example.sums)), example.sums
    axes.axhline(0, color=SOFT, linewidth=0.8)
    axes.bar(places - 0.2, sums / np.abs(sums).max(), width=0.36, color=QUIET, label="sum of gradients")
    axes.bar(places + 0.2, -np.sign(sums) * 0.5, width=0.36, color=COLOURS[0], label="step")
    axes.set_xticks([])
    axes.set_yticks([-0.5, 0.5], [f"-{example.step:g}", f"+{example.step:g}"])
    axes.set_ylim(-1.1, 1.9)
    axes.set_xlabel(f"{len(sums)} of the norm parameters")
    axes.legend(loc="upper left", fontsize=7.5)


def _show_answer(axes: Axes, example: Example) -> None:
    shown = np.argsort(-np.maximum(example.before, example.after))[:SHOWN_CLASSES]
    places = np.arange(len(shown))
    axes.barh(places - 0.19, example.before[shown], height=0.36, color=QUIET, label="the model alone")
    axes.barh(places + 0.19, example.after[shown], height=0.36, color=COLOURS[2], label="Ramen")
    axes.set_yticks(places, [example.classes[place] for place in shown])
    axes.invert_yaxis()
    axes.set_xlabel(f"probability: {_best(example.classes, example.after)}")
    axes.legend(loc="lower right", fontsize=7.5)


def _best(classes: tuple[str, ...], probabilities: NDArray[np.float32]) -> str:
    return classes[int(probabilities.argmax())]
