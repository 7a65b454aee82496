"""``ramen classify`` under torchrun, killed again and again; its output is that of a run that was not.

    python -m tests.helpers.kill_grid --kills 200 --out FILE.json

A chain is one output and one state. Its command is started with some number of processes, killed at a random
instant, started with another number, and so on until one start reaches the end; then the next chain begins.
Nobody but the processes themselves ends those that survive a kill; ``torchrun`` would help on one machine.
"""

import argparse
import csv
import json
import math
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.classify_process import ClassifyProcess
from tests.helpers.drawing_files import CLASSES, write_drawings
from tests.helpers.torchrun_processes import TorchrunProcesses

BATCH = 8
EXACT = ("file", "label", "zero_shot_label", "changed", "adapted", "error", "support", "state_version")
ROUNDED = ("probability", "zero_shot_probability", "probability_2")
ENDED = (0, 3)  # all files have a row; some of them an error
REASONS = (
    "a process of the group did not answer",
    "the processes of the group did not find each other",
)
_BATCH_SECONDS = 0.1  # at least, so that kills come between the first row and the last one
_SLACK = 30.0  # seconds beyond the timeout, on a machine that has other things to do


def rows(path: Path) -> list[dict[str, str]]:
    """The whole rows of an output."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().decode().rpartition("\n")
    return list(csv.DictReader(whole.splitlines()))


def assert_same(found: Sequence[dict[str, str]], expected: Sequence[dict[str, str]]) -> None:
    """The same rows in the same order, up to the rounding of passes with batches of another size."""
    picked = [[[row[name] for name in EXACT] for row in some] for some in (found, expected)]
    assert picked[0] == picked[1]
    for name in ROUNDED:
        values = [[float(row[name] or -1) for row in some] for some in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-6)


@dataclass
class KillReport:
    """What has happened."""

    kills: int = 0
    chains: int = 0
    starts: int = 0
    rows_compared: int = 0
    rows_made_again: int = 0
    one_killed: int = 0
    all_killed: int = 0
    before_the_first_row: int = 0
    after_the_last_row: int = 0  # with nothing left but to save what was learned
    survivors: int = 0
    survivors_seconds: float = 0.0  # the longest that one took to end after a kill
    by_processes: Counter[int] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        processes = {str(count): self.by_processes[count] for count in sorted(self.by_processes)}
        return vars(self) | {"by_processes": processes}


class KillGrid:
    """Chains of starts and kills.

    Args:
        folder: For images, outputs and states.
        seed: Decides numbers of processes, victims and instants.
        drawings: Per domain, of which there are 18.
        timeout: Seconds that processes wait for each other.
        most: Processes of a start.
    """

    def __init__(
        self, folder: Path, seed: int = 0, *, drawings: int = 4, timeout: float = 15.0, most: int = 4
    ) -> None:
        self._folder, self._timeout, self._most = folder, timeout, most
        self._random, self.report = random.Random(seed), KillReport()
        self._photos = folder / "photos"
        write_drawings(self._photos, drawings)
        (self._photos / "003x.png").write_bytes(b"no image")
        (self._photos / "020x.png").write_bytes(b"")
        with ClassifyProcess(self._command(folder / "undisturbed"), folder) as process:
            begin = time.monotonic()
            assert process.wait() == 3, process.stderr
            self._seconds = time.monotonic() - begin
        self.expected = rows(folder / "undisturbed" / "labels.csv")
        assert len(self.expected) == len(list(self._photos.iterdir()))

    def _command(self, chain: Path) -> list[object]:
        chain.mkdir(exist_ok=True)
        common = ["--classes", ",".join(CLASSES), "--model", "tiny", "--batch", BATCH]
        return [self._photos, "--out", chain / "labels.csv", "--state", chain / "state", *common]

    def run(self, kills: int, minutes: float = math.inf) -> KillReport:
        """Kill so many times, or for so long; every chain is brought to its end."""
        end = time.monotonic() + 60 * minutes
        while self.report.kills < kills and time.monotonic() < end:
            self._run_chain(self._folder / f"chain-{self.report.chains}", kills)
            self.report.chains += 1
            print(self.report, flush=True)
        return self.report

    def _run_chain(self, chain: Path, kills: int) -> None:
        count = None
        while True:
            count = self._random.choice([n for n in range(1, self._most + 1) if n != count])
            # One that has all rows is mostly left alone, as the next one would be killed there, too.
            complete = len(rows(chain / "labels.csv")) == len(self.expected)
            to_be_killed = self.report.kills < kills and (not complete or self._random.random() < 0.3)
            if self._start(chain, count, to_be_killed=to_be_killed):
                assert_same(rows(chain / "labels.csv"), self.expected)
                self.report.rows_compared += len(self.expected)
                return
            assert to_be_killed, "it did not reach its end, and nobody has killed it"

    def _start(self, chain: Path, count: int, *, to_be_killed: bool) -> bool:
        """Whether one start has reached the end."""
        # Half of the starts write a snapshot after every batch, so that some are killed while they do.
        often = {"snapshots": 10**6} if self._random.random() < 0.5 else {}
        changes = {rank: {"batch_seconds": _BATCH_SECONDS, **often} for rank in range(count)}
        before, out = rows(chain / "labels.csv"), chain / "labels.csv"
        self.report.starts += 1
        command = self._command(chain)
        with TorchrunProcesses(count, command, chain, timeout=self._timeout, changes=changes) as started:
            killed = self._kill(started, out, len(before)) if to_be_killed else []
            codes = self._ends(started, killed)
        made_again = re.search(r"had not learned from the last ([\d,]+) results", started.first.stderr)
        self.report.rows_made_again += int(made_again[1].replace(",", "")) if made_again else 0
        left = rows(out)
        assert_same(left, self.expected[: len(left)])
        if not killed:
            assert codes[0] in ENDED, started.first.stderr
            return True
        self.report.kills += 1
        self.report.by_processes[count] += 1
        self.report.before_the_first_row += not left
        self.report.after_the_last_row += len(left) == len(self.expected)
        self.report.all_killed += len(killed) == count
        self.report.one_killed += len(killed) < count
        return False

    def _kill(self, started: TorchrunProcesses, out: Path, before: int) -> list[int]:
        """Wait for a random instant and kill one process or all; none if they have ended by then."""
        draw, alive = self._random, started.first.alive
        left = len(self.expected) - before
        if draw.random() < 0.2 or not left:  # any instant: often while they start
            time.sleep(draw.uniform(0, self._seconds))
        else:  # while they classify
            wanted = before + draw.randint(1, left)
            while alive() and len(rows(out)) < wanted:
                time.sleep(0.005)
            time.sleep(draw.uniform(0, 0.2))
        count = len(started.processes)
        victims = list(range(count)) if draw.random() < 0.4 else [draw.randrange(count)]
        found = [rank for rank in victims if started.processes[rank].alive()]
        for rank in found:
            with suppress(ProcessLookupError):
                started.processes[rank].send(signal.SIGKILL)
        return found

    def _ends(self, started: TorchrunProcesses, killed: Sequence[int]) -> list[int]:
        """Exit codes; survivors must end by themselves, in time, with a reason."""
        begin = time.monotonic()
        codes = started.wait()
        spent = time.monotonic() - begin
        if killed:
            assert spent < self._timeout + _SLACK
        for rank, code in enumerate(codes):
            # Of those that were to be killed, some may have ended an instant earlier.
            if code in ENDED or (code == -signal.SIGKILL and rank in killed):
                continue
            said = started.processes[rank].stderr
            assert killed, said
            assert code == 1, (code, said)
            assert any(reason in said for reason in REASONS), said
            if rank not in killed:
                self.report.survivors += 1
                self.report.survivors_seconds = max(self.report.survivors_seconds, round(spent, 1))
        return codes


def main() -> None:
    """Run the full form, and write what has happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="No new chain after that.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        grid = KillGrid(Path(folder), arguments.seed)
        report = grid.run(arguments.kills, arguments.minutes)
    found = {"seed": arguments.seed, "files": len(grid.expected), "batch": BATCH, **report.as_dict()}
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
