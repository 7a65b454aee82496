"""How far runs are: a bar with the rate and the accuracies so far."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ramen.experiments.run.method_run import Run


class Bars:
    """A bar for the run under way."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    @contextmanager
    def show(self, run: Run) -> Iterator[Callable[[Run], None]]:
        """A bar for ``run``; the function takes it on."""
        first, start = run.done, time.perf_counter()
        name = f"{run.experiment.label or run.experiment.method} seed {run.experiment.seed}"
        task = self._progress.add_task(name, total=len(run.stream), completed=first, status="")

        def advance(run: Run) -> None:
            rate = (run.done - first) / (time.perf_counter() - start)
            now, before = (100 * hits / run.done for hits in (run.outcome.hits, run.outcome.zero_shot_hits))
            status = f"{rate:,.0f} images/s  accuracy {now:.1f} (zero-shot {before:.1f})"
            self._progress.update(task, completed=run.done, status=status)

        try:
            yield advance
        finally:
            self._progress.remove_task(task)
