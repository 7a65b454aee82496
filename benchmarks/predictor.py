"""How fast a predictor answers a folder of JPEG files, beside what it consists of.

    python benchmarks/predictor.py                       # the tiny CLIP
    python benchmarks/predictor.py --model ViT-B-16/openai --device cuda --dtype float16 --workers 0 8 14
    python benchmarks/predictor.py --out predictor.json

A predictor decodes beside the device. At best it is as fast as the slower of the two: decoding alone, with
the same workers, and the method alone, on batches that are ready. "of the slower" is its rate relative to
that, in the same run; "decoding" and "method alone" are the two rates. On a CPU the method takes cores from
decoding, so that this is less than 1 unless there are cores to spare. The rows of "waiting" have a stand-in
for the method that takes as long per batch and no core, as if there were a device.

Each rate is the best of several repeats, which take turns. The first half of the batches is not timed, as
workers start meanwhile, and neither is the time that they take to end.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import PIL
import torch
from preprocess import write_photographs
from rich.console import Console
from rich.table import Table
from torch import Tensor

import ramen
from ramen.experiments.run.measure import wait_for
from ramen.images.decoding import DecodingSettings
from ramen.models.by_name import load_model
from ramen.serve.decoded_stream import DecodedStreams
from ramen.serve.decoders import Decoder
from ramen.serve.sources import expand

CLASSES = tuple(f"object {number}" for number in range(10))


def rate(batches: Iterable[Sized]) -> float:
    """Images per second, in the second half of the batches."""
    arrivals = [(len(batch), time.perf_counter()) for batch in batches]
    timed = arrivals[len(arrivals) // 2 :]
    start = arrivals[len(arrivals) // 2 - 1][1]
    return sum(images for images, _ in timed) / (timed[-1][1] - start)


def decoding(folder: Path, classifier: ramen.ZeroShotClassifier, workers: int, batch: int) -> float:
    """Images per second that become pixels, with nothing else to do."""
    streams = DecodedStreams(Decoder(classifier.preprocess, DecodingSettings()), workers, batch, None)
    with streams.open(expand(folder)) as stream:
        return rate(iter(stream.batch, []))


def predicting(method: ramen.Method, batches: Sequence[Tensor]) -> float:
    """Images per second of the method alone, with its zero-shot answers, on batches that are ready."""

    def answers() -> Iterator[Tensor]:
        for images in batches:
            logits = method.predict(images).zero_shot_logits
            wait_for(logits.device)
            yield logits

    return rate(answers())


def classifying(folder: Path, method: ramen.Method, workers: int, batch: int) -> float:
    """Images per second of a predictor."""

    def answers() -> Iterator[list[ramen.Result]]:
        with ramen.Predictor(method, batch_size=batch, workers=workers) as predictor:
            results = predictor.classify(folder)
            while found := [result for _, result in zip(range(batch), results, strict=False)]:
                assert all(result.adapted for result in found)
                yield found

    return rate(answers())


class Waiting(ramen.Method):
    """A stand-in for a method on a device: it takes its time, but none of the CPU's.

    Args:
        classifier: Provides the classes.
        seconds: How long a batch takes.
    """

    info = ramen.MethodInfo(
        name="waiting",
        title="Stand-in for a device",
        venue="",
        paper="",
        updates="nothing",
        predicts_with="nothing",
        batch_dependent=False,
        forwards=0,
        backwards=0,
    )

    def __init__(self, classifier: ramen.ZeroShotClassifier, seconds: float) -> None:
        super().__init__(classifier)
        self.seconds = seconds

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        """Wait."""
        time.sleep(self.seconds)
        logits = torch.zeros(len(images), self.classifier.num_classes, device=images.device)
        return ramen.Answer(logits, logits, usable)


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One row per method and number of workers."""
    classifier = load_model(options.model, CLASSES, device=options.device, dtype=options.dtype)
    paths = write_photographs(folder, options.files)
    starts = range(0, len(paths), options.batch)
    batches = [classifier.preprocess(paths[start : start + options.batch]) for start in starts]
    best: dict[tuple[str, int], float] = defaultdict(float)

    def note(what: str, workers: int, found: float) -> None:
        best[what, workers] = max(best[what, workers], found)

    for _ in range(options.repeats):
        note("method", 0, predicting(ramen.create(options.method, classifier), batches))
        waiting = Waiting(classifier, options.batch / best["method", 0])
        for workers in options.workers:
            method = ramen.create(options.method, classifier)
            note("decoding", workers, decoding(folder, classifier, workers, options.batch))
            note(options.method, workers, classifying(folder, method, workers, options.batch))
            note("waiting", workers, classifying(folder, waiting, workers, options.batch))
    alone = best["method", 0]
    return [
        {
            "method": name,
            "workers": workers,
            "decoding": best["decoding", workers],
            "alone": alone,
            "classify": best[name, workers],
            "of_the_slower": best[name, workers] / min(alone, best["decoding", workers]),
        }
        for name in (options.method, "waiting")
        for workers in options.workers
    ]


def show(rows: Sequence[dict[str, Any]], title: str, console: Console) -> None:
    """Print the rows as a table."""
    table = Table(title=title)
    for column in ("method", "workers", "decoding", "method alone", "classify", "of the slower"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        figures = [f"{row[name]:,.0f}" for name in ("decoding", "alone", "classify")]
        table.add_row(row["method"], str(row["workers"]), *figures, f"{row['of_the_slower']:.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--method", default="ramen")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--files", type=int, default=1024, help="how many JPEG files to write and read")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.files <= options.batch:
        parser.error("--files must be more than --batch: the first half of the batches is not timed")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder))
    title = f"images per second: {options.model}, batches of {options.batch}, JPEG files of 500 x 375"
    show(rows, title, Console())
    if options.out is not None:
        device = torch.cuda.get_device_name() if options.device.startswith("cuda") else None
        names = ("model", "method", "device", "dtype", "batch", "files", "repeats")
        results = {
            "settings": {name: getattr(options, name) for name in names},
            "hardware": {
                "cpu": platform.machine(),
                "cores": len(os.sched_getaffinity(0)),
                "threads": 1,
                "gpu": device,
            },
            "versions": {
                "torch": torch.__version__,
                "pillow": PIL.__version__,
                "python": platform.python_version(),
            },
            "rows": rows,
        }
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
