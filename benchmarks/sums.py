"""The time of storing and summing gradients, for each codec, device and way to sum, in a full random memory.

    python benchmarks/sums.py --device cuda
    python benchmarks/sums.py --device cuda --size 102400 --width 1024 --classes 1000 --capacity 75 --topk 1

The selected entries are random ones of each class: they share fewer rows than those of a real stream.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ramen import kernels
from ramen.memory import row_sums
from ramen.memory.codecs import CODECS, PackedCodec
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory, Selection


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Mean time of one call over ``repeats`` calls in a row, after one that is not timed."""
    call()
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return 1000 * (time.perf_counter() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def full_memory(arguments: argparse.Namespace, codec: str, gradient_device: str) -> Memory:
    """A memory in which every queue is full."""
    blocks = [arguments.width] * (arguments.size // arguments.width)
    sizes = arguments.classes, arguments.capacity, arguments.embedding, arguments.size
    devices = torch.device(arguments.device), torch.device(gradient_device)
    memory = Memory(MemoryPlan(*sizes, codec, blocks, "exact", *devices))
    for start in range(0, memory.slots, arguments.batch):
        numbers = torch.arange(start, start + arguments.batch)
        memory.insert(memory.stage(*random_entries(arguments, numbers)))
    return memory


def random_entries(arguments: argparse.Namespace, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queues, embeddings, gradients and entropies, one per number; the queues take turns."""
    device, count = arguments.device, len(numbers)
    gradients = torch.randn(count, arguments.size, device=device)
    embeddings = torch.randn(count, arguments.embedding, device=device)
    return (numbers % arguments.classes).to(device), embeddings, gradients, torch.rand(count, device=device)


def random_selection(memory: Memory, arguments: argparse.Namespace) -> Selection:
    """``topk`` random entries of every class, for each image of a batch."""
    generator = torch.Generator().manual_seed(0)
    shape = arguments.batch, arguments.classes, arguments.topk
    slots = torch.randint(arguments.capacity, shape, generator=generator).to(memory.device)
    queue = torch.arange(arguments.classes, device=memory.device)[None, :, None]
    rows = memory._index["table"][queue * arguments.capacity + slots]
    valid, zeros = torch.ones_like(rows, dtype=torch.bool), torch.zeros_like(rows)
    return Selection(rows, valid, zeros.float(), zeros.float(), zeros, zeros)


def possible_ways(memory: Memory) -> list[str]:
    """The ways to sum rows that this codec and these devices allow."""
    if memory.device.type == "cpu":
        return ["gathered"]
    same_device = memory.device == memory.gradient_device
    dense = ["dense"] if same_device and not isinstance(memory.codec, PackedCodec) else []
    return [*dense, *(["kernel"] if kernels.available() else []), "gathered"]


def measure(arguments: argparse.Namespace, codec: str, gradient_device: str) -> dict[str, Any]:
    """Times and sizes of one codec with its gradients on one device."""
    memory = full_memory(arguments, codec, gradient_device)
    new = random_entries(arguments, torch.arange(arguments.batch))
    staged = memory.stage(*new)
    rows = random_selection(memory, arguments).rows.flatten(1)
    weights = torch.rand(rows.shape, device=memory.device)
    table = memory._table
    times = {
        "stage": milliseconds(lambda: memory.stage(*new), memory.device, arguments.repeats),
        "insert": milliseconds(lambda: memory.insert(staged), memory.device, arguments.repeats),
    }
    for way in possible_ways(memory):
        stored = (table.tensors["gradients"], table.tensors["scales"])
        call = partial(row_sums.weighted_sums, memory.codec, *stored, rows, weights, way=way)
        times[way] = milliseconds(call, memory.device, arguments.repeats)
    best = row_sums.best_way(memory.codec, table.tensors["gradients"], memory.device)
    mebibytes = {str(device): count / 2**20 for device, count in memory.max_bytes().items()}
    return {
        "codec": codec,
        "gradients": gradient_device,
        "mebibytes": mebibytes,
        "distinct_rows": len(rows.unique()),
        "milliseconds": times,
        "taken": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--codec", action="append", choices=CODECS, help="may be repeated; all by default")
    parser.add_argument("--size", type=int, default=39_936, help="length of a gradient")
    parser.add_argument("--width", type=int, default=768, help="width of a norm layer")
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--capacity", type=int, default=750)
    parser.add_argument("--topk", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    arguments.device = torch.empty(0, device=arguments.device).device  # with its index
    names = ("codec", "gradients on", "MiB", "stage", "insert", *row_sums.WAYS, "chosen")
    table = Table(title="milliseconds per batch")
    for name in names:
        table.add_column(name, justify="left" if name in ("codec", "gradients on", "chosen") else "right")
    results = []
    for codec in arguments.codec or CODECS:
        for gradient_device in dict.fromkeys([str(arguments.device), "cpu"]):
            result = measure(arguments, codec, gradient_device)
            results.append(result)
            times = result["milliseconds"]
            cells = [f"{times[n]:.2f}" if n in times else "" for n in ("stage", "insert", *row_sums.WAYS)]
            mebibytes = f"{sum(result['mebibytes'].values()):.1f}"
            table.add_row(codec, gradient_device, mebibytes, *cells, result["taken"])
    Console().print(table)
    if arguments.out is not None:
        settings = {n: str(v) if n in ("device", "out") else v for n, v in vars(arguments).items()}
        arguments.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
