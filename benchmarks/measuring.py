"""What the scripts share: the options of their commands, a clock, and files of results."""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ramen.experiments import provenance
from ramen.experiments.measure import wait_for
from ramen.utils import files


def command(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with ``--device``, ``--dtype``, ``--out`` and an option for each default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, {"device": "cpu", "dtype": "float32", **defaults})
    return parser


def add_options(parser: argparse.ArgumentParser, defaults: Mapping[str, Any]) -> None:
    """An option for each default, of its type; a list takes several values, a type has no default."""
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="write the results as JSON")


def write(arguments: argparse.Namespace, results: Mapping[str, Any]) -> None:
    """Write results with hardware and versions to ``--out``, if it is given."""
    if arguments.out is not None:
        about = {
            "hardware": provenance.hardware(torch.device(arguments.device)),
            "versions": provenance.versions(),
        }
        files.write_text(arguments.out, json.dumps(_finite({**about, **results}), indent=1) + "\n")


def _finite(value: Any) -> Any:
    """The same with None for what is not a number, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


class Clock:
    """Milliseconds of a call: the best mean of several rounds, after some calls that do not count.

    Args:
        device: What to wait for.
        repeats: Calls in a round; fewer where they would take longer than ``seconds``.
        rounds: How many.
        seconds: About the longest round, where more than one call is possible in it.
        counter: Of Python's ``time``: "process_time" counts what this process computes, on a machine that
            others use at the same time.
    """

    def __init__(
        self,
        device: torch.device,
        repeats: int,
        rounds: int,
        seconds: float = 0.6,
        counter: str = "perf_counter",
    ) -> None:
        self.device, self.repeats, self.rounds, self.seconds = device, repeats, rounds, seconds
        self._now: Callable[[], float] = getattr(time, counter)

    @torch.no_grad()
    def __call__(self, call: Callable[[], object]) -> float:
        """Time ``call``."""
        for _ in range(4 if self.device.type == "cuda" else 1):  # which compile kernels and record graphs
            last = self._seconds(call, 1)
        repeats = max(1, min(self.repeats, int(self.seconds / last)))
        return min(1000 * self._seconds(call, repeats) / repeats for _ in range(self.rounds))

    def _seconds(self, call: Callable[[], object], repeats: int) -> float:
        wait_for(self.device)
        start = self._now()
        for _ in range(repeats):
            call()
        wait_for(self.device)
        return self._now() - start
