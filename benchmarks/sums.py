"""What storing and summing gradients costs, for each codec, place and way, on a full memory of random rows.

    python benchmarks/sums.py --device cuda
    python benchmarks/sums.py --device cuda --size 102400 --width 1024 --classes 1000 --capacity 75 --topk 1

The picks are random entries of each class, which share fewer rows than those of a real stream do.
"""

import argparse
import json
import time
from collections.abc import Callable
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
    """Of a call among ``repeats`` that follow each other, after one that does not count."""
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


def filled(arguments: argparse.Namespace, codec: str, place: str) -> Memory:
    """A memory in which every queue is full."""
    blocks = [arguments.width] * (arguments.size // arguments.width)
    sizes = arguments.classes, arguments.capacity, arguments.embedding, arguments.size
    memory = Memory(
        MemoryPlan(
            *sizes,
            codec=codec,
            blocks=blocks,
            device=torch.device(arguments.device),
            gradient_device=torch.device(place),
        )
    )
    for start in range(0, memory.plan.slots, arguments.batch):
        memory.insert(memory.stage(*batch(arguments, torch.arange(start, start + arguments.batch))))
    return memory


def batch(arguments: argparse.Namespace, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queues, embeddings, gradients and entropies of so many images."""
    device, count = arguments.device, len(numbers)
    gradients = torch.randn(count, arguments.size, device=device)
    embeddings = torch.randn(count, arguments.embedding, device=device)
    return (numbers % arguments.classes).to(device), embeddings, gradients, torch.rand(count, device=device)


def random_picks(memory: Memory, arguments: argparse.Namespace) -> Selection:
    generator = torch.Generator().manual_seed(0)
    shape = arguments.batch, arguments.classes, arguments.topk
    slots = torch.randint(arguments.capacity, shape, generator=generator).to(memory.device)
    queue = torch.arange(arguments.classes, device=memory.device)[None, :, None]
    rows = memory._index["table"][queue * arguments.capacity + slots]
    valid, zeros = torch.ones_like(rows, dtype=torch.bool), torch.zeros_like(rows)
    return Selection(rows, valid, zeros.float(), zeros.float(), zeros, zeros)


def ways(memory: Memory) -> list[str]:
    """Those that this codec and these devices allow."""
    if memory.device.type == "cpu":
        return ["gathered"]
    near = memory.device == memory.gradient_device
    dense = ["dense"] if near and not isinstance(memory.codec, PackedCodec) else []
    return [*dense, *(["kernel"] if kernels.available() else []), "gathered"]


def measure(arguments: argparse.Namespace, codec: str, place: str) -> dict[str, Any]:
    memory = filled(arguments, codec, place)
    new = batch(arguments, torch.arange(arguments.batch))
    staged = memory.stage(*new)
    selection = random_picks(memory, arguments)
    rows, weights = (
        selection.rows.flatten(1),
        torch.rand(selection.rows.flatten(1).shape, device=memory.device),
    )
    table = memory._table
    times = {
        "stage": milliseconds(lambda: memory.stage(*new), memory.device, arguments.repeats),
        "insert": milliseconds(lambda: memory.insert(staged), memory.device, arguments.repeats),
    }
    for way in ways(memory):
        times[way] = milliseconds(
            lambda w=way: row_sums.weighted_sums(  # type: ignore[misc]
                memory.codec, table["gradients"], table["scales"], rows, weights, way=w
            ),
            memory.device,
            arguments.repeats,
        )
    best = row_sums.best_way(memory.codec, table["gradients"], memory.device)
    megabytes = {str(device): count / 2**20 for device, count in memory.max_bytes().items()}
    return {
        "codec": codec,
        "gradients": place,
        "mebibytes": megabytes,
        "distinct_rows": len(rows.unique()),
        "milliseconds": times,
        "taken": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--codec", action="append", choices=CODECS, help="may be repeated; else all")
    parser.add_argument("--size", type=int, default=39_936, help="length of a gradient")
    parser.add_argument("--width", type=int, default=768, help="of a norm layer")
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--capacity", type=int, default=750)
    parser.add_argument("--topk", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    arguments.device = torch.empty(0, device=arguments.device).device  # with its index
    names = ("codec", "gradients on", "MiB", "stage", "insert", *row_sums.WAYS, "taken")
    table = Table(title="milliseconds a batch")
    for name in names:
        table.add_column(name, justify="left" if name in ("codec", "gradients on", "taken") else "right")
    results = []
    for codec in arguments.codec or CODECS:
        for place in dict.fromkeys([str(arguments.device), "cpu"]):
            result = measure(arguments, codec, place)
            results.append(result)
            times = result["milliseconds"]
            cells = [f"{times[n]:.2f}" if n in times else "" for n in ("stage", "insert", *row_sums.WAYS)]
            table.add_row(codec, place, f"{sum(result['mebibytes'].values()):.1f}", *cells, result["taken"])
    Console().print(table)
    if arguments.out is not None:
        settings = {n: str(v) if n in ("device", "out") else v for n, v in vars(arguments).items()}
        arguments.out.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
