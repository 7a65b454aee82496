"""``ramen demo``: the tiny CLIP meets a mixed stream of drawings, as it is and adapted by several methods."""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import Tensor

import ramen
from ramen.data.drawings import captions
from ramen.data.drawings.domains import DOMAINS, mixed_stream
from ramen.data.drawings.domains import DrawnStream as Stream
from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments.analysis import scoring
from ramen.experiments.figures import demo
from ramen.methods._answers import Support
from ramen.methods._registry import create, get_method
from ramen.models.classifier import ZeroShotClassifier
from ramen.models.tiny_clip.model import load_tiny

BATCH = 100
PER_DOMAIN, PER_DOMAIN_QUICK = 300, 24
ZERO_SHOT = "ensemble"  # no adaptation
METHODS = ("entmin", "tent", "ramen")
TITLES = {"ensemble": "zero-shot", "entmin": "EntMin", "tent": "Tent", "ramen": "Ramen"}
SHOWN_ENTRIES = 4

# What was best for each method on streams of other seeds; see the model card. Pictures lie farther from each
# other in this small model's embedding than in CLIP's, so that no further weight on distance is needed.
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "entmin": {"lr": 5e-3},
    "tent": {"lr": 1e-3},
    "ramen": {"lr": 2e-2, "topk": 3, "beta": 0.0},
}

NEXT_STEPS = """\
Next, on a real model (downloads its weights):

  import ramen
  clf = ramen.ZeroShotClassifier.from_open_clip("ViT-B-32", "openai", classes=["cat", "dog", "car"])
  method = ramen.create("ramen", clf)
  out = method.predict(clf.preprocess(["photo.jpg"]))     # out.labels, out.logits, out.zero_shot_logits

`ramen describe ramen` explains the parameters."""


@dataclass
class Run:
    """What one method said of the whole stream."""

    method: str
    parameters: dict[str, Any]
    correct: Tensor
    seconds: float
    composition: Tensor | None  # how many entries of each domain supported the queries of each domain
    examples: dict[
        int, list[int]
    ]  # for each domain, a query and its nearest entries, as places in the stream


def run(
    *,
    classes: Sequence[str] | None = None,
    methods: Sequence[str] = METHODS,
    seed: int = 0,
    quick: bool = False,
    out: Path = Path("ramen-demo"),
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the demo; the results, which also lie in ``out`` with a figure.

    Args:
        classes: Names to classify into; those that can be drawn appear in the stream. All of them if None.
        methods: Names of registered methods, beside zero-shot.
        seed: Decides the stream and what the methods draw.
        quick: A short stream.
        out: Folder for ``results.json`` and ``figure.png``.
        console: Where to print.
    """
    console = console or Console()
    names = list(OBJECTS) if classes is None else list(classes)
    chosen = list(dict.fromkeys([ZERO_SHOT, *methods]))
    for name in chosen:
        get_method(name)  # a wrong name is told before anything starts
    drawn = _drawable(names, console)
    classifier = load_tiny(names)
    out.mkdir(parents=True, exist_ok=True)

    per_domain = PER_DOMAIN_QUICK if quick else PER_DOMAIN
    with _progress(console) as progress:
        task = progress.add_task("drawing", total=per_domain * len(DOMAINS), status="")
        objects = [name for name in map(captions.object_called, names) if name is not None]
        stream = mixed_stream(objects, per_domain, seed, lambda done: progress.advance(task, done))
        stream = Stream(stream.pixels, torch.tensor(drawn)[stream.labels], stream.domains)
        images = classifier.preprocess(stream.pixels)
        runs = [
            run_method(name, PARAMETERS.get(name, {}), classifier, images, stream, seed, progress)
            for name in chosen
        ]

    results = _results(runs, stream, names, seed)
    console.print(_domain_table(results))
    console.print(_summary_table(results))
    for method, share in results["same_domain_share"].items():
        chance = results["chance_share"]
        console.print(
            f"{share:.1%} of the entries that {title(method)} retrieved are of the image's own domain, "
            f"{share / chance:.1f} times chance ({chance:.1%}).",
            soft_wrap=True,
        )
    _save(results, runs, stream, out, console)
    console.print(NEXT_STEPS, highlight=False, soft_wrap=True, markup=False)
    return results


def title(method: str) -> str:
    """A method's name as people write it."""
    return TITLES.get(method, method)


def _drawable(names: Sequence[str], console: Console) -> list[int]:
    """Which classes appear in the stream: those called as an object that can be drawn."""
    known = [captions.object_called(name) for name in names]
    drawn = [index for index, name in enumerate(known) if name is not None]
    if not drawn:
        raise ValueError(f"classes: none of {', '.join(names)} can be drawn; these can: {', '.join(OBJECTS)}")
    if others := [name for name, found in zip(names, known, strict=True) if found is None]:
        console.print(
            f"No pictures of {', '.join(others)}: the tiny model does not know that; it may mislead."
        )
    return drawn


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


def run_method(
    name: str,
    parameters: Mapping[str, Any],
    classifier: ZeroShotClassifier,
    images: Tensor,
    stream: Stream,
    seed: int,
    progress: Progress,
) -> Run:
    """A fresh method over the whole stream; ``images`` are the stream's, preprocessed."""
    method = create(name, classifier, seed=seed, **parameters)
    task = progress.add_task(title(name), total=len(stream), status="")
    correct = torch.zeros(len(stream), dtype=torch.bool)
    composition, examples = torch.zeros(len(DOMAINS), len(DOMAINS), dtype=torch.int64), {}
    start = time.perf_counter()
    for first in range(0, len(stream), BATCH):
        part = slice(first, min(first + BATCH, len(stream)))
        domains = stream.domains[part]
        out = method.predict(images[part], tags=domains, return_support=method.retrieves)
        correct[part] = out.labels == stream.labels[part]
        if out.support is not None:
            composition += scoring.composition(domains, out.support.tags, out.support.valid, len(DOMAINS))
            examples.update(_examples(out.support, domains, first))
        rate = part.stop / (time.perf_counter() - start)
        status = f"{rate:6,.0f} images/s   accuracy so far {correct[: part.stop].float().mean():.1%}"
        progress.update(task, completed=part.stop, status=status)
    seconds = time.perf_counter() - start
    return Run(name, dict(parameters), correct, seconds, composition if method.retrieves else None, examples)


def _examples(support: Support, domains: Tensor, first: int) -> dict[int, list[int]]:
    """For each domain of a batch, an image and the entries nearest to it, itself left out."""
    found = {}
    for index, domain in enumerate(domains.tolist()):
        own = first + index
        others = support.valid[index] & (support.numbers[index] != own)
        distances = torch.where(others, support.distances[index], torch.inf)
        if int(others.sum()) >= SHOWN_ENTRIES:
            nearest = distances.topk(SHOWN_ENTRIES, largest=False).indices
            found[domain] = [own, *support.numbers[index][nearest].tolist()]
    return found


def _results(runs: Sequence[Run], stream: Stream, names: Sequence[str], seed: int) -> dict[str, Any]:
    count = len(DOMAINS)
    zero_shot = runs[0].correct
    methods: dict[str, Any] = {}
    for entry in runs:
        accuracies = scoring.domain_accuracies(entry.correct, stream.domains, count)
        difference = scoring.paired_difference(entry.correct, zero_shot, stream.domains, count)
        methods[entry.method] = {
            "parameters": entry.parameters,
            "average": float(accuracies.mean()),
            "domains": dict(zip(DOMAINS, accuracies.tolist(), strict=True)),
            "difference": asdict(difference),
            "ms_an_image": 1000 * entry.seconds / len(stream),
        }
    compositions = {entry.method: entry.composition for entry in runs if entry.composition is not None}
    return {
        "classes": list(names),
        "images": len(stream),
        "seed": seed,
        "batch": BATCH,
        "methods": methods,
        "composition": {name: matrix.tolist() for name, matrix in compositions.items()},
        "same_domain_share": {
            name: float(matrix.diagonal().sum() / matrix.sum()) for name, matrix in compositions.items()
        },
        "chance_share": 1 / count,
        "versions": {
            "ramen": ramen.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _domain_table(results: dict[str, Any]) -> Table:
    methods, classes = results["methods"], len(results["classes"])
    table = Table(title=f"Accuracy on a mixed stream of {results['images']:,} drawings, {classes} classes")
    table.add_column("domain", no_wrap=True)
    for name in methods:
        table.add_column(title(name), justify="right", overflow="fold")
    for domain in DOMAINS:
        values = [entry["domains"][domain] for entry in methods.values()]
        best = max(values)
        cells = [f"[bold]{v:.1f}[/]" if v == best and min(values) < best else f"{v:.1f}" for v in values]
        table.add_row(domain.replace("_", " "), *cells)
    return table


def _summary_table(results: dict[str, Any]) -> Table:
    table = Table(title="Average over domains")
    for column in ("method", "accuracy", "difference to zero-shot, 95 %", "images a second"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, entry in results["methods"].items():
        difference = "" if name == ZERO_SHOT else str(scoring.Difference(**entry["difference"]))
        table.add_row(
            title(name), f"[bold]{entry['average']:.2f}[/]", difference, f"{1000 / entry['ms_an_image']:,.0f}"
        )
    return table


def _save(results: dict[str, Any], runs: Sequence[Run], stream: Stream, out: Path, console: Console) -> None:
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    retrieved = next((entry for entry in runs if entry.composition is not None), None)
    demo.draw(
        out / "figure.png",
        domains=DOMAINS,
        accuracies={title(n): list(m["domains"].values()) for n, m in results["methods"].items()},
        composition=None if retrieved is None else retrieved.composition,
        pixels=stream.pixels,
        stream_domains=stream.domains,
        examples={} if retrieved is None else retrieved.examples,
    )
    console.print(
        f"\nFigure:  {out / 'figure.png'}\nNumbers: {out / 'results.json'}\n", highlight=False, soft_wrap=True
    )
