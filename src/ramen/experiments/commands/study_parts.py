"""Studies in parts, each of them a job of the queue: one column or row of the table with one seed."""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramen.experiments.commands import study_runs
from ramen.experiments.commands.parallel import failure_lines, open_executor
from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.run.queue.job import Job, JobDesk
from ramen.experiments.run.queue.scheduler import run_jobs

if TYPE_CHECKING:
    from rich.console import Console

    from ramen.experiments.commands.options import ParallelOptions

_PARTS: Mapping[str, Callable[..., Any]] = {
    "harm": study_runs.harm_part,
    "poison": study_runs.poison_part,
    "combinations": study_runs.combinations_part,
}


class FailedPartsError(RuntimeError):
    """A study lacks some of its parts."""


@dataclass
class StudyPartJob(Job):
    """A part of a study.

    Attributes:
        study: The study's name.
        planned: As ``run_study`` takes them.
        own: The study's own options.
        part: A column or row, and a seed or the number of a stream.
        folder: Where the log of a failure is kept.
        owner: The command's own name.
    """

    study: str
    planned: list[Experiment]
    own: Mapping[str, Any]
    part: tuple[str, int]
    folder: Path
    owner: str
    name: str = field(init=False)
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        """Name it by its row and seed."""
        label, number = self.part
        seed = number if self.study == "harm" else self.planned[0].seed + number
        self.name = f"{label} seed {seed}"
        plain = re.sub(r"\W+", "-", label).strip("-").lower()
        self.log = self.folder / f"{self.study}-{self.planned[0].data}-{plain}-seed{seed}.log"

    def run(self, desk: JobDesk) -> Any:
        """What the study needs of this part."""
        return _PARTS[self.study](desk.resources, self.planned, self.own, self.part, desk.report)


def divided(
    study: str,
    planned: list[Experiment],
    own: Mapping[str, Any],
    folder: Path,
    parallel: "ParallelOptions",
    console: "Console",
) -> Callable[[Sequence[tuple[str, int]]], list[Any]]:
    """A function that runs the parts of a study in a queue and returns what they found, in their order."""

    def divide(parts: Sequence[tuple[str, int]]) -> list[Any]:
        owner = secrets.token_hex(4)
        jobs = [StudyPartJob(study, planned, own, part, folder.resolve(), owner) for part in parts]
        with open_executor(parallel, planned[0].device) as executor:
            ends = run_jobs(jobs, executor, console)
        lines = [
            line
            for job, end in zip(jobs, ends, strict=True)
            if end.state == "failed"
            for line in failure_lines(job.name, end.reason, job.log)
        ]
        if lines:
            raise FailedPartsError("\n".join(["the study lacks some of its parts", *lines]))
        return [end.value for end in ends]

    return divide
