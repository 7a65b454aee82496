"""How fast images become tensors: resized by Pillow or by matrix products, and read from files by workers.

    python benchmarks/preprocess.py                      # one CPU thread, and the GPU if there is one
    python benchmarks/preprocess.py --step 25 --workers 0 8 --out preprocess.json

All paths give the same numbers; this is checked first. "ratio" is the speed relative to Pillow's in the same
run, "of a step" the time relative to that of a method's step (--step).
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

import ramen
from ramen import testing
from ramen.images import resize
from ramen.models.prefetch import prefetch

SIZES = {"32 x 32 (CIFAR)": (32, 32), "500 x 375 (photographs)": (375, 500)}


def cpu_milliseconds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Each call's fastest run; the calls take turns, so that a busy moment does not slow down only one."""
    fastest = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            fastest[name] = min(fastest[name], 1000 * (time.perf_counter() - start))
    return fastest


def device_milliseconds(call: Callable[[], object], repeats: int) -> float:
    """The median time on the device, measured by the device's own events."""
    for _ in range(3):
        call()
    spent: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # launches finish while the device sleeps, so they are not measured
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        spent.append(start.elapsed_time(end))
    return statistics.median(spent)


def resizing(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Time every way to preprocess a batch of each size in ``SIZES``; print and return the rows."""
    preprocess = ramen.Preprocess(options.size)
    table = Table(title=f"uint8 batch of {options.batch} to {options.size} x {options.size}")
    for column in ("images", "path", "ms per batch", "images per second", "ratio", "of a step"):
        table.add_column(column, justify="left" if column in ("images", "path") else "right")
    rows: list[dict[str, Any]] = []
    for title, original_size in SIZES.items():
        generator = torch.Generator().manual_seed(0)
        shape = (options.batch, 3, *original_size)
        batch = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        milliseconds_by_path = _time_paths(preprocess, batch, options.repeats)
        pillow = next(iter(milliseconds_by_path.values()))
        for path, milliseconds in milliseconds_by_path.items():
            row = {
                "pictures": title,
                "path": path,
                "milliseconds_a_batch": milliseconds,
                "images_a_second": 1000 * len(batch) / milliseconds,
                "ratio": pillow / milliseconds,
                "of_a_step": milliseconds / options.step,
            }
            rows.append(row)
            table.add_row(
                title,
                path,
                f"{milliseconds:.2f}",
                f"{row['images_a_second']:,.0f}",
                f"{row['ratio']:.2f}",
                f"{row['of_a_step']:.1%}",
            )
    console.print(table)
    return rows


def _time_paths(preprocess: ramen.Preprocess, batch: Tensor, repeats: int) -> dict[str, float]:
    """Milliseconds of each path, Pillow's first; all paths must give the same tensor."""
    plan = preprocess._plan(tuple(batch.shape[2:]))
    expected = preprocess(batch)
    assert resize.agrees_with_pillow(plan)

    def by_matrices() -> Tensor:
        return preprocess.normalise(resize.resize(batch, plan))

    assert torch.equal(by_matrices(), expected)
    milliseconds = cpu_milliseconds(
        {"CPU, Pillow": lambda: preprocess(batch), "CPU, matrix products": by_matrices}, repeats
    )
    if torch.cuda.is_available():
        on_device = batch.cuda()
        for dtype in (torch.float32, torch.float16):
            result = preprocess(batch, device="cuda", dtype=dtype)
            assert torch.equal(result.cpu(), expected.to(dtype))
            name = f"GPU, {str(dtype).removeprefix('torch.')}"
            milliseconds[name] = device_milliseconds(
                partial(preprocess, on_device, dtype=dtype), 10 * repeats
            )
            milliseconds[f"{name}, with the copy"] = device_milliseconds(
                partial(preprocess, batch, device="cuda", dtype=dtype), 10 * repeats
            )
    return milliseconds


def files(options: argparse.Namespace, folder: Path, console: Console) -> list[dict[str, Any]]:
    """Time reading and preprocessing JPEG files with each number of workers; print and return the rows."""
    classifier = testing.small_classifier(device="cuda" if torch.cuda.is_available() else "cpu")
    classifier = ramen.ZeroShotClassifier(
        classifier.encoder, classifier.class_embeddings, preprocess=ramen.Preprocess(options.size)
    )
    paths = write_photographs(folder, options.files)
    batches = [paths[i : i + options.batch] for i in range(0, len(paths), options.batch)]
    table = Table(title=f"JPEG files of 500 x 375, batches of {options.batch}, on {classifier.device}")
    for column in ("workers", "seconds to the first batch", "images per second after it", "ratio"):
        table.add_column(column, justify="right")
    rows: list[dict[str, Any]] = []
    expected = None
    for workers in options.workers:
        start = time.perf_counter()
        images = prefetch(batches, classifier, workers=workers)
        first = next(images)
        first_done = time.perf_counter()
        rate = sum(map(len, images)) / (time.perf_counter() - first_done)
        expected = first if expected is None else expected
        assert torch.equal(first, expected)
        ratio = rate / rows[0]["images_a_second"] if rows else 1.0
        rows.append(
            {"workers": workers, "start_seconds": first_done - start, "images_a_second": rate, "ratio": ratio}
        )
        table.add_row(str(workers), f"{first_done - start:.2f}", f"{rate:,.0f}", f"{ratio:.2f}")
    console.print(table)
    return rows


def write_photographs(folder: Path, count: int) -> list[Path]:
    """Write JPEG files with about as much detail as photographs have: noise at several scales."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--step", type=float, default=25.0, help="milliseconds a method takes per batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", type=int, default=1000, help="how many JPEG files to write and read")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if options.files <= options.batch:
        parser.error("--files must be more than --batch: the first batch is not timed")
    torch.set_num_threads(1)
    console = Console()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    results: dict[str, Any] = {
        "settings": {name: getattr(options, name) for name in ("batch", "size", "step", "files")},
        "hardware": {"cpu": platform.machine(), "threads": 1, "gpu": device},
        "versions": {
            "torch": torch.__version__,
            "pillow": PIL.__version__,
            "python": platform.python_version(),
        },
        "resizing": resizing(options, console),
    }
    with tempfile.TemporaryDirectory() as folder:
        results["files"] = files(options, Path(folder), console)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
