"""The memory of a group of processes: what a step costs, measured beside what the model says.

    python benchmarks/scaling.py --out FILE.json

Weak scaling: every process brings as many images to a step, whatever the number of processes, and the memory
is the same. Processes on one machine share its cores, so that the time on a clock says little about them.
What is compared is the CPU time of a process, of all its threads, for each part of a step, and the bytes that
it sends. The model's rates (seconds per number searched, per number summed, per byte sent) come from one
process with shares of several sizes, and from exchanges between two; none comes from the steps that it is
compared with.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from ramen.experiments.tables.table import Cell, Column, Table
from ramen.experiments.tables.terminal import print_tables
from ramen.memory.group_cost import GroupStep
from ramen.memory.group_memory import GroupMemory
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory
from ramen.utils import atomic_files
from ramen.utils.peers import Peers

STAGES = ("insert", "select", "aggregate", "communication")
_EXCHANGED = ((1 << 10, 60), (1 << 18, 30), (3 << 19, 15))  # bytes to each process, and how often


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    classes: int = 40
    capacity: int = 48
    topk: int = 2
    codec: str = "fp16"
    gradient: int = 39_936
    embedding: int = 512
    images: int = 8
    steps: int = 22

    def step(self, processes: int) -> GroupStep:
        """The model of a step."""
        blocks = [self.gradient // 52] * 52 if self.gradient % 52 == 0 else None
        plan = MemoryPlan(
            self.classes,
            self.capacity,
            self.embedding,
            self.gradient,
            codec=self.codec,
            blocks=blocks,
            processes=processes,
        )
        return GroupStep(plan, self.images, self.topk)


class TimedPeers(Peers):
    """Peers that add up the CPU time of their exchanges."""

    spent = 0.0

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        try:
            return work(*arguments)
        finally:
            self.spent += time.process_time() - start

    def numbers(self, *arguments: Any) -> Any:
        """As ``Peers`` does."""
        return self._timed(super().numbers, *arguments)

    def gather_meanwhile(self, *arguments: Any) -> Any:
        """As ``Peers`` does."""
        wait = self._timed(super().gather_meanwhile, *arguments)
        return lambda: self._timed(wait)

    def exchange(self, *arguments: Any) -> Any:
        """As ``Peers`` does."""
        return self._timed(super().exchange, *arguments)


class _Batches:
    """Random images of one process."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings, self._draws = settings, torch.Generator().manual_seed(seed)
        self._gradients = torch.randn(64, settings.gradient, generator=self._draws)

    def __call__(self, images: int, queues: Tensor | None = None) -> dict[str, Tensor]:
        s, draws = self._settings, self._draws
        drawn = torch.randint(s.classes, (images,), generator=draws) if queues is None else queues
        return {
            "queues": drawn,
            "embeddings": F.normalize(torch.randn(images, s.embedding, generator=draws), dim=1),
            "gradients": self._gradients[torch.randint(64, (images,), generator=draws)],
            "entropies": torch.rand(images, generator=draws),
        }


def step(memory: Any, batch: dict[str, Tensor], topk: int, spent: Callable[[], float]) -> dict[str, float]:
    """CPU seconds of the parts of a step, without those that ``spent`` counts."""
    marks = [(time.process_time(), spent())]

    def mark() -> None:
        marks.append((time.process_time(), spent()))

    memory.admit(len(batch["queues"]))
    memory.put(memory.stage(**batch))
    mark()
    found = memory.select(batch["embeddings"], topk)
    weights = torch.where(found.valid, (-found.distances).exp(), 0)
    mark()
    memory.aggregate(found, weights)
    mark()
    pairs = zip(STAGES, marks, marks[1:], strict=False)
    return {name: after[0] - before[0] - (after[1] - before[1]) for name, before, after in pairs}


def by_stage(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """The lower quartile of each part, as other programs only add; two steps are for warming up."""
    return {name: lower_quartile([one[name] for one in steps[2:]]) for name in steps[0]}


def lower_quartile(values: Sequence[float]) -> float:
    """A quarter of the values is smaller."""
    return sorted(values)[len(values) // 4]


# -- what the rates come from -------------------------------------------------------------------------


def rates_of_one_process(settings: Settings) -> dict[str, dict[str, float]]:
    """Seconds per unit of work, from one process with shares of several sizes."""
    found = []
    for processes, images in ((1, 1), (1, 3), (2, 1), (4, 3), (8, 1), (2, 4)):
        share = replace(settings, images=images * settings.images * processes)
        work = replace(settings.step(processes), images=images * settings.images)
        memory = Memory(work.plan.share())
        batches = _Batches(settings, 1)
        queues = torch.arange(memory.slots) % memory.queues
        for part in queues.split(64):
            memory.insert(memory.stage(**batches(len(part), part)))
        steps = []
        for _ in range(settings.steps):
            batch = batches(share.images)
            batch["queues"] = batch["queues"] % memory.queues
            steps.append(step(memory, batch, min(settings.topk, memory.capacity), lambda: 0.0))
        inserted = replace(work, images=work.images * processes)  # here one process inserts all
        found.append((_work(work) | {"insert": _work(inserted)["insert"]}, by_stage(steps)))
    return {
        name: _fitted([work[name] for work, _ in found], [spent[name] for _, spent in found])
        for name in STAGES[:3]
    }


def _work(step: GroupStep) -> dict[str, dict[str, float]]:
    """What each part of a step has to do, in units that take about as long each."""
    outputs = float(step.batch * step.plan.gradient_size)
    return {
        "insert": {"step": 1.0, "numbers": float(step.images * step.plan.gradient_size)},
        "select": {
            "step": 1.0,
            "products": step.products(),
            "distances": float(step.batch * step.candidates * step.plan.embedding_size),
        },
        "aggregate": {
            "step": 1.0,
            "read": step.rows_read() * step.plan.gradient_size,
            "summed": step.summed(),
            "written": outputs,
        },
        "communication": {
            "calls": float(len(step.packed())),
            "messages": float(step.messages()),
            "packed": sum(step.packed().values()),
            "sent": step.sent_bytes(),
        },
    }


def _fitted(work: Sequence[dict[str, float]], spent: Sequence[float]) -> dict[str, float]:
    """Rates that are not negative, with the smallest relative errors."""
    names = list(work[0])
    rows = torch.tensor([[one[name] for name in names] for one in work], dtype=torch.float64)
    rows = rows / torch.tensor(spent, dtype=torch.float64)[:, None]
    used = list(range(len(names)))
    while True:
        solved = torch.linalg.lstsq(rows[:, used], torch.ones(len(rows), 1, dtype=torch.float64)).solution[
            :, 0
        ]
        if (solved >= 0).all() or len(used) == 1:
            break
        used.pop(int(solved.argmin()))
    rates = dict.fromkeys(names, 0.0)
    return rates | {names[index]: max(0.0, float(rate)) for index, rate in zip(used, solved, strict=True)}


def measure_exchanges(peers: TimedPeers) -> list[tuple[dict[str, float], float]]:
    """Exchanges of blocks of several sizes: what there was to do, and CPU seconds."""
    found = []
    for size, times in _EXCHANGED:
        block = torch.zeros(peers.size, size, dtype=torch.uint8)
        each = [1] * peers.size
        peers.exchange([block], each, each, "measuring")
        spent = []
        for _ in range(times):
            before = peers.spent
            peers.exchange([block], each, each, "measuring")
            spent.append(peers.spent - before)
        others = float(peers.size - 1)
        work = {"calls": 1.0, "messages": others, "packed": float(peers.size * size), "sent": others * size}
        found.append((work, lower_quartile(spent)))
    return found


# -- what is measured ----------------------------------------------------------------------------------


def measure_in_group(peers: TimedPeers, settings: Settings) -> dict[str, Any]:
    """CPU seconds of a step by part, and bytes sent, in one process of a group."""
    work = settings.step(peers.size)
    memory, batches = GroupMemory(work.plan, peers), _Batches(settings, 10 + peers.rank)
    queues = torch.arange(settings.classes * settings.capacity) % settings.classes
    own = queues[peers.rank :: peers.size]
    rounds = -(-len(queues) // (64 * peers.size))
    for number in range(rounds):
        part = own[number * 64 : (number + 1) * 64]
        peers.begin(len(part))
        memory.admit(len(part))
        memory.put(memory.stage(**batches(len(part), part)))
    steps, sent = [], []
    for _ in range(settings.steps):
        before = peers.spent, peers.traffic.bytes
        peers.begin(settings.images)
        parts = step(memory, batches(settings.images), settings.topk, lambda: peers.spent)
        steps.append(parts | {"communication": peers.spent - before[0]})
        sent.append(peers.traffic.bytes - before[1])
    return {"seconds": by_stage(steps), "sent": statistics.mean(sent), "entries": len(memory)}


def run_group(processes: int, settings: Settings, task: str) -> list[Any]:
    """What each process of a fresh gloo group says."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(processes)]
        started = [
            context.Process(target=_in_process, args=(rank, processes, folder, settings, task, there))
            for rank, (_, there) in enumerate(ends)
        ]
        for process in started:
            process.start()
        answers = [here.recv() for here, _ in ends]
        for process in started:
            process.join()
    return answers


def _in_process(
    rank: int, processes: int, folder: str, settings: Settings, task: str, pipe: Connection
) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{Path(folder) / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    assert dist.group.WORLD is not None
    peers = TimedPeers(dist.group.WORLD, timeout=600)
    tasks: dict[str, Callable[[], Any]] = {
        "rates": lambda: rates_of_one_process(settings),
        "exchanges": lambda: measure_exchanges(peers),
        "steps": lambda: measure_in_group(peers, settings),
    }
    pipe.send(tasks[task]())
    dist.barrier()
    dist.destroy_process_group()


def compare(settings: Settings, processes: Sequence[int]) -> dict[str, Any]:
    """Measured beside modelled, for each number of processes."""
    (rates,) = run_group(1, settings, "rates")
    exchanges = [
        one for count in (1, 2) for answer in run_group(count, settings, "exchanges") for one in answer
    ]
    rates["communication"] = _fitted(*zip(*exchanges, strict=True))
    rows = []
    for count in processes:
        answers = run_group(count, settings, "steps")
        work = settings.step(count)
        modelled = {
            stage: sum(rates[stage][unit] * amount for unit, amount in parts.items())
            for stage, parts in _work(work).items()
        }
        measured = {name: statistics.mean(one["seconds"][name] for one in answers) for name in STAGES}
        rows.append(
            {
                "processes": count,
                "measured_ms": {name: 1000 * value for name, value in measured.items()},
                "modelled_ms": {name: 1000 * value for name, value in modelled.items()},
                "measured_sent_bytes": statistics.mean(one["sent"] for one in answers),
                "modelled_sent_bytes": work.sent_bytes(),
                "entries": [one["entries"] for one in answers],
                "ratio": sum(measured.values()) / sum(modelled.values()),
            }
        )
    return {"rates": rates, "rows": rows}


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Measured and modelled CPU milliseconds of a step, per process."""

    def both(row: dict[str, Any], stage: str) -> Cell:
        return Cell(f"{row['measured_ms'][stage]:.1f} / {row['modelled_ms'][stage]:.1f}")

    def of_all(row: dict[str, Any]) -> str:
        return " / ".join(f"{sum(row[kind].values()):.1f}" for kind in ("measured_ms", "modelled_ms"))

    def megabytes(row: dict[str, Any]) -> str:
        return " / ".join(f"{row[f'{kind}_sent_bytes'] / 1e6:.2f}" for kind in ("measured", "modelled"))

    columns = [
        (Column("processes"), [Cell(str(row["processes"])) for row in rows]),
        *((Column(stage), [both(row, stage) for row in rows]) for stage in STAGES),
        (Column("all"), [Cell(of_all(row)) for row in rows]),
        (Column("ratio"), [Cell(f"{row['ratio']:.2f}") for row in rows]),
        (Column("MB sent"), [Cell(megabytes(row)) for row in rows]),
    ]
    return Table.from_columns("CPU milliseconds of a step per process, measured / modelled", columns)


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    for name, default in vars(Settings()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--out", type=Path, help="Where to write the figures as JSON.")
    arguments = parser.parse_args()
    settings = Settings(**{name: getattr(arguments, name) for name in vars(Settings())})
    torch.set_num_threads(1)
    found = compare(settings, arguments.processes)
    print_tables(Console(), [table(found["rows"])])
    if arguments.out is not None:
        facts = {
            "machine": {"cores": os.cpu_count(), "name": platform.machine(), "torch": torch.__version__},
            "backend": "gloo",
            "settings": vars(settings),
        }
        atomic_files.write_text(arguments.out, json.dumps(facts | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
