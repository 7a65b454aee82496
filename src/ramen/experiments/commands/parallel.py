"""How commands run experiments: one after the other, in local processes, or on a Ray cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ramen.experiments.commands.options import ParallelOptions
    from ramen.experiments.plan.experiment import Experiment
    from ramen.experiments.run.queue.executor import JobExecutor

_LOG_LINES = 8  # of a failed run


def run_all(
    experiments: "Sequence[Experiment]", store: Path, parallel: "ParallelOptions"
) -> list[dict[str, Any]]:
    """The results of the experiments; a method that needs what the model does not have is skipped.

    Through a queue, runs that failed are in the list as ``{"kind": "failed", ...}``.
    """
    from rich.console import Console

    from ramen.experiments.run.execute import run_experiments

    console = Console(stderr=True)
    if not parallel.asked:
        return run_experiments(experiments, store, console=console, on_missing="skip")
    from ramen.experiments.run.queue.experiment_queue import run_queued

    with open_executor(parallel, experiments[0].device) as executor:
        return run_queued(experiments, store, executor, console=console, on_missing="skip")


def open_executor(parallel: "ParallelOptions", device: str) -> "JobExecutor":
    """What runs the jobs.

    Args:
        parallel: What the user asked for.
        device: Where the runs compute.
    """
    on_gpu = device.startswith("cuda")
    if parallel.ray is not None:
        from ramen.experiments.run.queue.ray_tasks import RayTasks

        asked = parallel.gpus_per_run
        return RayTasks(parallel.ray, gpus=float(on_gpu) if asked is None else asked)
    from ramen.experiments.run.queue.local_processes import LocalProcesses, usable_cores, visible_gpus

    gpus = visible_gpus() if device == "cuda" else []  # cuda:1 is a choice of its own
    count = parallel.jobs or len(gpus) or (1 if on_gpu else usable_cores())
    return LocalProcesses(count, gpus=gpus)


def exit_if_failed(results: "Sequence[dict[str, Any]]") -> None:
    """If runs have failed, report each with the last lines of its log, and exit with 1."""
    for one in failed(results):
        for line in failure_lines(one["name"], one["reason"], one["log"]):
            typer.echo(line, err=True)
    if failed(results):
        raise typer.Exit(1)


def failed(results: "Sequence[dict[str, Any]]") -> list[dict[str, Any]]:
    """The runs that failed, out of what ``run_all`` returned."""
    return [one for one in results if one["kind"] == "failed"]


def failure_lines(name: str, reason: str, log: Path | str | None) -> list[str]:
    """What failed and why, with the last lines of its log."""
    lines = [f"failed: {name}: {reason}"]
    if log is not None:
        lines += [f"  its log is {log}", *(f"  | {line}" for line in _last_lines(Path(log)))]
    return lines


def _last_lines(log: Path) -> list[str]:
    """The end of a log; nothing if it cannot be read."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
