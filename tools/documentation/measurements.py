"""What the committed results in ``benchmarks/results`` say about each method.

A method that was not measured has no entry. A result file is found by what it contains, so that a new one
with the same shape counts without being listed.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@dataclass(frozen=True)
class Cost:
    """The time of a step, in forward passes of the same encoder in the same run."""

    model: str
    classes: int
    batch: int
    device: str
    dtype: str
    forwards: float
    file: str

    @property
    def setting(self) -> str:
        """The setting in words."""
        return f"{self.model}, {self.classes:,} classes, batches of {self.batch}, {self.dtype}, {self.device}"


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on one stream, in percent, over seeds; and the gain over zero-shot if the file has it."""

    what: str
    protocol: str
    values: tuple[float, ...]
    gains: tuple[float, ...]
    file: str

    @property
    def text(self) -> str:
        """Mean and deviation."""
        return _spread(self.values)

    @property
    def gain_text(self) -> str:
        """Mean gain, with its sign."""
        return f"{mean(self.gains):+.2f}" if self.gains else ""


@dataclass
class Measured:
    """Everything that was measured of a method."""

    costs: list[Cost] = field(default_factory=list)
    accuracies: list[Accuracy] = field(default_factory=list)


@cache
def measured() -> dict[str, Measured]:
    """By method."""
    found: dict[str, Measured] = defaultdict(Measured)
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict):
            continue
        for name, cost in _costs(result, path.name):
            found[name].costs.append(cost)
        for name, accuracy in _accuracies(result, path.name):
            found[name].accuracies.append(accuracy)
    return dict(found)


def _costs(result: dict[str, Any], file: str) -> list[tuple[str, Cost]]:
    """Those of ``benchmarks/cost.py``."""
    if "plain_forward_milliseconds" not in result:
        return []
    about, hardware = result["settings"], result["hardware"]
    setting = about["model"], about["classes"], about["batch"]
    where = hardware.get("name", hardware["device"]), about["dtype"]  # older files have one name
    return [
        (name, Cost(*setting, *where, row["forwards"], file))
        for name, row in result["methods"].items()
        if "forwards" in row  # the others could not run on that model
    ]


def _accuracies(result: dict[str, Any], file: str) -> list[tuple[str, Accuracy]]:
    """Those of runs listed one by one, and those grouped by protocol."""
    found: dict[tuple[str, str], list[tuple[float, float | None]]] = defaultdict(list)
    runs = result.get("runs")
    if isinstance(runs, list) and runs and {"method", "protocol", "average", "zero_shot"} <= set(runs[0]):
        for run in runs:
            found[run["method"], run["protocol"]].append((run["average"], run["average"] - run["zero_shot"]))
    for protocol in ("mixed", "single"):
        rows = result.get(protocol)
        if isinstance(rows, list) and rows and {"method", "seeds"} <= set(rows[0]):
            for row in rows:
                found[row["method"], protocol] += [(seed["accuracy"], None) for seed in row["seeds"]]
    return [
        (
            method,
            Accuracy(
                str(result.get("what", file)),
                protocol,
                tuple(value for value, _ in pairs),
                tuple(gain for _, gain in pairs if gain is not None),
                file,
            ),
        )
        for (method, protocol), pairs in found.items()
    ]


def _spread(values: tuple[float, ...]) -> str:
    return f"{mean(values):.2f}" + (
        f" ± {stdev(values):.2f}" if len(values) > 1 and stdev(values) > 0 else ""
    )
