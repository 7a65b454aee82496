"""``ramen demo``: the tiny CLIP on a mixed stream of drawings, zero-shot and adapted by several methods."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from ramen.data.dataset import Dataset, Domain
from ramen.data.drawings import captions
from ramen.data.drawings.domains import DOMAINS, mixed_stream
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.streams.stream import Stream
from ramen.experiments.analysis import paper
from ramen.experiments.analysis.scoring import Difference
from ramen.experiments.figures.demo import draw
from ramen.experiments.plan.experiment import plan
from ramen.experiments.run import provenance
from ramen.experiments.run.method_run import MethodRun
from ramen.experiments.run.progress import Bars
from ramen.experiments.tables.table import Cell, Column, Table, number_cell
from ramen.experiments.tables.terminal import print_tables
from ramen.methods._answers import Prediction, Support
from ramen.models.tiny_clip.model import load_tiny
from ramen.utils import atomic_files

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
    atomic_files.make_folder(out)
    per_domain = PER_DOMAIN_QUICK if quick else PER_DOMAIN
    with Bars(console, keep=True) as bars:
        with bars.count("drawing", per_domain * len(DOMAINS)) as advance:
            stream = demo_stream(names, per_domain, seed, advance)
        runs = [DemoRun(MethodRun(experiment, classifier, stream)) for experiment in experiments]
        for one in runs:
            with bars.show(one.run, title(one.name)) as show:
                one.run.go(progress=show, observe=one.observe)
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

    run: MethodRun
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
    objects = [captions.object_called(name) for name in classes]
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
    unknown = [name for name in names if captions.object_called(name) is None]
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
    rows = []
    for domain in DOMAINS:
        values = [entry["domains"][domain] for entry in methods.values()]
        best = max(values) if min(values) < max(values) else None
        cells = [Cell(f"{v:.1f}", "best" if v == best else None, value=v) for v in values]
        rows.append((Cell(domain.replace("_", " ")), *cells))
    columns = (Column("domain", "left"), *(Column(title(name)) for name in methods))
    name = f"Accuracy on a mixed stream of {results['images']:,} drawings, {len(results['classes'])} classes"
    return Table(name, columns, tuple(rows))


def _summary_table(results: dict[str, Any]) -> Table:
    rows = []
    for name, entry in results["methods"].items():
        difference = "" if name == ZERO_SHOT else str(Difference(**entry["difference"]))
        rate = number_cell(1000 / entry["ms_an_image"], ",.0f")
        rows.append((Cell(title(name)), number_cell(entry["average"]), Cell(difference), rate))
    heads = ("accuracy", "above zero-shot, 95 %", "images per second")
    return Table("Average over domains", (Column("method", "left"), *map(Column, heads)), tuple(rows))


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
    atomic_files.write_text(out / "results.json", json.dumps(results, indent=2) + "\n")
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
