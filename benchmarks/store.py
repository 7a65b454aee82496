"""What it costs to keep Ramen's state on disk, and how long it takes to come back.

    python benchmarks/store.py --out FILE.json
    python benchmarks/store.py --model ViT-B-16 --classes 1000 --device cuda --dtype float16 --batch 100

A model with random weights answers batches of noise, in turns without a store and with one that saves after
each batch. The memory is filled with random entries first, so that it is as large as it will ever be. Then
the store is opened again, as after a crash.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cost import random_classifier
from rich.console import Console

import ramen
from ramen.experiments.tables.table import Cell, Column, Table
from ramen.experiments.tables.terminal import print_tables
from ramen.methods.ramen import Ramen
from ramen.serve.result import Result
from ramen.serve.store import StateStore, open_store
from ramen.utils import atomic_files
from ramen.utils.byte_sizes import readable_bytes


def fill(method: Ramen, entries: int) -> None:
    """Put entries into the queues, all classes alike; the same 500 random ones over and over."""
    memory, generator = method.memory, torch.Generator().manual_seed(0)
    width, size = method.classifier.class_embeddings.shape[1], len(method.classifier.encoder.base)
    rows = [torch.randn(500, n, generator=generator).to(memory.device) for n in (width, size)]
    entropies = torch.rand(500, generator=generator).to(memory.device)
    for first in range(0, entries, 500):
        queues = torch.arange(first, first + 500, device=memory.device) % memory.queues
        memory.insert(memory.stage(queues, F.normalize(rows[0], dim=1), rows[1], entropies))


def results(count: int) -> list[Result]:
    top = tuple((f"class {place}", 0.2) for place in range(5))
    return [
        Result(f"camera/{place:08}.jpg", "class 0", 0.2, "class 1", 0.2, top, True, 1000, 100, 1.6, 1.6)
        for place in range(count)
    ]


def step(method: Ramen, images: torch.Tensor) -> float:
    """Milliseconds of a batch, until its labels are on the host."""
    start = time.perf_counter()
    method.predict(images).labels.cpu()
    return 1000 * (time.perf_counter() - start)


def save(store: StateStore, answers: list[Result]) -> float:
    """Milliseconds that a caller waits for saving a batch."""
    start = time.perf_counter()
    store.save(answers)
    return 1000 * (time.perf_counter() - start)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    classifier = random_classifier(arguments.model, arguments.classes, arguments.device, arguments.dtype)
    assert classifier.image_size is not None
    generator = torch.Generator().manual_seed(1)
    shape = (arguments.batch, 3, *classifier.image_size)
    batches = [torch.randn(shape, generator=generator).to(classifier.device) for _ in range(4)]

    def create() -> Ramen:
        method = ramen.create("ramen", classifier, codec=arguments.codec)
        assert isinstance(method, Ramen)
        return method

    methods = {"without": create(), "with": create()}
    for method in methods.values():
        fill(method, arguments.entries)
    store, answers = open_store(folder, methods["with"]), results(arguments.batch)
    step(methods["with"], batches[0])
    save(store, answers)
    store.flush()  # everything that was there before
    times: dict[str, list[float]] = {name: [] for name in ("without", "with", "save")}
    for number in range(arguments.batches):
        for name, method in methods.items():
            times[name].append(step(method, batches[number % len(batches)]))
        times["save"].append(save(store, answers))
        times["with"][-1] += times["save"][-1]
    start = time.perf_counter()
    store.flush()
    flushed = 1000 * (time.perf_counter() - start)
    size = store.bytes
    store.close()
    again = create()
    start = time.perf_counter()
    open_store(folder, again).close()
    opened = time.perf_counter() - start
    assert torch.equal(again.memory.state()["numbers"], methods["with"].memory.state()["numbers"])
    medians = {name: statistics.median(spent[2:] or spent) for name, spent in times.items()}
    return {
        "milliseconds_a_batch": medians,
        "ratio": medians["with"] / medians["without"],
        "flush_milliseconds": flushed,
        "memory_bytes": methods["with"].memory_bytes(),
        "held_bytes": methods["with"].memory.allocated_bytes(),
        "disk_bytes": size,
        "reopen_seconds": opened,
    }


def table(settings: dict[str, Any], result: dict[str, Any]) -> Table:
    spent = result["milliseconds_a_batch"]
    rows = [
        ("a batch without a store", f"{spent['without']:.1f} ms"),
        ("a batch, saved", f"{spent['with']:.1f} ms"),
        ("of which the caller waits for the store", f"{spent['save']:.1f} ms"),
        ("ratio", f"{result['ratio']:.3f}"),
        ("waiting for the disk at the end", f"{result['flush_milliseconds']:.1f} ms"),
        ("in memory", readable_bytes(result["held_bytes"])),
        ("on disk", readable_bytes(result["disk_bytes"])),
        ("opening it again", f"{result['reopen_seconds']:.2f} s"),
    ]
    title = "Ramen with durable state: {model}, {classes} classes, batch {batch}, codec {codec}".format(
        **settings
    )
    cells = tuple((Cell(name), Cell(value)) for name, value in rows)
    return Table(title, (Column("", "left"), Column("")), cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--codec", default="sign")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--entries", type=int, default=20_000, help="in the memory before")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, help="where the store is written; a temporary one by default")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = measure(arguments, Path(folder))
    settings = {n: getattr(arguments, n) for n in ("model", "classes", "codec", "batch", "dtype", "entries")}
    print_tables(Console(), [table(settings, result)])
    device = arguments.device
    hardware = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    versions = {"device": hardware, "torch": torch.__version__, "ramen": ramen.__version__}
    if arguments.out:
        record = {"settings": settings, "machine": versions, **result}
        atomic_files.write_text(arguments.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
