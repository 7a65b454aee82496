"""How long image files take to decode or to be refused, and how much memory: good ones, hostile ones, damage.

    python benchmarks/decoding.py                    # the corpus and 10,000 random mutations of it
    python benchmarks/decoding.py --mutations 500 --out decoding.json

Files are decoded in forks of this process, each of the corpus in one of its own. "MB" is what memory grew by
at the peak. The goal for every file is less than 200 ms and 100 MB. The last table has the largest images
that the limits allow: they take what so many pixels take. Needs Linux.
"""

import argparse
import ctypes
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

import ramen
from ramen.images.decoding import MAX_BYTES, MAX_PIXELS, UnreadableImageError, decode
from ramen.testing.image_corpus import drawing, good_files, hostile_files, mutated, save

MILLISECONDS, MEGABYTES = 200, 100  # the goal for each file
_LARGEST_MUTATED = 20_000  # bytes
_IN_ONE_FORK = 100  # mutations


def measure(work: Callable[[], str], repeats: int = 1) -> dict[str, Any]:
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
                os.write(writer, json.dumps(_measured(work)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        rows = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    if len(rows) < len(works):
        rows.append({"outcome": f"died with status {status}", "milliseconds": 0.0, "megabytes": 0.0})
    return rows


def _measured(work: Callable[[], str]) -> dict[str, Any]:
    ctypes.CDLL(None).malloc_trim(0)  # so that memory of work before this one cannot be used again
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins with the present
    before, start = _megabytes("VmRSS"), time.perf_counter()
    outcome = work()
    spent = 1000 * (time.perf_counter() - start)
    return {"outcome": outcome, "milliseconds": spent, "megabytes": _megabytes("VmHWM") - before}


def _megabytes(what: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024 / 1e6


def decoded(source: bytes | Path) -> str:
    try:
        return "decoded, {} x {}".format(*decode(source, name="it").size)
    except UnreadableImageError as error:
        return str(error).removeprefix("it cannot be read as an image: ")


def corpus(options: argparse.Namespace, folder: Path, console: Console) -> list[dict[str, Any]]:
    """Measure every file of the corpus; print and return the rows."""
    sources: dict[str, bytes | Path] = {f.name: f.data for f in (*good_files(), *hostile_files())}
    sources["100 MB.png"] = folder / "100 MB.png"
    with (folder / "100 MB.png").open("wb") as file:
        file.truncate(100_000_000)
    rows = [
        {"file": name, **measure(partial(decoded, source), options.repeats)}
        for name, source in sources.items()
        if options.match in name
    ]
    _print(console, "the corpus: the slowest and largest", _worst(rows, 12))
    return rows


def mutations(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure random damage to small files of the corpus; print and return a summary."""
    rng = random.Random(options.seed)
    files = [f for f in (*good_files(), *hostile_files()) if 0 < len(f.data) <= _LARGEST_MUTATED]
    names, works = [], []
    for index in range(options.mutations):
        file = rng.choice(files)
        names.append(f"{file.name}, mutation {index}")
        works.append(partial(decoded, mutated(file.data, rng)))
    rows: list[dict[str, Any]] = []
    while len(rows) < len(works):  # a process that dies ends its part
        rows += in_a_fork(works[len(rows) : len(rows) + _IN_ONE_FORK])
    rows = [{"file": name, **row} for name, row in zip(names, rows, strict=True)]
    outcomes = [row["outcome"] for row in rows]
    summary = {
        "count": len(rows),
        "decoded": sum(outcome.startswith("decoded") for outcome in outcomes),
        "died": sum(outcome.startswith("died") for outcome in outcomes),
        "median_milliseconds": statistics.median(row["milliseconds"] for row in rows),
        "slowest": max(rows, key=lambda row: row["milliseconds"]),
        "largest": max(rows, key=lambda row: row["megabytes"]),
        "within_goal": sum(map(is_within_goal, rows)),
    }
    title = f"{len(rows):,} mutations, {summary['decoded']:,} decoded, {summary['died']} processes died"
    _print(console, title, _worst(rows, 5))
    return summary


def largest(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure the largest images that are accepted, and the longest through all of ``Preprocess``."""
    width, height = options.width, options.width * 9 // 16
    frame = drawing().resize((width, height))
    preprocess = ramen.Preprocess((224, 224))
    long = save(drawing().resize((20_000, 10)), "PNG")
    works: dict[str, Callable[[], str]] = {
        f"{width} x {height}, JPEG": partial(decoded, save(frame, "JPEG")),
        f"{width} x {height}, PNG": partial(decoded, save(frame, "PNG", compress_level=1)),
        f"{width} x {height}, grey PNG of 16 bits": partial(decoded, _wide_frame(width, height)),
        "20000 x 10, with Preprocess": lambda: str(tuple(preprocess.pixels(decode(long)).shape)),
    }
    rows = [{"file": name, **measure(work, options.repeats)} for name, work in works.items()]
    _print(console, "the largest images that the limits allow", rows)
    return rows


def _wide_frame(width: int, height: int) -> bytes:
    values = np.linspace(0, 65535, width).astype(np.uint16)[None].repeat(height, 0)
    return save(Image.fromarray(values), "PNG", compress_level=1)


def is_within_goal(row: dict[str, Any]) -> bool:
    is_alive = not row["outcome"].startswith("died")
    return is_alive and row["milliseconds"] < MILLISECONDS and row["megabytes"] < MEGABYTES


def _worst(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    def cost(row: dict[str, Any]) -> float:
        return max(float(row["milliseconds"]) / MILLISECONDS, float(row["megabytes"]) / MEGABYTES)

    return sorted(rows, key=cost, reverse=True)[:count]


def _print(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column in ("file", "ms", "MB", "outcome"):
        table.add_column(column, justify="right" if column in ("ms", "MB") else "left")
    for row in rows:
        table.add_row(row["file"], f"{row['milliseconds']:.1f}", f"{row['megabytes']:.1f}", row["outcome"])
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5, help="of each file; the fastest run counts")
    parser.add_argument("--match", default="", help="only files of the corpus whose names contain this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=7680, help="of the largest images")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        rows = corpus(options, Path(folder), console)
    results: dict[str, Any] = {
        "settings": {
            name: getattr(options, name) for name in ("mutations", "repeats", "match", "seed", "width")
        },
        "limits": {"max_pixels": MAX_PIXELS, "max_bytes": MAX_BYTES},
        "goal": {"milliseconds": MILLISECONDS, "megabytes": MEGABYTES},
        "hardware": {"cpu": platform.machine(), "cores": os.cpu_count()},
        "versions": {
            "pillow": PIL.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "corpus": rows,
        "corpus_within_goal": sum(map(is_within_goal, rows)),
        "mutations": mutations(options, console),
        "largest": largest(options, console),
    }
    console.print(f"{results['corpus_within_goal']} of {len(rows)} files of the corpus are within the goal")
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
