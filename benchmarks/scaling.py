"""The memory of a group of processes: what a step costs, measured beside what the model says.

    python benchmarks/scaling.py --out FILE.json
    python benchmarks/scaling.py --device cuda --out FILE.json

Weak scaling: every process brings as many images to a step, whatever the number of processes, and the memory
is the same.

On a CPU, processes share the cores of one machine, so that the time on a clock says little about them. What
is compared is the CPU time of a process, of all its threads, for each part of a step, and the bytes that it
sends. On GPUs there is one process each, with NCCL, and the time is that on a clock. One GPU has a group of
one process, whose exchanges pack, copy and unpack as those of many, and send nothing: then steps of several
sizes are compared, and whole steps with both passes, alone and in a group.
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import scaling_steps
import torch
from rich.console import Console
from scaling_steps import STAGES, Settings, run_group

from ramen.experiments.tables.table import Cell, Column, Table
from ramen.experiments.tables.terminal import print_tables
from ramen.utils import atomic_files

ON_CPUS = Settings()
ON_GPUS = Settings(100, 750, 5, "sign", images=100, device="cuda")  # the paper's memory for CIFAR-100-C
IMAGES = {"cpu": [8], "cuda": [25, 50, 100, 200, 400]}  # per process


def compare(settings: Settings, processes: Sequence[int], images: Sequence[int]) -> dict[str, Any]:
    """Measured beside modelled, for each number of processes and of images."""
    empty = scaling_steps.empty_step(settings)
    ((rates, exchanges, small),) = run_group(
        1, [("rates", settings), ("exchanges", settings), ("steps", empty)]
    )
    if settings.device == "cpu" or max(processes) > 1:
        for (answer,) in run_group(2, [("exchanges", settings)]):
            exchanges += answer
    rates["communication"] = scaling_steps.fitted(*zip(*exchanges, strict=True))
    scaling_steps.with_group(rates, settings, small["seconds"])
    rows = []
    for count in processes:
        sizes = [replace(settings, images=number) for number in images]
        by_process = run_group(count, [("steps", one) for one in sizes])
        for size, answers in zip(sizes, zip(*by_process, strict=True), strict=True):
            rows.append(_row(size, count, answers, rates))
    return {"rates": rates, "rows": rows}


def _row(
    settings: Settings, processes: int, answers: Sequence[Any], rates: dict[str, dict[str, float]]
) -> dict[str, Any]:
    work = settings.step(processes)
    modelled = scaling_steps.modelled(work, rates)
    measured = {name: statistics.mean(one["seconds"][name] for one in answers) for name in STAGES}
    return {
        "processes": processes,
        "images": settings.images,
        "measured_ms": {name: 1000 * value for name, value in measured.items()},
        "modelled_ms": {name: 1000 * value for name, value in modelled.items()},
        "measured_sent_bytes": statistics.mean(one["sent"] for one in answers),
        "modelled_sent_bytes": work.sent_bytes(),
        "entries": [one["entries"] for one in answers],
        "ratio": sum(measured.values()) / sum(modelled.values()),
    }


def table(rows: Sequence[dict[str, Any]], what: str) -> Table:
    """Measured and modelled milliseconds of a step, per process."""

    def both(row: dict[str, Any], stage: str) -> Cell:
        return Cell(f"{row['measured_ms'][stage]:.2f} / {row['modelled_ms'][stage]:.2f}")

    def of_all(row: dict[str, Any]) -> str:
        return " / ".join(f"{sum(row[kind].values()):.2f}" for kind in ("measured_ms", "modelled_ms"))

    def megabytes(row: dict[str, Any]) -> str:
        return " / ".join(f"{row[f'{kind}_sent_bytes'] / 1e6:.2f}" for kind in ("measured", "modelled"))

    columns = [
        (Column("processes"), [Cell(str(row["processes"])) for row in rows]),
        (Column("images each"), [Cell(str(row["images"])) for row in rows]),
        *((Column(stage), [both(row, stage) for row in rows]) for stage in STAGES),
        (Column("all"), [Cell(of_all(row)) for row in rows]),
        (Column("ratio"), [Cell(f"{row['ratio']:.2f}") for row in rows]),
        (Column("MB sent"), [Cell(megabytes(row)) for row in rows]),
    ]
    return Table.from_columns(f"{what} of a step per process, measured / modelled", columns)


def whole_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Whole steps alone and in a group of one process."""
    columns = [
        (Column("", "left"), [Cell(row["about"]) for row in rows]),
        *(
            (Column(head), [Cell(f"{row[key]:.2f}") for row in rows])
            for head, key in (
                ("alone, ms", "alone_ms"),
                ("in a group, ms", "group_ms"),
                ("modelled, ms", "modelled_ms"),
                ("ratio", "ratio"),
            )
        ),
    ]
    return Table.from_columns("whole steps with both passes", columns)


def main() -> None:
    """Measure, print tables and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--device", choices=tuple(IMAGES), default="cpu")
    parser.add_argument("--processes", type=int, nargs="+", help="1, 2, 4 and 8, of which GPUs have one each")
    parser.add_argument("--images", type=int, nargs="+", help="Of each process; may be several numbers.")
    for name, default in vars(ON_CPUS).items():
        if name not in ("device", "images"):
            parser.add_argument(f"--{name}", type=type(default), help="Instead of the device's own.")
    parser.add_argument("--out", type=Path, help="Where to write the figures as JSON.")
    arguments = parser.parse_args()
    device = arguments.device
    given = {name: value for name, value in vars(arguments).items() if name in vars(ON_CPUS)}
    given = {name: value for name, value in given.items() if value is not None and name != "images"}
    settings = replace(ON_CPUS if device == "cpu" else ON_GPUS, **given)
    most = 8 if device == "cpu" else torch.cuda.device_count()
    processes = arguments.processes or [count for count in (1, 2, 4, 8) if count <= most]
    torch.set_num_threads(1)
    found = compare(settings, processes, arguments.images or IMAGES[device])
    what = "CPU milliseconds" if device == "cpu" else "milliseconds"
    tables = [table(found["rows"], what)]
    if device == "cuda":
        from scaling_passes import whole_steps

        found["whole"] = whole_steps()
        tables.append(whole_table(found["whole"]))
    print_tables(Console(), tables)
    if arguments.out is not None:
        facts = {
            "machine": {
                "cores": os.cpu_count(),
                "name": platform.machine() if device == "cpu" else torch.cuda.get_device_name(),
                "torch": torch.__version__,
            },
            "backend": "gloo" if device == "cpu" else "nccl",
            "settings": vars(settings),
        }
        atomic_files.write_text(arguments.out, json.dumps(facts | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
