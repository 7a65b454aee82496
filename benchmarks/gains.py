"""What Ramen gains on zero-shot with chosen parameters, the best of a grid, the paper's, and older defaults.

    python benchmarks/gains.py                                   # the tiny CLIP, 2, 3, 10 and 24 classes
    python benchmarks/gains.py --stored FOLDER --arrays FILE.npz # a stored model and a stream of arrays
    python benchmarks/gains.py --own FILE.py                     # a network and a stream of one's own

FILE.py has three functions: ``parts()`` returns a module, class embeddings, a logit scale and a function that
normalises uint8 images; ``mixed(count=...)`` returns pixels ``(N, H, W, 3)``, labels, domains and names of
domains; ``clean()`` returns pixels and labels of images as the network knows them.

The grid is searched on the labels of the first seed's stream, so that what it finds is an upper bound for
choosing by hand. Lengths are beginnings of the streams. Accuracies are over all images of a stream.
"""

import argparse
import importlib.util
import itertools
import json
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

import ramen
from ramen.data.catalogue import load
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.streams.stream import Stream, make_stream
from ramen.experiments import demo
from ramen.experiments.measure import seconds
from ramen.experiments.render import Table, print_tables
from ramen.methods._choices import capacity_for, paper_values
from ramen.methods.ramen import Ramen
from ramen.models.names import load_model
from ramen.models.tiny_clip.model import load_tiny
from ramen.utils import files

LENGTHS = (200, 1000, 5000)  # and the whole stream
OLD_DEFAULTS = {"capacity": 750, "topk": 5, "beta": 5.0, "lr": 1e-2, "codec": "fp16"}
GRID_LR, GRID_BETA = (3e-3, 1e-2, 2e-2), (0.0, 2.0, 5.0)
SHORT = 200  # images for a batch size of one
Benches = Iterator["Bench"]


@dataclass(frozen=True)
class Bench:
    """A classifier and the images of a stream in memory; seeds decide their order."""

    name: str
    classifier: ramen.ZeroShotClassifier
    prepare: Callable[[Tensor], Tensor]  # indices to images on the classifier's device
    labels: Tensor

    def order(self, seed: int) -> Tensor:
        """The places of its images in the stream of that seed."""
        return torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Run:
    """For each image of a stream, in order, how much better than zero-shot: -1, 0 or 1."""

    better: Tensor
    zero_shot: float  # accuracy in percent

    def gains(self) -> dict[str, float]:
        """In points, by the length of the stream."""
        lengths = [length for length in LENGTHS if length < len(self.better)]
        return {str(n): 100 * float(self.better[:n].mean()) for n in (*lengths, len(self.better))}


def run(bench: Bench, parameters: Mapping[str, Any], seed: int, batch: int = 100, most: int = 10**9) -> Run:
    method = ramen.create("ramen", bench.classifier, **parameters)
    order = bench.order(seed)[:most]
    better, right = [], []
    for part in order.split(batch):
        out, truth = method.predict(bench.prepare(part)), bench.labels[part]
        zero_shot = out.zero_shot_logits.argmax(1).cpu() == truth
        right.append(zero_shot)
        better.append((out.labels.cpu() == truth).float() - zero_shot.float())
    return Run(torch.cat(better), 100 * float(torch.cat(right).float().mean()))


def cost(bench: Bench, batches: int = 10) -> dict[str, float]:
    """Milliseconds per image with what is chosen and with the paper's weights and step, in turns."""
    chosen = ramen.create("ramen", bench.classifier)
    assert isinstance(chosen, Ramen)
    sizes = {"capacity": chosen.capacity, "topk": chosen.topk, "codec": chosen.codec}
    methods = {"chosen": chosen, "paper": ramen.create("ramen", bench.classifier, beta=5.0, lr=1e-2, **sizes)}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for part in bench.order(0).split(100)[:batches]:
        images = bench.prepare(part)
        for name, method in methods.items():
            spent = seconds(partial(method.predict, images), bench.classifier.device)
            times[name].append(1000 * spent / len(images))
    return {name: statistics.median(spent[2:] or spent) for name, spent in times.items()}


def settings(classes: int) -> dict[str, dict[str, Any]]:
    """The paper's parameters for about so many classes, older defaults, and none."""
    paper = paper_values(classes) | ({"beta": 0.0} if classes >= 1000 else {})
    return {
        "the paper's": paper,
        "older defaults": OLD_DEFAULTS,
        "chosen, no guard": {"guard": 0.0},
        "chosen": {},
    }


def grid(classes: int) -> Iterator[dict[str, Any]]:
    capacity = capacity_for(classes)
    few, many = max(1, round(60 / classes)), max(1, round(500 / classes))
    for topk, beta, lr in itertools.product(sorted({few, many}), GRID_BETA, GRID_LR):
        yield {"capacity": max(topk, capacity), "topk": topk, "beta": beta, "lr": lr}


def measure(bench: Bench, seeds: Sequence[int], console: Console) -> dict[str, Any]:
    classes = bench.classifier.num_classes
    found = {str(p): (run(bench, p, seeds[0]), p) for p in grid(classes)}
    best, parameters = max(found.values(), key=lambda entry: float(entry[0].better.mean()))
    rows = {"best of the grid": parameters, **settings(classes)}
    result: dict[str, Any] = {}
    for name, given in rows.items():
        runs = [best if name == "best of the grid" and s == seeds[0] else run(bench, given, s) for s in seeds]
        gains = {n: [r.gains()[n] for r in runs] for n in runs[0].gains()}
        result[name] = {
            "parameters": given,
            "gains": gains,
        }
        last = gains[str(len(bench.labels))]
        console.print(f"{bench.name}: {name} {given} {statistics.mean(last):+.2f}", highlight=False)
    method = ramen.create("ramen", bench.classifier)
    method.predict(bench.prepare(torch.arange(1)))  # some choose their step with the first images
    return {
        "classes": classes,
        "images": len(bench.labels),
        "zero_shot": best.zero_shot,
        "chosen": {name: method.parameters[name] for name in method.parameters.why},
        "ms_an_image": cost(bench),
        "batch_of_one": 100 * float(run(bench, {}, seeds[0], batch=1, most=SHORT).better.mean()),
        "rows": result,
    }


# -- models and streams ---------------------------------------------------------------------------------


def of_stream(name: str, classifier: ramen.ZeroShotClassifier, stream: Stream) -> Bench:
    pixels = stream.read(slice(0, len(stream)))
    assert isinstance(pixels, Tensor)
    labels = torch.from_numpy(stream.labels())
    return Bench(name, classifier, lambda part: classifier.preprocess(pixels[part]), labels)


def tiny(counts: Sequence[int], per_domain: int, device: str) -> Benches:
    for count in counts:
        names = list(OBJECTS)[:count]
        stream = demo.drawings(names, per_domain, seed=0)
        yield of_stream(f"tiny CLIP, {count} classes", load_tiny(names, device=device), stream)


def stored(folder: Path, arrays: Path, counts: Sequence[int], per_domain: int, device: str) -> Benches:
    dataset = load("arrays", arrays, classes="cifar10")
    stream = make_stream("mixed", dataset, 0, per_domain=per_domain)
    whole = load_model(f"stored:{folder}", dataset.classes, device=device)
    pixels, labels = stream.read(slice(0, len(stream))), torch.from_numpy(stream.labels())
    assert isinstance(pixels, Tensor)
    text = whole.class_embeddings if whole.template_embeddings is None else whole.template_embeddings
    for count in counts:
        own_classes = ramen.ZeroShotClassifier(
            whole.encoder, text[:count], whole.logit_scale, preprocess=whole.preprocess
        )
        here = labels < count
        prepare = partial(_read, pixels[here], own_classes.preprocess)
        yield Bench(f"small CLIP, {count} classes", own_classes, prepare, labels[here])


def _read(pixels: Tensor, normalise: Callable[[Tensor], Tensor], part: Tensor) -> Tensor:
    return normalise(pixels[part])


def own(
    path: Path, title: str, counts: Sequence[int], count: int, cache: Path | None, device: str
) -> Benches:
    spec = importlib.util.spec_from_file_location("own_network", path)
    assert spec is not None
    assert spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    module, embeddings, scale, normalise = file.parts()
    encoder = ramen.ZeroShotClassifier(module, embeddings, scale, device=device).encoder

    def bench(name: str, pixels: Any, labels: Any, kept: Any) -> Bench:
        here = np.flatnonzero(np.isin(labels, kept))
        images = torch.from_numpy(pixels[here]).permute(0, 3, 1, 2)
        classifier = ramen.ZeroShotClassifier(encoder, embeddings[torch.from_numpy(kept)], scale)
        prepare = partial(_read, images, lambda taken: normalise(taken.to(device)))
        return Bench(name, classifier, prepare, torch.from_numpy(np.searchsorted(kept, labels[here])))

    every = np.arange(len(embeddings))
    pixels, labels = file.clean()
    yield bench(f"{title}, clean images, {len(every)} classes", pixels, labels, every)
    if cache is None:
        pixels, labels, _, _ = file.mixed(count=count)
    else:
        arrays = np.load(cache)
        pixels, labels = arrays["pixels"], arrays["labels"]
    for classes in counts:
        present = np.unique(labels)
        kept = every
        if classes < len(every):
            kept = np.sort(np.random.default_rng(0).choice(present, classes, replace=False))
        yield bench(f"{title}, {classes} classes", pixels, labels, kept)


# -- tables ---------------------------------------------------------------------------------------------


def table(name: str, result: Mapping[str, Any]) -> Table:
    lengths = list(result["rows"]["chosen"]["gains"])
    rows = []
    for setting, row in result["rows"].items():
        cells = [f"{statistics.mean(row['gains'][n]):+.2f}" for n in lengths]
        rows.append((setting, *cells))
    heads = (f"{int(n):,}" for n in lengths)
    chosen = ", ".join(f"{key}={value}" for key, value in result["chosen"].items())
    single = f"{min(SHORT, result['images'])} images one by one: {result['batch_of_one']:+.2f}"
    times = result["ms_an_image"]
    spent = f"{times['chosen']:.2f} ms per image, {times['paper']:.2f} with the paper's weights and step"
    notes = (f"Zero-shot {result['zero_shot']:.2f}. Chosen: {chosen}. {single}. {spent}.",)
    return Table.of_texts(f"Gain on zero-shot: {name}", ("", *heads), rows, *notes)


def summary(results: Mapping[str, Any]) -> Table:
    """A row per model and number of classes: the gains over whole streams."""
    names = list(next(iter(results.values()))["rows"])
    rows = []
    for name, result in results.items():
        whole = {n: row["gains"][str(result["images"])] for n, row in result["rows"].items()}
        cells = [f"{statistics.mean(gains):+.2f}" for gains in whole.values()]
        facts = [f"{result['images']:,}", f"{result['zero_shot']:.2f}"]
        rows.append((name, *facts, *cells))
    note = "Points above zero-shot over whole streams, mean of the seeds."
    return Table.of_texts("Gain on zero-shot", ("model", "images", "zero-shot", *names), rows, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stored", type=Path, help="folder of a stored model")
    parser.add_argument("--arrays", type=Path, help="its stream, with the classes of CIFAR-10")
    parser.add_argument("--own", type=Path, help="a Python file with parts() and mixed()")
    parser.add_argument("--name", help="of that network, in the tables; the file's name by default")
    parser.add_argument("--own-cache", type=Path, help="an .npz file with its stream: pixels and labels")
    parser.add_argument("--classes", type=int, nargs="+", help="class counts; all that fit if not given")
    parser.add_argument("--per-domain", type=int, default=300, help="images per domain")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="add the results to this JSON file")
    options = parser.parse_args()
    console = Console()
    if options.stored:
        counts = options.classes or [2, 3, 10]
        benches = stored(options.stored, options.arrays, counts, options.per_domain, options.device)
    elif options.own:
        counts = options.classes or [10, 100, 1000]
        title = options.name or options.own.stem
        benches = own(options.own, title, counts, options.per_domain, options.own_cache, options.device)
    else:
        benches = tiny(options.classes or [2, 3, 10, 24], options.per_domain, options.device)
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for bench in benches:
        results[bench.name] = measure(bench, options.seeds, console)
        results[bench.name] |= {"seeds": options.seeds, "machine": machine(options.device)}
        print_tables(console, [table(bench.name, results[bench.name])])
        if options.out:
            files.write_text(options.out, json.dumps(results, indent=1) + "\n")
    print_tables(console, [summary(results)])


def machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": name, "torch": torch.__version__, "ramen": ramen.__version__}


if __name__ == "__main__":
    main()
