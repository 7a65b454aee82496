"""What a step of each method costs apart from time, on any machine; with --time milliseconds of the host.

    python benchmarks/step_cost.py --out new.json                       # all methods; or name some
    python benchmarks/step_cost.py --compare old.json new.json          # exit code 1 if a step costs more
    python benchmarks/step_cost.py --time --beside FOLDER --out both.json   # another checkout, by turns

A GPU launches about one kernel per tensor operation, waits whenever the host reads a value, and outside of
the encoder's passes is bound by the bytes that it moves. Counted are batches 5 to 8 of 16 images, summed, as
some methods learn at every fourth batch only, with the small ViT of ``ramen.testing`` and its 5 classes.
Times are of one thread: medians of 200 ``predict`` of one image, and of 60 steps of 16 streams with an image
each. They are worth comparing within one run only, the code of two checkouts by turns.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Operations that only describe memory in another way.
_VIEWS = frozenset(
    (
        *("promote_types", "scalar_tensor", "result_type", "view", "_unsafe_view", "reshape", "permute", "t"),
        *("transpose", "expand", "slice", "select", "unsqueeze", "squeeze", "detach", "alias", "split"),
        *("unbind", "chunk", "as_strided", "split_with_sizes", "lift_fresh", "empty", "empty_like"),
        *("sym_size", "_local_scalar_dense", "unfold", "diagonal"),
    )
)
# The host waits for the device.
_READS = frozenset(
    ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique", "_unique2", "equal")
)
_READING_METHODS = ("tolist", "numpy", "cpu")
_WARM_UP, _COUNTED, _BATCH, _STREAMS = 4, 4, 16, 16
_TURNS = 4
# At most so many times the operations and megabytes; kernels of the named methods were taken out.
LIMIT = 1.05
LIMITS = dict.fromkeys(("onzeta", "lame", "stata", "cotta", "rotta", "roid"), 1.3) | {"moetta": 2.2}


def count(name: str) -> dict[str, Any]:
    """Tensor operations, reads by the host and megabytes of four batches."""
    import torch
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode

    import ramen

    def tensors(value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            for item in value:
                yield from tensors(item)

    class Counter(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.operations: collections.Counter[str] = collections.Counter()
            self.reads = self.bytes = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = function(*args, **(kwargs or {}))
            operation = function.overloadpacket.__name__
            masked = operation in ("index", "index_put", "index_put_") and any(
                tensor.dtype == torch.bool for tensor in tensors(args[1])
            )
            self.reads += masked or operation in _READS
            if operation not in _VIEWS:
                self.operations[operation] += 1
                moved = tensors([list(args), list((kwargs or {}).values()), output])
                self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in moved)
            return output

    counter = Counter()

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counter.reads += 1
            return method(*args, **kwargs)

        return call

    torch.manual_seed(0)
    method = ramen.create(name, ramen.testing.small_classifier())
    images = torch.randn(_BATCH, 3, 32, 32)
    batches = [images.roll(index, 0) + 0.01 * index for index in range(_WARM_UP + _COUNTED)]
    for batch in batches[:_WARM_UP]:
        method.predict(batch)
    originals = {reading: getattr(Tensor, reading) for reading in _READING_METHODS}
    try:
        for reading, original in originals.items():
            setattr(Tensor, reading, counted(original))
        with counter:
            for batch in batches[_WARM_UP:]:
                method.predict(batch)
    finally:
        for reading, original in originals.items():
            setattr(Tensor, reading, original)
    return {
        "operations": sum(counter.operations.values()),
        "host_reads": counter.reads,
        "megabytes": round(counter.bytes / 1e6, 3),
        "most": dict(counter.operations.most_common(6)),
    }


def times(name: str, repeats: int = 200, repeats_together: int = 60) -> dict[str, float]:
    """Median milliseconds of a process's time, of one stream and of sixteen together."""
    import torch

    import ramen
    from ramen.methods import predict_together

    torch.set_num_threads(1)
    torch.manual_seed(0)
    classifier, images = ramen.testing.small_classifier(), torch.randn(_STREAMS, 3, 32, 32)

    def median(call: Callable[[], object], repeats: int) -> float:
        for _ in range(repeats // 10):
            call()
        spent = []
        for _ in range(repeats):
            start = time.process_time()
            call()
            spent.append(time.process_time() - start)
        return round(1000 * statistics.median(spent), 3)

    one = ramen.create(name, classifier)
    many = [ramen.create(name, classifier) for _ in range(_STREAMS)]
    asked = [(method, images[index : index + 1]) for index, method in enumerate(many)]
    return {
        "one_ms": median(lambda: one.predict(images[:1]), repeats),
        "sixteen_ms": median(lambda: predict_together(asked), repeats_together),
    }


# -- two checkouts by turns -------------------------------------------------------------------------


class Worker:
    """A process with the code of a checkout that times methods when it is asked to."""

    def __init__(self, checkout: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def times(self, name: str) -> dict[str, float]:
        """A fraction of the calls of :func:`times`, for one turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve_times() -> None:
    """What a :class:`Worker`'s process does."""
    for line in sys.stdin:
        print(json.dumps(times(line.strip(), 200 // _TURNS, 60 // _TURNS)), flush=True)


def times_beside(names: list[str], old: Path) -> dict[str, Any]:
    """Milliseconds of this checkout and of an older one: the medians of turns."""
    new = Path(__file__).resolve().parents[1]
    workers = {"old": Worker(old.resolve()), "new": Worker(new)}
    table: dict[str, Any] = {}
    for name in names:
        turns: dict[str, list[dict[str, float]]] = {side: [] for side in workers}
        for turn in range(_TURNS):
            for side in list(workers)[:: 1 - 2 * (turn % 2)]:
                turns[side].append(workers[side].times(name))
        row = {
            side: {what: statistics.median(turn[what] for turn in found) for what in found[0]}
            for side, found in turns.items()
        }
        ratios = {what: round(row["new"][what] / row["old"][what], 3) for what in row["old"]}
        table[name] = {**row, "ratio": ratios}
        print(f"{name:14} {row['old']} -> {row['new']}  {ratios}", flush=True)
    for worker in workers.values():
        worker.close()
    return table


def compare(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Print both; whether no step costs more than it may."""
    fine = True
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        ratios = [after[what] / max(before[what], 1e-9) for what in ("operations", "megabytes")]
        kept = max(ratios) <= LIMITS.get(name, LIMIT) and after["host_reads"] <= before["host_reads"]
        fine &= kept
        print(
            f"{name:14} operations {before['operations']:5} -> {after['operations']:5} ({ratios[0]:.2f})"
            f"  host reads {before['host_reads']:3} -> {after['host_reads']:3}"
            f"  MB {before['megabytes']:8.2f} -> {after['megabytes']:8.2f} ({ratios[1]:.2f})"
            f"{'' if kept else '  MORE'}"
        )
    for name in sorted(old.keys() ^ new.keys()):
        print(f"{name:14} {'gone' if name in old else 'new'}")
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("methods", nargs="*", help="all without them")
    parser.add_argument("--time", action="store_true", help="milliseconds of the host, instead of counts")
    parser.add_argument("--beside", type=Path, help="with --time: another checkout, by turns with this one")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="counts in two files")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve_times()
        return
    if arguments.compare is not None:
        old, new = (json.loads(path.read_text())["methods"] for path in arguments.compare)
        raise SystemExit(0 if compare(old, new) else 1)
    import torch

    import ramen

    names = arguments.methods or list(ramen.list_methods())
    if arguments.beside is not None:
        table = times_beside(names, arguments.beside)
    else:
        table = {}
        for name in names:
            table[name] = times(name) if arguments.time else count(name)
            print(f"{name:14} {table[name]}", flush=True)
    if arguments.out is not None:
        about = {"torch": torch.__version__, "threads": 1 if arguments.time else None}
        arguments.out.write_text(json.dumps({"about": about, "methods": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
