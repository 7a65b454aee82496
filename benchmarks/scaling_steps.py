"""Steps of a memory that a group of processes shares: how long each part takes, and what the model says.

The model's rates (seconds per number searched, per number summed, per byte packed or sent) come from one
process with shares of several sizes, from exchanges of blocks, and from steps of a group of one process with
next to nothing in them; none comes from the steps that it is compared with.
"""

import multiprocessing
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
from torch import Tensor

from ramen.memory.group_cost import GroupStep
from ramen.memory.group_memory import GroupMemory
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory
from ramen.utils.peers import Peers

STAGES = ("insert", "select", "aggregate", "communication")
_EXCHANGED = ((1 << 10, 60), (1 << 18, 30), (3 << 19, 15))  # bytes to each process, and how often
_EXCHANGED_ON_GPUS = (*_EXCHANGED, (16 << 20, 15))
_SMALL = 1 << 16  # bytes that are still in a cache when they are sent
_BETWEEN = 16 << 20  # numbers that are touched before others are
_POOL = 64  # gradients of which batches are made
_FILL = {"cpu": 64, "cuda": 1000}  # entries at a time
Task = tuple[str, "Settings"]  # what to measure, and with which settings


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
    device: str = "cpu"

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
            device=torch.device(self.device),
            processes=processes,
        )
        return GroupStep(plan, self.images, self.topk)

    def now(self) -> float:
        """CPU seconds of this process; on a GPU, seconds on a clock at which all its work is done."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


class TimedPeers(Peers):
    """Peers that add up the time of their exchanges."""

    spent = 0.0
    now: Callable[[], float] = time.process_time

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        start = self.now()
        try:
            return work(*arguments)
        finally:
            self.spent += self.now() - start

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
        self._gradients = torch.randn(_POOL, settings.gradient, generator=self._draws).to(settings.device)

    def __call__(self, images: int, queues: Tensor | None = None) -> dict[str, Tensor]:
        s, draws = self._settings, self._draws
        drawn = torch.randint(s.classes, (images,), generator=draws) if queues is None else queues
        embeddings = F.normalize(torch.randn(images, s.embedding, generator=draws), dim=1)
        chosen = torch.randint(_POOL, (images,), generator=draws).to(s.device)
        return {
            "queues": drawn.to(s.device),
            "embeddings": embeddings.to(s.device),
            "gradients": self._gradients[chosen],
            "entropies": torch.rand(images, generator=draws).to(s.device),
        }


def step(
    memory: Any, batch: dict[str, Tensor], settings: Settings, topk: int, spent: Callable[[], float]
) -> dict[str, float]:
    """Seconds of the parts of a step, without those that ``spent`` counts."""
    marks = [(settings.now(), spent())]

    def mark() -> None:
        marks.append((settings.now(), spent()))

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
        for part in queues.split(_FILL[settings.device]):
            memory.insert(memory.stage(**batches(len(part), part)))
        steps = []
        for _ in range(settings.steps):
            batch = batches(share.images)
            batch["queues"] = batch["queues"] % memory.queues
            steps.append(step(memory, batch, settings, min(settings.topk, memory.capacity), lambda: 0.0))
        inserted = replace(work, images=work.images * processes)  # here one process inserts all
        to_do = work_of(work, in_group=False) | {"insert": work_of(inserted, in_group=False)["insert"]}
        found.append((to_do, by_stage(steps)))
    return {
        name: fitted([work[name] for work, _ in found], [spent[name] for _, spent in found])
        for name in STAGES[:3]
    }


def work_of(step: GroupStep, *, in_group: bool = True) -> dict[str, dict[str, float]]:
    """What each part of a step has to do, in units that take about as long each."""
    outputs = float(step.batch * step.plan.gradient_size)
    work = {
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
    return {stage: parts | {"in a group": float(in_group)} for stage, parts in work.items()}


def modelled(step: GroupStep, rates: dict[str, dict[str, float]]) -> dict[str, float]:
    """Seconds of each part of a step."""
    return {
        stage: sum(rates[stage][unit] * amount for unit, amount in parts.items())
        for stage, parts in work_of(step).items()
    }


def fitted(work: Sequence[dict[str, float]], spent: Sequence[float]) -> dict[str, float]:
    """Rates that are not negative, with the smallest relative errors; 0 for what there never was."""
    names = list(work[0])
    rows = torch.tensor([[one[name] for name in names] for one in work], dtype=torch.float64)
    rows = rows / torch.tensor(spent, dtype=torch.float64)[:, None]
    used = [index for index in range(len(names)) if rows[:, index].any()]
    while True:
        ones = torch.ones(len(rows), 1, dtype=torch.float64)
        solved = torch.linalg.lstsq(rows[:, used], ones).solution[:, 0]
        if (solved >= 0).all() or len(used) == 1:
            break
        used.pop(int(solved.argmin()))
    rates = dict.fromkeys(names, 0.0)
    return rates | {names[index]: max(0.0, float(rate)) for index, rate in zip(used, solved, strict=True)}


def measure_exchanges(peers: TimedPeers, settings: Settings) -> list[tuple[dict[str, float], float]]:
    """Exchanges of blocks of several sizes: what there was to do, and seconds.

    Before a large block, as in a step, sums pass through the caches: what is still there would travel faster.
    """
    found, others = [], float(peers.size - 1)
    between = torch.ones(_BETWEEN, device=settings.device)
    for size, times in _EXCHANGED if settings.device == "cpu" else _EXCHANGED_ON_GPUS:
        each = [1] * peers.size
        spent = []
        for number in range(times + 2):
            block = torch.full((peers.size, size), number, dtype=torch.uint8, device=settings.device)
            if size > _SMALL:
                between += 1
            before = peers.spent
            peers.exchange([block], each, each, "measuring")
            spent.append(peers.spent - before)
        work = {"calls": 1.0, "messages": others, "packed": float(peers.size * size), "sent": others * size}
        found.append((work | {"in a group": 0.0}, lower_quartile(spent[2:])))
    return found


def with_group(rates: dict[str, dict[str, float]], settings: Settings, empty: dict[str, float]) -> None:
    """Add what a group takes for every step, however little there is to do.

    Args:
        rates: Without it.
        settings: As measured.
        empty: Seconds of each part of an ``empty_step`` in a group of one process.
    """
    expected = modelled(empty_step(settings).step(1), rates)
    for stage in STAGES:
        rates[stage]["in a group"] = max(0.0, empty[stage] - expected[stage])


def empty_step(settings: Settings) -> Settings:
    """The same with next to nothing to do."""
    return replace(settings, classes=4, capacity=8, topk=1, gradient=416, embedding=32, images=4)


# -- what is measured ----------------------------------------------------------------------------------


def measure_in_group(peers: TimedPeers, settings: Settings) -> dict[str, Any]:
    """Seconds of a step by part, and bytes sent, in one process of a group."""
    work = settings.step(peers.size)
    memory, batches = GroupMemory(work.plan, peers), _Batches(settings, 10 + peers.rank)
    queues = torch.arange(settings.classes * settings.capacity) % settings.classes
    own, some = queues[peers.rank :: peers.size], _FILL[settings.device]
    for number in range(-(-len(queues) // (some * peers.size))):
        part = own[number * some : (number + 1) * some]
        peers.begin(len(part))
        memory.admit(len(part))
        memory.put(memory.stage(**batches(len(part), part)))
    steps, sent = [], []
    for _ in range(settings.steps):
        batch = batches(settings.images)
        before = peers.spent, peers.traffic.bytes
        peers.begin(settings.images)
        parts = step(memory, batch, settings, settings.topk, lambda: peers.spent)
        steps.append(parts | {"communication": peers.spent - before[0]})
        sent.append(peers.traffic.bytes - before[1])
    return {"seconds": by_stage(steps), "sent": statistics.mean(sent), "entries": len(memory)}


def run_group(processes: int, tasks: Sequence[Task]) -> list[list[Any]]:
    """What each process of a fresh group has measured, task by task: gloo on CPUs, NCCL on GPUs."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(processes)]
        started = [
            context.Process(target=_in_process, args=(rank, processes, folder, tasks, there))
            for rank, (_, there) in enumerate(ends)
        ]
        for process in started:
            process.start()
        for _, there in ends:
            there.close()  # then a process that dies is noticed
        answers = [here.recv() for here, _ in ends]
        for process in started:
            process.join()
    return answers


def _in_process(rank: int, processes: int, folder: str, tasks: Sequence[Task], pipe: Connection) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{Path(folder) / 'meeting'}"
    on_gpus = tasks[0][1].device == "cuda"
    if on_gpus:
        torch.cuda.set_device(rank)
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=processes)
    assert dist.group.WORLD is not None
    peers = TimedPeers(dist.group.WORLD, timeout=600)
    peers.now = tasks[0][1].now
    measure: dict[str, Callable[[TimedPeers, Settings], Any]] = {
        "rates": lambda peers, settings: rates_of_one_process(settings),
        "exchanges": measure_exchanges,
        "steps": measure_in_group,
    }
    with torch.no_grad():
        pipe.send([measure[task](peers, settings) for task, settings in tasks])
    peers.numbers(0, "ending")
    dist.destroy_process_group()
