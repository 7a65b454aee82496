"""The progress of ``ramen classify``: rate, share of labels that adaptation changed, errors."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ramen.serve.outputs.label_file import Tally
from ramen.serve.result import Result


class ClassifyBar:
    """A bar on a console; ``shown_on`` makes one.

    Args:
        progress: Where it is shown.
        task: Which bar it is.
    """

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self._start, self._tally = time.perf_counter(), Tally()

    def add(self, batch: Sequence[Result]) -> None:
        """Count the results of a batch."""
        for result in batch:
            self._tally.add(result)
        seconds = time.perf_counter() - self._start
        self._progress.update(self._task, advance=len(batch), status=status(self._tally, seconds))


def status(tally: Tally, seconds: float) -> str:
    """Rate, share of changed labels, and errors if there are any.

    >>> status(Tally(files=50, errors=2, changed=12), 4.0)
    '12.5 images/s  25.0 % changed  2 errors'
    """
    rate = tally.files / max(seconds, 1e-9)
    words = [f"{rate:,.1f} images/s" if rate < 100 else f"{rate:,.0f} images/s"]
    if tally.answers:
        words.append(f"{tally.changed / tally.answers:.1%} changed".replace("%", " %"))
    if tally.errors:
        words.append(f"{tally.errors:,} error{'s'[: tally.errors != 1]}")
    return "  ".join(words)


@contextmanager
def shown_on(console: Console, total: int | None) -> Iterator[ClassifyBar]:
    """A bar for ``total`` files, or one without an end.

    Args:
        console: Where to show it.
        total: How many files there are; None if more may come.
    """
    first = [SpinnerColumn(), TextColumn("following")] if total is None else [TextColumn("classifying")]
    last = [] if total is None else [TimeRemainingColumn()]
    with Progress(
        *first,
        *([] if total is None else [BarColumn(bar_width=20)]),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        *last,
        console=console,
    ) as progress:
        yield ClassifyBar(progress, progress.add_task("", total=total, status=""))
