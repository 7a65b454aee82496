"""What a choice of settings without labels reaches of the choice with labels, method by method.

    python studies/unlabelled.py                                  # the tiny CLIP and its drawings
    python studies/unlabelled.py --own FILE.py --method ramen --method tent --out results.json

FILE.py has a function ``bench()`` that returns a classifier, preprocessed images in the order of a stream,
and their labels. Every setting that `ramen tune` tries answers the same images, with a fresh method. The
choice without labels is that of `ramen tune --without-labels`; the one with labels is the best accuracy on
these very images, and so an upper bound. Without --method: all methods of at most ten passes per image.
"""

import argparse
import copy
import json
import platform
import time
import zlib
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import ramen
from ramen.data.catalogue import load
from ramen.data.streams.stream import make_stream
from ramen.experiments.render import WORDS, Column, Table, print_tables
from ramen.experiments.tune import MOST_MOVEMENT, load_spaces
from ramen.experiments.unlabelled import Watch
from ramen.models.classifier import MissingPartError
from ramen.models.names import load_model
from ramen.utils import files

MOST_PASSES = 10
Bench = tuple[ramen.ZeroShotClassifier, Tensor, Tensor]


def tiny_bench(images: int) -> Bench:
    """The first images of the mixed stream of the tiny CLIP's drawings."""
    stream = make_stream("mixed", load("tiny"), 0, limit=images)
    classifier = load_model("tiny", stream.dataset.classes)
    pixels = classifier.preprocess(stream.read(slice(0, len(stream))))
    return classifier, pixels, torch.from_numpy(stream.labels())


def own_bench(path: Path, images: int) -> Bench:
    """The first images of what the file's ``bench`` returns."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    classifier, pixels, labels = module.bench()
    return classifier, pixels[:images], labels[:images]


def remembering(classifier: ramen.ZeroShotClassifier) -> ramen.ZeroShotClassifier:
    """A copy that encodes the same images at the pretrained weights only once."""
    known: dict[int, Tensor] = {}
    made = copy.copy(classifier)

    def encode(images: Tensor, affine: Tensor | None = None, **options: Any) -> Tensor:
        if affine is not None or options:
            return classifier.encode(images, affine, **options)
        key = zlib.crc32(images.contiguous().cpu().numpy().tobytes())
        if key not in known:
            known[key] = classifier.encode(images).detach()
        return known[key].clone()

    vars(made)["encode"] = encode
    return made


def trial(bench: Bench, name: str, setting: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The accuracy of a fresh method's answers, their information, and how far it moves embeddings."""
    classifier, images, labels = bench
    watched = Watch(classifier)
    sized = dict.fromkeys(ramen.describe(name).batch_sized, batch)
    method = ramen.create(name, watched.classifier, **{**sized, **setting})
    answers, moved = [], []
    for part in images.split(batch):
        watched.embeddings.clear()
        logits = method.predict(part).logits
        answers.append(logits.cpu())
        moved.append(watched.movement(part, logits).cpu())
    logits = torch.cat(answers)
    return {
        "setting": dict(setting),
        "accuracy": 100 * float((logits.argmax(1) == labels).double().mean()),
        "information": float(ramen.information(logits)),
        "movement": float(torch.cat(moved).median()),
    }


def compare(bench: Bench, name: str, batch: int) -> dict[str, Any]:
    """All settings of a method, and what the two choices reach."""
    started = time.perf_counter()
    tried = [trial(bench, name, setting, batch) for setting in load_spaces().of(name).settings()]
    # As `ramen tune --without-labels` chooses: the first of equals, the least movement if all move too far.
    blind = max(tried, key=lambda one: (min(0.0, MOST_MOVEMENT - one["movement"]), one["information"]))
    return {
        "trials": tried,
        "without_labels": blind["accuracy"],
        "with_labels": max(one["accuracy"] for one in tried),
        "worst": min(one["accuracy"] for one in tried),
        "seconds": time.perf_counter() - started,
    }


def affordable(name: str) -> bool:
    """Whether a method takes few enough passes per image to be tried without being named."""
    facts = ramen.describe(name)
    return facts.forwards + facts.backwards <= MOST_PASSES


def table(data: Mapping[str, Any]) -> Table:
    """Points above zero-shot of both choices and of the worst setting."""
    rows = {name: row for name, row in data["methods"].items() if len(row.get("trials", ())) > 1}
    columns = [Column("method", list(rows), WORDS)]
    for key, head in (
        ("without_labels", "without labels"),
        ("with_labels", "with labels"),
        ("worst", "worst"),
    ):
        columns.append(Column(head, [row[key] - data["zero_shot"] for row in rows.values()], "+z.2f"))
    note = (
        f"Points above zero-shot ({data['zero_shot']:.2f}), {data['images']} images; worst: of all settings."
    )
    return Table("Settings chosen without and with labels", columns, [note])


@torch.no_grad()
def study(bench: Bench, names: list[str], batch: int) -> dict[str, Any]:
    """The comparison of several methods; one that the classifier cannot run says why."""
    bench = (remembering(bench[0]), *bench[1:])
    classifier, images, labels = bench
    answers = torch.cat(
        [classifier.logits(classifier.encode(part)).argmax(1) for part in images.split(batch)]
    )
    zero_shot = 100 * float((answers.cpu() == labels).double().mean())
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = compare(bench, name, batch)
        except MissingPartError as error:
            found[name] = {"reason": str(error)}
    return {"images": len(images), "batch": batch, "zero_shot": zero_shot, "methods": found}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--own", type=Path, metavar="FILE.py")
    parser.add_argument("--method", action="append", default=[])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    given = parser.parse_args()
    bench = tiny_bench(given.images) if given.own is None else own_bench(given.own, given.images)
    names = given.method or [name for name in ramen.list_methods() if affordable(name)]
    data = study(bench, names, given.batch)
    data["hardware"] = {"machine": platform.machine(), "torch": torch.__version__}
    print_tables(Console(), [table(data)])
    if given.out is not None:
        files.write_text(given.out, json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
