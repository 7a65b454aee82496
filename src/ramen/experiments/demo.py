"""``ramen demo``: the tiny CLIP on a mixed stream of drawings, zero-shot and adapted by several methods."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from ramen.data.dataset import Dataset, Domain
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.drawings.tiny import DOMAINS, mixed_stream, object_called
from ramen.data.streams.stream import Stream
from ramen.experiments import paper, provenance
from ramen.experiments.experiment import plan
from ramen.experiments.progress import Bars
from ramen.experiments.render import Table, print_tables
from ramen.experiments.run import Run
from ramen.experiments.scoring import Difference
from ramen.experiments.store import Progress
from ramen.methods._method import Prediction
from ramen.methods._passes import Support
from ramen.models.tiny_clip.model import load_tiny
from ramen.utils import files
from ramen.utils.files import atomic_write

DATA = "tiny"  # the data set whose preset has the parameters
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
) -> dict[str, Any]:
    """Run the demo and return its results, which are also written to ``out`` together with a figure.

    Args:
        classes: Names to classify into; those that can be drawn appear in the stream. All drawings if None.
        methods: Names of registered methods to run in addition to zero-shot.
        seed: Decides the stream and the methods' random draws.
        quick: Use a short stream.
        out: Folder for ``results.json`` and ``figure.png``.
        console: Where to print.
    """
    console = console or Console()
    names = list(OBJECTS) if classes is None else list(classes)
    experiments = plan([ZERO_SHOT, *methods], data=DATA, seeds=[seed])
    _check_drawable(names, console)
    classifier = load_tiny(names)
    files.make_folder(out)
    per_domain = PER_DOMAIN_QUICK if quick else PER_DOMAIN
    with Bars(console, keep=True) as bars:
        drawn = itertools.count(1)

        def advance(more: int) -> None:
            bars.show("drawing", Progress(next(drawn) * more, per_domain * len(DOMAINS)))

        stream = demo_stream(names, per_domain, seed, advance)
        runs = [DemoRun(Run(experiment, classifier, stream)) for experiment in experiments]
        for one in runs:
            one.run.go(report=partial(bars.show, title(one.name)), observe=one.observe)
    results = _results(runs, stream)
    print_tables(console, [_domain_table(results), _summary_table(results)])
    _print_shares(results, console)
    _print_choices(results, console)
    _save(results, runs, stream, out, console)
    return results


def title(method: str) -> str:
    """A method's name as people write it."""
    return "zero-shot" if method == ZERO_SHOT else paper.title(method)


@dataclass(frozen=True)
class DemoRun:
    """A method's run, and examples of what it retrieved.

    Attributes:
        run: The run.
        examples: For each domain an image and its nearest entries, as positions in the stream.
    """

    run: Run
    examples: dict[int, list[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The method's name."""
        return self.run.experiment.method

    @property
    def composition(self) -> Tensor | None:
        """How many entries of each domain supported the images of each domain, if the method retrieves."""
        return self.run.outcome.composition

    def observe(self, batch: slice, prediction: Prediction) -> None:
        """Take examples from a batch."""
        if prediction.support is not None:
            domains = self.run.outcome.domains[batch]
            self.examples.update(nearest_entries(prediction.support, domains, batch.start))


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


# -- the stream -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredPixels:
    """Images in memory, as a domain of a data set holds them."""

    pixels: Tensor  # (n, 3, 32, 32) uint8

    def read(self, numbers: Sequence[int]) -> Tensor:
        """A uint8 tensor ``(n, 3, 32, 32)``."""
        return self.pixels[list(numbers)]


def demo_stream(
    classes: Sequence[str], per_domain: int, seed: int, advance: Callable[[int], object] = lambda count: None
) -> Stream:
    """The mixed stream of drawings of those classes that can be drawn.

    Args:
        classes: All class names.
        per_domain: Images of each domain.
        seed: Decides everything.
        advance: Called with the number of images as they are made.
    """
    objects = [object_called(name) for name in classes]
    drawn = mixed_stream([name for name in objects if name is not None], per_domain, seed, advance)
    places = torch.tensor([place for place, name in enumerate(objects) if name is not None])
    labels, numbers = places[drawn.labels].numpy(), drawn.domains.numpy()
    domains, index = [], np.zeros(len(drawn), dtype=np.int64)
    for number, name in enumerate(DOMAINS):
        here = np.flatnonzero(numbers == number)
        index[here] = np.arange(len(here))
        domains.append(Domain(name, labels[here], StoredPixels(drawn.pixels[torch.from_numpy(here)])))
    dataset = Dataset(DATA, tuple(classes), tuple(domains))
    return Stream("mixed", {"per_domain": per_domain}, seed, dataset, numbers, index)


def _check_drawable(names: Sequence[str], console: Console) -> None:
    unknown = [name for name in names if object_called(name) is None]
    if len(unknown) == len(names):
        raise ValueError(f"classes: none of {', '.join(names)} can be drawn; these can: {', '.join(OBJECTS)}")
    if unknown:
        console.print(
            f"No images of {', '.join(unknown)}: the tiny model does not know these words; its answers may "
            "mislead.",
            highlight=False,
        )


# -- what is shown of it --------------------------------------------------------------------------------


def _results(runs: Sequence[DemoRun], stream: Stream) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for one in runs:
        result = one.run.result()
        methods[one.name] = {
            "parameters": result["experiment"]["parameters"],
            "chosen": result["provenance"]["method"]["chosen"],
            "average": result["scores"]["average"],
            "domains": result["scores"]["domains"],
            "difference": result["scores"]["difference"],
            "ms_an_image": result["cost"]["ms_an_image"],
        }
    compositions = {one.name: one.composition for one in runs if one.composition is not None}
    versions = provenance.versions()
    return {
        "classes": list(stream.dataset.classes),
        "images": len(stream),
        "seed": stream.seed,
        "batch": runs[0].run.experiment.batch,
        "methods": methods,
        "composition": {name: matrix.tolist() for name, matrix in compositions.items()},
        "same_domain_share": {
            name: float(matrix.diagonal().sum() / matrix.sum()) for name, matrix in compositions.items()
        },
        "chance_share": 1 / len(DOMAINS),
        "versions": {name: versions[name] for name in ("ramen", "torch", "python")},
    }


def _domain_table(results: dict[str, Any]) -> Table:
    methods = results["methods"]
    rows = [
        [domain.replace("_", " "), *(f"{entry['domains'][domain]:.1f}" for entry in methods.values())]
        for domain in DOMAINS
    ]
    name = f"Accuracy on a mixed stream of {results['images']:,} drawings, {len(results['classes'])} classes"
    return Table.of_texts(name, ["domain", *map(title, methods)], rows)


def _summary_table(results: dict[str, Any]) -> Table:
    rows = []
    for name, entry in results["methods"].items():
        difference = "" if name == ZERO_SHOT else str(Difference(**entry["difference"]))
        rate = f"{1000 / entry['ms_an_image']:,.0f}"
        rows.append((title(name), f"{entry['average']:.2f}", difference, rate))
    heads = ("method", "accuracy", "above zero-shot, 95 %", "images per second")
    return Table.of_texts("Average over domains", heads, rows)


def _print_shares(results: dict[str, Any], console: Console) -> None:
    chance = results["chance_share"]
    for method, share in results["same_domain_share"].items():
        console.print(
            f"{share:.1%} of the entries that {title(method)} retrieved are from the image's own domain, "
            f"{share / chance:.1f} times chance ({chance:.1%}).",
            soft_wrap=True,
        )


def _print_choices(results: dict[str, Any], console: Console) -> None:
    for method, entry in results["methods"].items():
        if entry["chosen"]:
            values = ", ".join(f"{name}={chosen['value']}" for name, chosen in entry["chosen"].items())
            console.print(
                f"{title(method)} chose for itself: {values}.", soft_wrap=True, highlight=False, markup=False
            )


def _save(
    results: dict[str, Any], runs: Sequence[DemoRun], stream: Stream, out: Path, console: Console
) -> None:
    files.write_text(out / "results.json", json.dumps(results, indent=2) + "\n")
    retrieving = next((one for one in runs if one.composition is not None), None)
    pixels = stream.read(slice(0, len(stream)))
    assert isinstance(pixels, Tensor)
    draw(
        out / "figure.png",
        domains=DOMAINS,
        accuracies={title(name): list(one["domains"].values()) for name, one in results["methods"].items()},
        composition=None if retrieving is None else retrieving.composition,
        pixels=pixels,
        stream_domains=runs[0].run.outcome.domains,
        examples={} if retrieving is None else retrieving.examples,
    )
    console.print(
        f"\nFigure:  {out / 'figure.png'}\nNumbers: {out / 'results.json'}\n", highlight=False, soft_wrap=True
    )


# -- the figure -------------------------------------------------------------------------------------------

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
