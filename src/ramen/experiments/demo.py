"""``ramen demo``: the tiny CLIP on a mixed stream of drawings, zero-shot and adapted by several methods."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from ramen.data.catalogue import load
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import object_called
from ramen.data.streams.stream import Stream, make_stream
from ramen.experiments import paper
from ramen.experiments.experiment import plan
from ramen.experiments.progress import Bars
from ramen.experiments.render import Table, print_tables
from ramen.experiments.run import Loaded, Record, Run, draw_stream
from ramen.experiments.scoring import Difference
from ramen.experiments.store import Store
from ramen.experiments.style import STRONG, look, save
from ramen.methods._passes import Prediction, Support

PER_DOMAIN, PER_DOMAIN_QUICK = 300, 24
ZERO_SHOT = "ensemble"  # no adaptation
METHODS = ("entmin", "tent", "ramen")
SHOWN_ENTRIES = 4

NEXT_STEPS = """\
Next, on your photographs, with a model that is made for them (its weights are downloaded):

  ramen classify PHOTOS --model ViT-B-16/openai --classes "cat,dog,car" --out labels.csv --page changes.html

or in Python:

  import ramen
  clf = ramen.ZeroShotClassifier.from_open_clip("ViT-B-32", "openai", classes=["cat", "dog", "car"])
  method = ramen.create("ramen", clf)
  out = method.predict(clf.preprocess(["photo.jpg"]))     # out.labels, out.logits, out.zero_shot_logits

`ramen describe ramen` explains the parameters."""


def run(
    *,
    classes: Sequence[str] | None = None,
    methods: Sequence[str] = METHODS,
    seed: int = 0,
    quick: bool = False,
    out: Path = Path("ramen-demo"),
    console: Console | None = None,
) -> list[Record]:
    """Run the demo; the results are those of ordinary runs, and are stored in ``out`` beside a figure.

    Args:
        classes: Names to classify into; those that can be drawn appear in the stream. All drawings if None.
        methods: Names of registered methods to run in addition to zero-shot.
        seed: Decides the drawings, their order and the methods' random draws.
        quick: Use a short stream.
        out: A folder of results, and for ``figure.png``.
        console: Where to print.
    """
    console = console or Console()
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    names = list(OBJECTS) if classes is None else list(classes)
    options: dict[str, Any] = {"pictures": PER_DOMAIN_QUICK if quick else PER_DOMAIN, "picture_seed": seed}
    options |= {} if classes is None else {"classes": names}
    planned = plan([ZERO_SHOT, *methods], data="tiny", data_options=options, seeds=[seed])
    planned = [replace(planned[0], label=title(ZERO_SHOT)), *planned[1:]]
    loaded, runs = Loaded(), []
    stream = loaded.stream(planned[0])
    if unknown := [name for name in names if object_called(name) is None]:
        say(f"No images of {', '.join(unknown)}: the tiny model does not know these words and may mislead.")
    classifier = loaded.classifier(planned[0], names)
    examples: dict[int, list[int]] = {}

    def observe(one: Run, batch: slice, prediction: Prediction) -> None:
        if prediction.support is not None:
            domains = one.outcome.domains[batch]
            examples.update(nearest_entries(prediction.support, domains, batch.start))

    with Bars(console, keep=True) as bars:
        draw_stream(stream, partial(bars.show, "drawing"))
        for experiment in planned:
            runs.append(Run(experiment, classifier, stream))
            shown = title(experiment.method)
            runs[-1].go(report=partial(bars.show, shown), observe=partial(observe, runs[-1]))
    records = [one.result() for one in runs]
    print_tables(console, [_table(records)])
    for one, record in zip(runs, records, strict=True):
        _say_more(record, say)
        Store(out).write(one.experiment, record, one.outcome.answers())
    draw(out / "figure.png", records, stream, examples)
    say(f"\nFigure:  {out / 'figure.png'}\nNumbers: {out}; `ramen report {out}` makes a page of them\n")
    return records


def title(method: str) -> str:
    """A method's name as people write it."""
    return "zero-shot" if method == ZERO_SHOT else paper.title(method)


def drawings(classes: Sequence[str], per_domain: int, seed: int) -> Stream:
    """The mixed stream of drawings of those classes that can be drawn; the seed decides everything."""
    data = load("tiny", pictures=per_domain, picture_seed=seed, classes=list(classes))
    return make_stream("mixed", data, seed)


def nearest_entries(support: Support, domains: Tensor, first: int) -> dict[int, list[int]]:
    """For each domain of a batch, an image and the entries nearest to it, without the image itself."""
    found = {}
    for index, domain in enumerate(domains.tolist()):
        own = first + index
        others = support.valid[index] & (support.numbers[index] != own)
        distances = torch.where(others, support.distances[index], torch.inf)
        if int(others.sum()) >= SHOWN_ENTRIES:
            nearest = distances.topk(SHOWN_ENTRIES, largest=False).indices
            found[domain] = [own, *support.numbers[index][nearest].tolist()]
    return found


def _table(records: Sequence[Record]) -> Table:
    scores = [one["scores"] for one in records]
    rows = [
        [domain.replace("_", " "), *(f"{one['domains'][domain]:.1f}" for one in scores)]
        for domain in scores[0]["domains"]
    ]
    gains = [str(Difference(**one["difference"])) for one in scores[1:]]
    rates = [1000 / one["cost"]["ms_an_image"] for one in records]
    rows += [
        ["Average", *(f"{one['average']:.2f}" for one in scores)],
        ["above zero-shot, 95 %", "", *gains],
        ["images per second", *(f"{rate:,.0f}" for rate in rates)],
    ]
    images, classes = records[0]["cost"]["images"], records[0]["provenance"]["classifier"]["classes"]
    name = f"Accuracy on a mixed stream of {images:,} drawings, {classes} classes"
    return Table.of_texts(name, ["domain", *(title(one["experiment"]["method"]) for one in records)], rows)


def _say_more(record: Record, say: partial[None]) -> None:
    """Where the support came from, and what the method chose."""
    name = title(record["experiment"]["method"])
    if (found := record["composition"]) is not None and found["same_domain"] is not None:
        chance = 100 / len(found["domains"])
        say(
            f"{found['same_domain']:.1f} % of the entries that {name} retrieved are from the image's own "
            f"domain, {found['same_domain'] / chance:.1f} times chance ({chance:.1f} %)."
        )
    if chosen := record["provenance"]["method"]["chosen"]:
        values = ", ".join(f"{parameter}={one['value']}" for parameter, one in chosen.items())
        say(f"{name} chose for itself: {values}.")


# -- the figure -------------------------------------------------------------------------------------------

# Distinct for colour-blind readers too; zero-shot is the grey one, the last method the strong one.
_COLOURS = ("#b8bcc4", "#8fb8de", "#f2c078", "#4b8f6b", "#7d5ba6")
_SAME, _OTHER = (58, 150, 92), (213, 216, 221)
_FRAME, _GAP = 2, 1  # in image pixels


def draw(
    path: Path, records: Sequence[Record], stream: Stream, examples: Mapping[int, Sequence[int]]
) -> None:
    """Write the figure; without retrieval it shows only the bars and one image per domain.

    Args:
        path: A PNG file.
        records: The results.
        stream: Its images.
        examples: For each domain an image and its nearest entries, as positions in the stream.
    """
    names = [name.replace("_", " ") for name in records[0]["scores"]["domains"]]
    accuracies = {title(one["experiment"]["method"]): one["scores"] for one in records}
    retrieved = next((one["composition"] for one in records if one["composition"]), None)
    firsts = {domain: [int(np.flatnonzero(stream.domain == domain)[0])] for domain in range(len(names))}
    with look():
        figure = Figure(figsize=(12.8, 9), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(2, 2, width_ratios=(10, 6.4), height_ratios=(6.2, 5.2))
        _bars(figure.add_subplot(grid[0, : 2 if retrieved is None else 1]), names, accuracies)
        if retrieved is not None:
            _matrix(figure.add_subplot(grid[0, 1]), names, np.array(retrieved["counts"]))
        _strip(figure.add_subplot(grid[1, :]), names, stream, examples or firsts)
        save(path, figure)


def _bars(axes: Axes, names: Sequence[str], methods: Mapping[str, Mapping[str, Any]]) -> None:
    places, width = np.arange(len(names)), 0.86 / len(methods)
    for index, (name, scores) in enumerate(methods.items()):
        last = len(methods) > 1 and index == len(methods) - 1
        axes.bar(
            places + (index - (len(methods) - 1) / 2) * width,
            list(scores["domains"].values()),
            width,
            color=STRONG if last else _COLOURS[index % len(_COLOURS)],
            label=f"{name}  {scores['average']:.1f} %",
        )
    axes.set_xticks(places, names, rotation=55, ha="right", rotation_mode="anchor")
    axes.set(ylim=(0, 100), ylabel="accuracy, %", xlim=(-0.6, len(names) - 0.4))
    axes.grid(axis="y")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(methods))
    axes.set_title("Accuracy on each domain of the mixed stream", pad=30)


def _matrix(axes: Axes, names: Sequence[str], counts: np.ndarray) -> None:
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="magma_r", vmin=0, vmax=max(50.0, shares.max()))
    axes.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="domain of the retrieved entries", ylabel="domain of the image")
    axes.set_title("Where the support comes from")
    axes.figure.colorbar(image, ax=axes, label="share of the support, %", shrink=0.7, pad=0.02)


def _strip(axes: Axes, names: Sequence[str], stream: Stream, examples: Mapping[int, Sequence[int]]) -> None:
    """One column per domain: an image of the stream, and below it the entries nearest to it."""
    rows, size = max(map(len, examples.values())), 32
    cell, lead = size + 2 * (_FRAME + _GAP), 4 * _GAP  # the lead is between an image and its entries
    canvas = np.full((rows * cell + lead, len(names) * cell, 3), 255, dtype=np.uint8)
    for column, numbers in examples.items():
        for row, number in enumerate(numbers):
            y, x = row * cell + (lead if row else 0) + _GAP, column * cell + _GAP
            if row > 0:
                frame = _SAME if stream.domain[number] == column else _OTHER
                canvas[y : y + size + 2 * _FRAME, x : x + size + 2 * _FRAME] = frame
            image = torch.as_tensor(stream.read(slice(number, number + 1))[0]).permute(1, 2, 0)
            canvas[y + _FRAME : y + _FRAME + size, x + _FRAME : x + _FRAME + size] = image.numpy()
    axes.imshow(canvas, interpolation="nearest")
    axes.set_xticks(
        [(column + 0.5) * cell for column in range(len(names))],
        [name.replace(" ", "\n", 1) for name in names],
        fontsize=7,
    )
    labels = {cell / 2: "image", (rows + 1) * cell / 2: "nearest\npast\nimages"}
    axes.set_yticks(list(labels)[:rows], list(labels.values())[:rows])
    if rows > 1:
        axes.set_title("An image of each domain, and the past images nearest to it (green: of its domain)")
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
