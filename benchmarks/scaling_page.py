"""The tables of ``docs/scaling.md``, computed by the model; run as a script, it prints them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen.memory.codecs import CODECS
from ramen.memory.group_cost import LINKS, GroupStep, NetworkLink
from ramen.memory.plan import MemoryPlan
from ramen.utils.byte_sizes import readable_bytes

RESULTS = Path(__file__).resolve().parent / "results"
NVLINK, PCIE, FAST_ETHERNET, ETHERNET = LINKS
DAY = 24 * 3600


@dataclass(frozen=True)
class Setting:
    """A model whose speed in one process was measured; ``seconds`` are those of an image."""

    name: str
    classes: int
    capacity: int
    topk: int
    embedding: int
    layers: int  # norm layers
    width: int  # of each
    seconds: float
    launching: float = 0.0  # seconds that a step takes in addition in a group

    def step(self, processes: int, images: int, codec: str = "sign") -> GroupStep:
        """A step of so many processes."""
        blocks = [self.width] * (2 * self.layers)
        plan = MemoryPlan(
            self.classes,
            self.capacity,
            self.embedding,
            sum(blocks),
            codec=codec,
            blocks=blocks,
            processes=processes,
        )
        return GroupStep(plan, images, self.topk)


def measured_seconds(file: str, data: str, row: str) -> float:
    """Seconds of an image in one process, from the results of ``benchmarks/speed.py``."""
    rows = json.loads((RESULTS / file).read_text())["settings"][data]["rows"]
    return 1 / float(next(one["images_a_second"] for one in rows if one["what"] == row))


def whole_steps() -> list[dict[str, Any]]:
    """Steps with both passes on one GPU, alone and in a group of one process."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / "scaling_h200.json").read_text())["whole"]
    return rows


def launching_seconds() -> float:
    """What a step takes in addition in a group on a GPU: the most that was measured."""
    return max(float(row["group_ms"] - row["alone_ms"]) for row in whole_steps()) / 1000


def settings() -> dict[str, Setting]:
    """The models of the page, by name."""
    h200, cpu = "speed_h200_fp16.json", "speed_cpu_fp32.json"
    launching = launching_seconds()
    of_two_cores = measured_seconds(cpu, "cifar10c", "ramen, fp16")
    return {
        one.name: one
        for one in (
            Setting(
                "ViT-B/16",
                100,
                750,
                5,
                512,
                26,
                768,
                measured_seconds(h200, "cifar100c", "ramen, sign"),
                launching,
            ),
            Setting(
                "ViT-B/32",
                10,
                7500,
                50,
                512,
                26,
                768,
                measured_seconds(h200, "cifar10c", "ramen, sign"),
                launching,
            ),
            Setting("ViT-S/32", 10, 750, 50, 256, 26, 384, of_two_cores / 8),  # with 16 cores
        )
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def memory_table() -> str:
    """What each process holds of a full memory."""
    counts = (1, 2, 4, 8, 16)
    rows = []
    for codec in CODECS:
        steps = [settings()["ViT-B/16"].step(count, 100, codec) for count in counts]
        rows.append([f"`{codec}`", *(readable_bytes(step.memory_bytes()) for step in steps)])
    return _table(["codec", *(f"{count} processes" if count > 1 else "1 process" for count in counts)], rows)


def traffic_table() -> str:
    """What each process sends in a step, by exchange."""
    counts = (2, 4, 8, 16)
    steps = [settings()["ViT-B/16"].step(count, 100) for count in counts]
    rows = [[name, *(f"{step.sent()[name] / 1e6:,.2f}" for step in steps)] for name in steps[0].sent()]
    rows.append(["all, MB", *(f"{step.sent_bytes() / 1e6:,.1f}" for step in steps)])
    return _table(["MB sent by each process", *(f"{count} processes" for count in counts)], rows)


def link_table() -> str:
    """Exchanges and rates over each link, and where exchanges take longer than everything else."""
    setting = settings()["ViT-B/16"]
    rows = []
    for link in LINKS:
        step = setting.step(8, 100)
        crossing = step.crossing(link, setting.seconds)
        rows.append(
            [
                link.name,
                f"{link.bandwidth / 1e9:g}",
                f"{1e6 * link.latency:g}",
                f"{1000 * step.exchange_seconds(link):.1f}",
                _rate(setting, step, link),
                "never" if crossing is None else str(crossing),
            ]
        )
    head = [
        "link",
        "GB/s per process",
        "µs per exchange",
        "ms of exchanges, 8 processes",
        "images/s, 8 processes",
        "exchanges dominate from",
    ]
    return _table(head, rows)


def examples() -> list[str]:
    """The worked examples, a sentence or two each."""
    found = []
    for name, where, wanted, images, link in (
        ("ViT-S/32", "CPUs with 16 cores", 1_000, 16, ETHERNET),
        ("ViT-B/32", "H200 GPUs", 100_000, 400, NVLINK),
        ("ViT-B/16", "H200 GPUs", 1e9 / DAY, 100, NVLINK),
        ("ViT-B/16", "H200 GPUs", 1e9 / DAY, 100, PCIE),
    ):
        found.append(_example(settings()[name], where, wanted, images, link))
    return found


def _example(setting: Setting, where: str, wanted: float, images: int, link: NetworkLink) -> str:
    count = setting.step(1, images).processes_for(wanted, link, setting.seconds, setting.launching)
    assert count is not None
    step = setting.step(count, images)
    own, exchanged = 1000 * images * setting.seconds, 1000 * step.exchange_seconds(link)
    launched = f", {1000 * setting.launching:.1f} ms of launching" if setting.launching else ""
    return (
        f"{wanted:,.0f} images/s with {setting.name} over {link.name}: {count} processes on {where}, "
        f"each with {images} images per step. A step takes {own:.1f} ms of passes and memory{launched} and "
        f"{exchanged:.2f} ms of exchanges ({step.sent_bytes() / 1e6:,.1f} MB sent by each process), together "
        f"{_rate(setting, step, link)} images/s. Each process holds up to "
        f"{readable_bytes(step.memory_bytes())}."
    )


def one_machine() -> str:
    """What the eight GPUs of one machine answer, in a clause."""
    setting = settings()["ViT-B/32"]
    return f"eight of them answer {_rate(setting, setting.step(8, 400), NVLINK)} images/s"


def _rate(setting: Setting, step: GroupStep, link: NetworkLink) -> str:
    return f"{step.images_a_second(link, setting.seconds, setting.launching):,.0f}"


def whole_table() -> str:
    """Whole steps on one GPU, alone and in a group of one process with NCCL."""
    names = {"cifar100c": "ViT-B/16", "cifar10c": "ViT-B/32"}
    rows = [
        [
            names[row["setting"].split(":")[0]],
            f"{row['alone_ms']:.2f}",
            f"{row['group_ms']:.2f}",
            f"{row['group_ms'] - row['alone_ms']:.2f}",
        ]
        for row in whole_steps()
        if row["setting"].split(":")[0] in names
    ]
    return _table(["100 images on one H200", "alone, ms", "in a group of one, ms", "more, ms"], rows)


def measured_table() -> str:
    """What ``benchmarks/scaling.py`` has measured beside what the model says."""
    rows = json.loads((RESULTS / "scaling_cpu.json").read_text())["rows"]
    stages = list(rows[0]["measured_ms"])

    def cells(row: dict[str, Any]) -> list[str]:
        parts = [f"{row['measured_ms'][stage]:.1f} / {row['modelled_ms'][stage]:.1f}" for stage in stages]
        total = " / ".join(f"{sum(row[kind].values()):.1f}" for kind in ("measured_ms", "modelled_ms"))
        sent = " / ".join(f"{row[f'{kind}_sent_bytes'] / 1e6:.2f}" for kind in ("measured", "modelled"))
        return [str(row["processes"]), *parts, total, f"{row['ratio']:.2f}", sent]

    return _table(["processes", *stages, "all", "ratio", "MB sent"], [cells(row) for row in rows])


def main() -> None:
    """Print all tables."""
    tables = (
        memory_table(),
        traffic_table(),
        link_table(),
        *examples(),
        one_machine(),
        measured_table(),
        whole_table(),
    )
    for part in tables:
        print(part, end="\n\n")


if __name__ == "__main__":
    main()
