"""Parts of the package by themselves: preprocessing, decoding, the predictor, stores.

    python benchmarks/parts.py preprocess --workers 0 4 8 --out FILE.json
    python benchmarks/parts.py decoding                 # a corpus of files, and 10,000 random mutations of it
    python benchmarks/parts.py predictor --model ViT-B-16/openai --device cuda --dtype float16 --workers 0 8
    python benchmarks/parts.py store --model ViT-B-16 --classes 1000 --device cuda --dtype float16

Each part says below what it measures. Rates are compared within one run.
"""

import argparse
import ctypes
import json
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from cost import random_classifier
from image_corpus import CorpusFile, drawing, good_files, hostile_files, mutated, save
from measuring import Clock, add_options, write
from PIL import Image
from rich.console import Console
from torch import Tensor

import ramen
from ramen import testing
from ramen.client.result import Result
from ramen.experiments.measure import wait_for
from ramen.experiments.render import Table, print_tables
from ramen.images import resize
from ramen.images.decoding import UnreadableImageError, decode
from ramen.images.file_checks import MAX_BYTES, MAX_PIXELS, DecodingSettings
from ramen.methods.ramen import Ramen
from ramen.models.names import load_model
from ramen.models.prefetch import prefetch
from ramen.predict.decoding import DecodedStreams, Decoder
from ramen.predict.sources import expand
from ramen.state import open_store

Found = tuple[dict[str, Any], list[Table]]

# -- preprocessing: resized by Pillow or by matrix products, and read from files by workers ---------------

SIZES = {"32 x 32 (CIFAR)": (32, 32), "500 x 375 (photographs)": (375, 500)}


def preprocess(options: argparse.Namespace) -> Found:
    """All ways give the same numbers, which is checked first; "ratio" is the speed relative to Pillow's."""
    rows = [row for title, size in SIZES.items() for row in resized(title, size, options)]
    with tempfile.TemporaryDirectory() as folder:
        files = read(Path(folder), options)
    shown = [
        (r["pictures"], r["path"], f"{r['milliseconds_a_batch']:.2f}", f"{r['ratio']:.2f}") for r in rows
    ]
    read_rows = [(str(r["workers"]), f"{r['images_a_second']:,.0f}", f"{r['ratio']:.2f}") for r in files]
    title, heads = f"uint8 batches of {options.batch}", ("images", "path", "ms", "ratio")
    tables = [
        Table.of_texts(title, heads, shown, words=2),
        Table.of_texts("JPEG files of 500 x 375", ("workers", "images/s", "ratio"), read_rows),
    ]
    return {"resizing": rows, "files": files}, tables


def resized(title: str, original_size: tuple[int, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    step = ramen.Preprocess(options.size)
    generator = torch.Generator().manual_seed(0)
    shape = (options.batch, 3, *original_size)
    batch = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    plan, expected = step._plan(original_size), step(batch)
    assert resize.agrees_with_pillow(plan)
    calls: dict[str, Callable[[], Tensor]] = {
        "CPU, Pillow": partial(step, batch),
        "CPU, matrix products": lambda: step.normalise(resize.resize(batch, plan)),
    }
    if options.device == "cuda":
        on_device = batch.cuda()
        for dtype in (torch.float32, torch.float16):
            by_gpu, name = (
                partial(step, device="cuda", dtype=dtype),
                f"GPU, {str(dtype).removeprefix('torch.')}",
            )
            calls |= {name: partial(by_gpu, on_device), f"{name}, with the copy": partial(by_gpu, batch)}
    clock = Clock(torch.device(options.device), 20, options.repeats)
    spent = {}
    for name, call in calls.items():
        found = call()
        assert torch.equal(found.cpu(), expected.to(found.dtype))
        spent[name] = clock(call)
    return [
        {
            "pictures": title,
            "path": name,
            "milliseconds_a_batch": milliseconds,
            "ratio": spent["CPU, Pillow"] / milliseconds,
        }
        for name, milliseconds in spent.items()
    ]


def read(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rate after the first batch: workers start before it."""
    small = testing.small_classifier(device=options.device)
    classifier = ramen.ZeroShotClassifier(
        small.encoder, small.class_embeddings, preprocess=ramen.Preprocess(options.size)
    )
    paths = write_photographs(folder, options.files)
    batches = [paths[i : i + options.batch] for i in range(0, len(paths), options.batch)]
    rows: list[dict[str, Any]] = []
    expected = None
    for workers in options.workers:
        start = time.perf_counter()
        images = prefetch(batches, classifier, workers=workers)
        first = next(images)
        first_done = time.perf_counter()
        found = sum(map(len, images)) / (time.perf_counter() - first_done)
        expected = first if expected is None else expected
        assert torch.equal(first, expected)
        row = {"workers": workers, "start_seconds": first_done - start, "images_a_second": found}
        rows.append({**row, "ratio": found / rows[0]["images_a_second"] if rows else 1.0})
    return rows


def write_photographs(folder: Path, count: int) -> list[Path]:
    """JPEG files with about as much detail as photographs have: noise at several scales."""
    rng = np.random.default_rng(0)
    layers = [
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).resize((500, 375))
        for height, width in ((125, 166), (31, 41), (6, 8))
    ]
    image = Image.blend(Image.blend(layers[0], layers[1], 0.7), layers[2], 0.6)
    paths = [folder / f"{index}.jpg" for index in range(count)]
    for index, path in enumerate(paths):
        image.rotate(3 * index).save(path, quality=90)
    return paths


# -- decoding: milliseconds and megabytes to decode or to refuse a file ------------------------------------

MILLISECONDS, MEGABYTES = 200, 100  # the goal for each file
_LARGEST_MUTATED = 20_000  # bytes
_IN_ONE_FORK = 100  # mutations


def decoding(options: argparse.Namespace) -> Found:
    """Good files, hostile ones and random damage, decoded in forks; those of the corpus in one each.

    "MB" is what memory grew by at the peak. The largest images that the limits allow take what so many pixels
    take. Needs Linux.
    """
    torch.set_num_threads(1)
    files = [*good_files(), *hostile_files()]
    with tempfile.TemporaryDirectory() as folder:
        sources: dict[str, bytes | Path] = {file.name: file.data for file in files}
        sources["100 MB.png"] = Path(folder) / "100 MB.png"
        with (Path(folder) / "100 MB.png").open("wb") as large:
            large.truncate(100_000_000)
        corpus = [
            {"file": name, **in_forks(partial(decoded, source), options.repeats)}
            for name, source in sources.items()
            if options.match in name
        ]
    damaged = decoded_mutations([f for f in files if 0 < len(f.data) <= _LARGEST_MUTATED], options.mutations)
    largest = decoded_largest(options)
    outcomes = [row["outcome"] for row in damaged]
    results = {
        "limits": {"max_pixels": MAX_PIXELS, "max_bytes": MAX_BYTES},
        "goal": {"milliseconds": MILLISECONDS, "megabytes": MEGABYTES},
        "corpus": corpus,
        "corpus_within_goal": sum(map(is_within_goal, corpus)),
        "mutations": {
            "count": len(damaged),
            "decoded": sum(outcome.startswith("decoded") for outcome in outcomes),
            "died": sum(outcome.startswith("died") for outcome in outcomes),
            "slowest": max(damaged, key=lambda row: row["milliseconds"]),
            "largest": max(damaged, key=lambda row: row["megabytes"]),
            "within_goal": sum(map(is_within_goal, damaged)),
        },
        "largest": largest,
    }
    tables = []
    for title, rows, most in (
        ("the corpus", corpus, 12),
        ("damage", damaged, 5),
        ("the largest", largest, 9),
    ):
        worst = sorted(
            rows, key=lambda row: -max(row["milliseconds"] / MILLISECONDS, row["megabytes"] / MEGABYTES)
        )
        cells = [
            (r["file"], f"{r['milliseconds']:.1f}", f"{r['megabytes']:.1f}", r["outcome"])
            for r in worst[:most]
        ]
        tables.append(Table.of_texts(title, ("file", "ms", "MB", "outcome"), cells))
    return results, tables


def decoded_mutations(files: Sequence[CorpusFile], count: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    chosen = [rng.choice(files) for _ in range(count)]
    works = [partial(decoded, mutated(file.data, rng)) for file in chosen]
    rows: list[dict[str, Any]] = []
    while len(rows) < len(works):  # a process that dies ends its part
        rows += in_a_fork(works[len(rows) : len(rows) + _IN_ONE_FORK])
    return [
        {"file": f"{file.name}, mutation {i}", **row}
        for i, (file, row) in enumerate(zip(chosen, rows, strict=True))
    ]


def decoded_largest(options: argparse.Namespace) -> list[dict[str, Any]]:
    width, height = options.width, options.width * 9 // 16
    frame = drawing().resize((width, height))
    grey = Image.fromarray(np.linspace(0, 65535, width).astype(np.uint16)[None].repeat(height, 0))
    long = save(drawing().resize((20_000, 10)), "PNG")
    step, size = ramen.Preprocess((224, 224)), f"{width} x {height}"
    works: dict[str, Callable[[], str]] = {
        f"{size}, JPEG": partial(decoded, save(frame, "JPEG")),
        f"{size}, PNG": partial(decoded, save(frame, "PNG", compress_level=1)),
        f"{size}, grey PNG of 16 bits": partial(decoded, save(grey, "PNG", compress_level=1)),
        "20000 x 10, with Preprocess": lambda: str(tuple(step.pixels(decode(long)).shape)),
    }
    return [{"file": name, **in_forks(work, options.repeats)} for name, work in works.items()]


def decoded(source: bytes | Path) -> str:
    try:
        return "decoded, {} x {}".format(*decode(source, name="it").size)
    except UnreadableImageError as error:
        return str(error).removeprefix("it cannot be read as an image: ")


def in_forks(work: Callable[[], str], repeats: int = 1) -> dict[str, Any]:
    """What ``work`` says, its fastest time and its peak of memory, each in a fresh fork."""
    runs = [row for _ in range(repeats) for row in in_a_fork([work])]
    return {
        "outcome": runs[0]["outcome"],
        "milliseconds": min(run["milliseconds"] for run in runs),
        "megabytes": max(run["megabytes"] for run in runs),
    }


def in_a_fork(works: Sequence[Callable[[], str]]) -> list[dict[str, Any]]:
    """A row for each, one after the other; the last row says so if the process died."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for work in works:
                os.write(writer, json.dumps(measured(work)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        rows = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    if len(rows) < len(works):
        rows.append({"outcome": f"died with status {status}", "milliseconds": 0.0, "megabytes": 0.0})
    return rows


def measured(work: Callable[[], str]) -> dict[str, Any]:
    ctypes.CDLL(None).malloc_trim(0)  # so that memory of work before this one cannot be used again
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins with the present
    before, start = megabytes("VmRSS"), time.perf_counter()
    outcome = work()
    spent = 1000 * (time.perf_counter() - start)
    return {"outcome": outcome, "milliseconds": spent, "megabytes": megabytes("VmHWM") - before}


def megabytes(what: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024 / 1e6


def is_within_goal(row: dict[str, Any]) -> bool:
    is_alive = not row["outcome"].startswith("died")
    return is_alive and row["milliseconds"] < MILLISECONDS and row["megabytes"] < MEGABYTES


# -- the predictor: a folder of JPEG files, beside what answering it consists of ---------------------------


def predictor(options: argparse.Namespace) -> Found:
    """A predictor is at best as fast as the slower of decoding alone and the method alone.

    "of the slower" is its rate relative to that. The rows of "waiting" have a stand-in for the method that
    takes as long per batch and no core, as if there were a device. Each rate is the best of several repeats,
    which take turns.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = predicted(options, Path(folder))
    heads = ("method", "workers", "decoding", "method alone", "predictor", "of the slower")
    shown = [
        (
            r["method"],
            str(r["workers"]),
            *(f"{r[name]:,.0f}" for name in ("decoding", "alone", "classify")),
            f"{r['of_the_slower']:.2f}",
        )
        for r in rows
    ]
    return {"rows": rows}, [Table.of_texts("images per second, JPEG files of 500 x 375", heads, shown)]


def predicted(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    names = [f"object {number}" for number in range(10)]
    classifier = load_model(options.model, names, device=options.device, dtype=options.dtype)
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
            note("decoding", workers, decoding_alone(folder, classifier, workers, options.batch))
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


def rate(batches: Iterable[Sized]) -> float:
    """Images per second in the second half of the batches: workers start in the first."""
    arrivals = [(len(batch), time.perf_counter()) for batch in batches]
    timed = arrivals[len(arrivals) // 2 :]
    start = arrivals[len(arrivals) // 2 - 1][1]
    return sum(images for images, _ in timed) / (timed[-1][1] - start)


def decoding_alone(folder: Path, classifier: ramen.ZeroShotClassifier, workers: int, batch: int) -> float:
    streams = DecodedStreams(Decoder(classifier.preprocess, DecodingSettings()), workers, batch, None)
    with streams.open(expand(folder)) as stream:
        return rate(iter(stream.batch, []))


def predicting(method: ramen.Method, batches: Sequence[Tensor]) -> float:
    def answers() -> Iterator[Tensor]:
        for images in batches:
            logits = method.predict(images).zero_shot_logits
            wait_for(logits.device)
            yield logits

    return rate(answers())


def classifying(folder: Path, method: ramen.Method, workers: int, batch: int) -> float:
    def answers() -> Iterator[list[ramen.Result]]:
        with ramen.Predictor(method, batch_size=batch, workers=workers) as predictor:
            results = predictor.classify(folder)
            while found := [result for _, result in zip(range(batch), results, strict=False)]:
                assert all(result.adapted for result in found)
                yield found

    return rate(answers())


class Waiting(ramen.Method):
    """A stand-in for a method on a device: it takes its time, but none of the CPU's."""

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


# -- stores: what it costs to keep Ramen's state on disk, and how long it takes to come back ---------------


def store(options: argparse.Namespace) -> Found:
    """Batches of noise, in turns without a store and with one that saves after each batch.

    The memory is filled first. Then the store is opened again, as after a crash.
    """
    classifier = random_classifier(options.model, options.classes, options.device, options.dtype)
    with tempfile.TemporaryDirectory() as folder:
        found = stored(options, classifier, Path(folder))
    return found, [
        Table.of_texts("Ramen with a store", ("", ""), [(k, f"{v:,.3f}") for k, v in found.items()])
    ]


def stored(
    options: argparse.Namespace, classifier: ramen.ZeroShotClassifier, folder: Path
) -> dict[str, float]:
    assert classifier.image_size is not None
    generator = torch.Generator().manual_seed(1)
    shape = (options.batch, 3, *classifier.image_size)
    batches = [torch.randn(shape, generator=generator).to(classifier.device) for _ in range(4)]
    top = tuple((f"class {place}", 0.2) for place in range(5))
    answers = [
        Result(f"camera/{i:08}.jpg", "class 0", 0.2, "class 1", 0.2, top, True, 1000, 100, 1.6, 1.6)
        for i in range(options.batch)
    ]

    def create() -> Ramen:
        method = ramen.create("ramen", classifier, codec=options.codec)
        assert isinstance(method, Ramen)
        return method

    def answer(method: Ramen, images: Tensor) -> None:
        method.predict(images).labels.cpu()

    def timed(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - start)

    methods = {"without": create(), "with": create()}
    for method in methods.values():
        fill(method, options.entries)
    kept = open_store(folder, methods["with"])
    methods["with"].predict(batches[0])
    kept.save(answers)
    kept.flush()  # everything that was there before
    spent: dict[str, list[float]] = {name: [] for name in ("without", "with", "save")}
    for number in range(options.batches):
        images = batches[number % len(batches)]
        for name, method in methods.items():
            spent[name].append(timed(partial(answer, method, images)))
        spent["save"].append(timed(partial(kept.save, answers)))
        spent["with"][-1] += spent["save"][-1]
    flushed, size = timed(kept.flush), kept.bytes
    kept.close()
    again = create()
    opened = timed(lambda: open_store(folder, again).close()) / 1000
    assert torch.equal(again.memory.state()["numbers"], methods["with"].memory.state()["numbers"])
    medians = {name: statistics.median(values[2:] or values) for name, values in spent.items()}
    return {
        **{f"{name}_ms": milliseconds for name, milliseconds in medians.items()},
        "ratio": medians["with"] / medians["without"],
        "flush_ms": flushed,
        "held_bytes": methods["with"].memory.allocated_bytes(),
        "disk_bytes": size,
        "reopen_seconds": opened,
    }


def fill(method: Ramen, entries: int) -> None:
    """Put entries into the queues, all classes alike; the same 500 random ones over and over."""
    memory, generator = method.memory, torch.Generator().manual_seed(0)
    width, size = method.classifier.class_embeddings.shape[1], len(method.classifier.encoder.base)
    rows = [torch.randn(500, n, generator=generator).to(memory.device) for n in (width, size)]
    entropies = torch.rand(500, generator=generator).to(memory.device)
    for first in range(0, entries, 500):
        queues = torch.arange(first, first + 500, device=memory.device) % memory.queues
        memory.insert(memory.stage(queues, F.normalize(rows[0], dim=1), rows[1], entropies))


# -- the command line --------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[argparse.Namespace], Found], dict[str, Any]]] = {
    "preprocess": (
        preprocess,
        {"batch": 100, "size": 224, "files": 1000, "workers": [0, 1, 2], "repeats": 5},
    ),
    "decoding": (decoding, {"mutations": 10_000, "repeats": 5, "match": "", "width": 7680}),
    "predictor": (
        predictor,
        {
            **{"model": "tiny", "method": "ramen", "dtype": "float32"},
            **{"batch": 32, "files": 1024, "workers": [0, 1, 2], "repeats": 3},
        },
    ),
    "store": (
        store,
        {
            **{"model": "ViT-B-32", "classes": 100, "codec": "sign", "dtype": "float32"},
            **{"batch": 32, "batches": 20, "entries": 20_000},
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = parser.add_subparsers(dest="part", required=True)
    for name, (run, defaults) in PARTS.items():
        part = names.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        add_options(part, {**defaults, "device": "cpu"})
    options = parser.parse_args()
    run, defaults = PARTS[options.part]
    found, tables = run(options)
    print_tables(Console(), tables)
    write(options, {"settings": {name: getattr(options, name) for name in (*defaults, "device")}, **found})


if __name__ == "__main__":
    main()
