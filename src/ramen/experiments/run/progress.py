"""Progress bars of runs, with the rate and the accuracies so far."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ramen.experiments.plan.experiment import Experiment
from ramen.experiments.run.method_run import MethodRun


class RunProgress(Protocol):
    """What shows how far runs are."""

    def show(self, run: MethodRun) -> AbstractContextManager[Callable[[MethodRun], None]]:
        """Show a run during the block; the function that it yields is called after each batch."""

    def count(self, name: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show work that counts up to ``total``; the function that it yields adds to the count."""


def run_name(experiment: Experiment) -> str:
    """What a run is called while it runs."""
    return f"{experiment.label or experiment.method} seed {experiment.seed}"


class Bars:
    """Progress bars on a console, within a ``with`` block.

    Args:
        console: Where they are shown.
        keep: Leave the bars of what is finished on the console.
    """

    def __init__(self, console: Console, *, keep: bool = False) -> None:
        self._keep = keep
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=not keep,
        )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    @contextmanager
    def show(self, run: MethodRun, name: str | None = None) -> Iterator[Callable[[MethodRun], None]]:
        """A bar for ``run``, with its rate and accuracies; the function that it yields updates the bar."""
        first, start = run.done, time.perf_counter()
        name = name or run_name(run.experiment)

        def update(run: MethodRun) -> None:
            rate = (run.done - first) / (time.perf_counter() - start)
            now, before = (100 * hits / run.done for hits in (run.outcome.hits, run.outcome.zero_shot_hits))
            status = f"{rate:,.0f} images/s  accuracy {now:.1f} (zero-shot {before:.1f})"
            self._progress.update(task, completed=run.done, status=status)

        with self._task(name, len(run.stream), first) as task:
            yield update

    @contextmanager
    def count(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar that counts up to ``total``; the function that it yields adds to the count."""
        with self._task(name, total) as task:
            yield lambda more: self._progress.advance(task, more)

    @contextmanager
    def _task(self, name: str, total: int, completed: int = 0) -> Iterator[TaskID]:
        task = self._progress.add_task(name, total=total, completed=completed, status="")
        try:
            yield task
        finally:
            if not self._keep:
                self._progress.remove_task(task)
