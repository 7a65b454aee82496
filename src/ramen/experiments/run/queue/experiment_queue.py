"""Experiments as jobs of a queue: the same results in the same files as one after the other."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.run.execute import ExperimentRunner, Missing
from ramen.experiments.run.finished import finished_result
from ramen.experiments.run.progress import run_name
from ramen.experiments.run.queue.executor import JobExecutor
from ramen.experiments.run.queue.job import Job, JobDesk
from ramen.experiments.run.queue.messages import JobEnd
from ramen.experiments.run.queue.scheduler import run_jobs
from ramen.experiments.run.resources import Resources
from ramen.experiments.run.results import write_result


@dataclass
class ExperimentJob(Job):
    """One experiment.

    Attributes:
        experiment: What to run.
        out: Folder of results. If all machines share it, a run that one of them lost resumes on another.
        owner: The command's own name.
        checkpoint_seconds: How often the run is saved.
        on_missing: As ``run_experiments`` takes it.
    """

    experiment: Experiment
    out: Path
    owner: str
    checkpoint_seconds: float = 120.0
    on_missing: Missing = "raise"
    name: str = field(init=False)
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        """Name it as its progress bar would be."""
        self.name = run_name(self.experiment)
        self.log = self.experiment.path(self.out).with_suffix(".log")

    def run(self, desk: JobDesk) -> dict[str, Any]:
        """The result, from its file or from a run."""
        runner = ExperimentRunner(
            self.out, desk.say, desk, self.checkpoint_seconds, resources=desk.resources, owner=self.owner
        )
        return runner.result_or_reason(self.experiment, self.on_missing)

    def deliver(self, value: dict[str, Any]) -> None:
        """Write the result if a machine with another disk has run the experiment."""
        path = self.experiment.path(self.out)
        if value["kind"] == "run" and not path.exists():
            write_result(path, value)


def run_queued(
    experiments: Sequence[Experiment],
    out: Path,
    executor: JobExecutor,
    *,
    console: Console | None = None,
    checkpoint_seconds: float = 120.0,
    on_missing: Missing = "raise",
) -> list[dict[str, Any]]:
    """As ``run_experiments``, but many at once, and a run that fails does not end the others.

    Args:
        experiments: What to run. Those whose result is in ``out`` are read, not repeated; for those that
            another command runs at this moment, its result is awaited.
        out: Folder of results.
        executor: What runs them.
        console: Where to show progress; standard error if None.
        checkpoint_seconds: How often a run is saved, in addition to each reset of its method.
        on_missing: What to do about a method that needs what the model does not have: let its run fail, or
            return ``{"kind": "skipped", ...}`` in place of its result.

    Returns:
        The results in the order of the experiments. In place of one that failed there is
        ``{"kind": "failed", "experiment": ..., "reason": ..., "log": ...}``.
    """
    console, owner, out = console or Console(stderr=True), secrets.token_hex(4), Path(out).resolve()
    unique = {one.key(): one for one in experiments}
    resources = Resources()
    found = {key: _finished(one, out, resources) for key, one in unique.items()}
    left = [unique[key] for key, result in found.items() if result is None]
    jobs = [ExperimentJob(one, out, owner, checkpoint_seconds, on_missing) for one in left]
    ends = run_jobs(jobs, executor, console)
    found |= {job.experiment.key(): _result(job, end) for job, end in zip(jobs, ends, strict=True)}
    return [found[one.key()] or {} for one in experiments]


def _finished(experiment: Experiment, out: Path, resources: Resources) -> dict[str, Any] | None:
    """The result of an earlier command; a file that is not this result is a failure."""
    try:
        return finished_result(experiment, experiment.path(out), resources)
    except (ValueError, OSError) as error:
        return _failure(experiment, str(error), None)


def _result(job: ExperimentJob, end: JobEnd) -> dict[str, Any]:
    if end.state == "finished":
        return dict(end.value)
    return _failure(job.experiment, end.reason, job.log)


def _failure(experiment: Experiment, reason: str, log: Path | None) -> dict[str, Any]:
    return {
        "kind": "failed",
        "experiment": experiment.identity(),
        "name": run_name(experiment),
        "reason": reason,
        "log": None if log is None else str(log),
    }
