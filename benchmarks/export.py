"""What ``ramen export`` writes is worth: accuracies of the tiny CLIP on the demo's mixed stream.

    python benchmarks/export.py --out benchmarks/results/export_tiny_cpu.json

The zero-shot classifier and a snapshot are written as ONNX files, with which onnxruntime answers. The
snapshot has the mean of Ramen's steps for one stream, in which all domains are mixed, and is measured on the
images of another. Snapshots of single domains, each measured on other images of its domain, show what mixing
costs.
"""

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import ramen
from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments import demo
from ramen.experiments.snapshot import mean_step
from ramen.experiments.tables.table import Cell, Column, Table
from ramen.experiments.tables.terminal import print_tables
from ramen.methods.ramen import Ramen
from ramen.models.onnx_file import write_onnx
from ramen.models.tiny_clip.model import load_tiny
from ramen.utils import atomic_files

BATCH = 50


class Images:
    """The images of a stream of drawings, in its order."""

    def __init__(self, classifier: ramen.ZeroShotClassifier, per_domain: int, seed: int) -> None:
        stream = demo.demo_stream(list(OBJECTS), per_domain, seed)
        pixels = stream.read(slice(0, len(stream)))
        assert isinstance(pixels, Tensor)
        self.images = classifier.preprocess(pixels)
        self.labels = torch.from_numpy(stream.labels())
        self.domains = torch.from_numpy(stream.domain.copy())

    def batches(self, domain: int | None = None) -> Iterator[Tensor]:
        """Of all images, or of one domain's."""
        yield from (self.images if domain is None else self.images[self.domains == domain]).split(BATCH)

    def accuracy(self, answers: Tensor, domain: int | None = None) -> float:
        """In percent, for all images or for one domain's."""
        labels = self.labels if domain is None else self.labels[self.domains == domain]
        return 100 * float((answers == labels).float().mean())


def by_file(path: Path, images: Images) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    parts = [session.run(["logits"], {"images": batch.numpy()})[0] for batch in images.batches()]
    return torch.cat([torch.from_numpy(part).argmax(1) for part in parts])


@torch.no_grad()
def by_torch(
    classifier: ramen.ZeroShotClassifier, batches: Iterator[Tensor], affine: Tensor | None = None
) -> Tensor:
    return torch.cat([classifier.logits(classifier.encode(batch, affine)).argmax(1) for batch in batches])


def new_ramen(classifier: ramen.ZeroShotClassifier) -> Ramen:
    method = ramen.create("ramen", classifier)
    assert isinstance(method, Ramen)
    return method


def measure(per_domain: int, seed: int, folder: Path) -> dict[str, float]:
    """Accuracies on the images of stream ``seed + 1``; snapshots are made of stream ``seed``."""
    classifier = load_tiny(list(OBJECTS))
    seen, other = (Images(classifier, per_domain, number) for number in (seed, seed + 1))
    base = classifier.encoder.base
    step, _ = mean_step(new_ramen(classifier), seen.batches())
    write_onnx(classifier, folder / "zero_shot.onnx")
    write_onnx(classifier, folder / "snapshot.onnx", base + step, "snapshot")
    adapting = new_ramen(classifier)
    adapted = torch.cat([adapting.predict(batch).labels for batch in other.batches()])
    zero_shot = by_torch(classifier, other.batches())
    single = []
    for domain in other.domains.unique().tolist():
        own, _ = mean_step(new_ramen(classifier), seen.batches(domain))
        answers = by_torch(classifier, other.batches(domain), base + own)
        single.append(other.accuracy(answers, domain))
    return {
        "zero-shot, torch": other.accuracy(zero_shot),
        "zero-shot, ONNX file": other.accuracy(by_file(folder / "zero_shot.onnx", other)),
        "Ramen, adapting": other.accuracy(adapted),
        "snapshot of a mixed stream, ONNX file": other.accuracy(by_file(folder / "snapshot.onnx", other)),
        "snapshots of single domains": statistics.mean(single),
    }


def table(results: dict[str, Any]) -> Table:
    rows = []
    for name, values in results["accuracy"].items():
        gain = statistics.mean(values) - statistics.mean(results["accuracy"]["zero-shot, torch"])
        rows.append((Cell(name), Cell(f"{statistics.mean(values):.2f}"), Cell(f"{gain:+.2f}")))
    title = f"What is exported, {results['per_domain']} images per domain, {len(results['seeds'])} seeds"
    return Table(title, (Column("", "left"), Column("accuracy"), Column("gain")), tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--per-domain", type=int, default=100, help="images per domain")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 10, 20])
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(options.per_domain, seed, Path(folder)) for seed in options.seeds]
    results = {
        "per_domain": options.per_domain,
        "seeds": options.seeds,
        "accuracy": {name: [run[name] for run in runs] for name in runs[0]},
        "machine": {"device": platform.machine(), "torch": torch.__version__, "ramen": ramen.__version__},
    }
    print_tables(Console(), [table(results)])
    if options.out:
        atomic_files.write_text(options.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
