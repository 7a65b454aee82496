"""Runs the tests marked ``interpreted`` where Triton interprets its programs: on the CPU, in other processes.

Triton decides whether to interpret programs when it is imported, so these tests cannot run in the process
that collected them. A second pytest runs them, and each is reported here with its own outcome. Without
pytest-xdist there is one such process, for exactly the tests that are selected. The workers of pytest-xdist
divide the tests among two, and whoever needs a report starts the next process that nobody has started.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

_REPORT_PATH = "RAMEN_INTERPRETED_REPORTS"  # environment variable: where the second pytest writes its reports
MOST_PROCESSES = 2


@dataclass
class Outcome:
    """How one test ended: "passed", "skipped" or "failed", with the text of its report."""

    outcome: str
    text: str = ""

    def apply(self) -> None:
        """End the calling test in the same way."""
        if self.outcome == "skipped":
            pytest.skip(self.text)
        if self.outcome != "passed":
            pytest.fail(self.text, pytrace=False)


def is_interpreting() -> bool:
    """Whether Triton interprets programs in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def workers() -> int:
    """How many processes this test run uses."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


class InterpretedTests:
    """The outcomes of all interpreted tests of a run.

    Args:
        names: Their node ids.
        root: Where pytest finds them.
        folder: Shared by all workers of this run, and by nobody else.
        processes: How many may run them at most.
    """

    def __init__(self, names: list[str], root: Path, folder: Path, processes: int) -> None:
        self.root = root
        self.folder = folder
        # every second test: neighbours take about as long, so that both processes do
        self.batches = [names[start::processes] for start in range(processes)]
        self._outcomes: dict[int, dict[str, dict[str, str]]] = {}

    def outcome(self, name: str) -> Outcome:
        """How the test of that name ended; runs tests, or waits for another worker that does."""
        own = next(number for number, batch in enumerate(self.batches) if name in batch)
        in_order = sorted(range(len(self.batches)), key=lambda number: number != own)
        while not self._result(own).exists():
            if not any(self._run_if_free(number) for number in in_order):
                time.sleep(0.1)
        if own not in self._outcomes:
            self._outcomes[own] = json.loads(self._result(own).read_text())
        return Outcome(**self._outcomes[own][name])

    def _result(self, number: int) -> Path:
        return self.folder / f"interpreted-{number}.json"

    def _run_if_free(self, number: int) -> bool:
        """Run a batch, unless somebody has done so or is doing so; the lock ends with its process."""
        with open(self.folder / f"interpreted-{number}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self._result(number).exists():
                return False
            outcomes = self._run(number)
            complete = self._result(number).with_suffix(".complete")
            complete.write_text(json.dumps({name: asdict(outcome) for name, outcome in outcomes.items()}))
            complete.rename(self._result(number))
            return True

    def _run(self, number: int) -> dict[str, Outcome]:
        reports = self.folder / f"reports-{number}.jsonl"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", _REPORT_PATH: str(reports)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.batches[number]]
        ran = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        missing = f"the interpreter ended before this test, with exit status {ran.returncode}:\n"
        missing += ran.stdout[-5000:] + ran.stderr[-5000:]
        outcomes = {name: Outcome("failed", missing) for name in self.batches[number]}
        lines = reports.read_text().splitlines() if reports.exists() else []
        for report in map(json.loads, lines):
            outcomes[report["name"]] = Outcome(report["outcome"], report["text"])
        return outcomes


def write_report(report: pytest.TestReport) -> None:
    """In the second pytest: say how a test ended, as soon as it has."""
    path = os.environ.get(_REPORT_PATH)
    if path is None or (report.when != "call" and report.passed):
        return
    text = report.longreprtext + "".join(f"\n{title}:\n{content}" for title, content in report.sections)
    with open(path, "a") as file:
        file.write(json.dumps({"name": report.nodeid, "outcome": report.outcome, "text": text}) + "\n")
