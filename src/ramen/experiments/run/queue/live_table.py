"""All jobs of a queue in one table that is kept up to date; in lines, if nobody watches a terminal."""

import socket
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ramen.experiments.run.queue.status import (
    ELSEWHERE,
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    JobStatus,
)
from ramen.experiments.studies.study_result import duration

_ORDER = (RUNNING, ELSEWHERE, FAILED, STOPPED, WAITING, FINISHED)  # who is shown if not all can be
_STYLES = {RUNNING: "bold", FAILED: "red", FINISHED: "green", WAITING: "dim", ELSEWHERE: "yellow"}
_LINE_SECONDS = 30.0  # between two lines about one job
_OTHER_LINES = 6  # of a terminal: head, foot, and what stands below


class JobTable:
    """The jobs of a queue on a console, within a ``with`` block.

    Args:
        statuses: One per job; they change while the table is shown.
        console: A terminal, or something that keeps lines.
    """

    def __init__(self, statuses: Sequence[JobStatus], console: Console) -> None:
        self._statuses, self._console = statuses, console
        self._live = (
            Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            if console.is_terminal
            else None
        )
        self._told: dict[int, tuple[str, float]] = {}  # the last state and the time of the last line

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(job_table(self._statuses), refresh=True)
            self._live.stop()
        else:
            self._print_lines()

    def refresh(self) -> None:
        """Show what has changed."""
        if self._live is None:
            self._print_lines()
        else:
            room = max(3, self._console.height - _OTHER_LINES)
            self._live.update(job_table(self._statuses, room), refresh=True)

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def _print_lines(self) -> None:
        now = time.monotonic()
        for number, status in enumerate(self._statuses):
            state, when = self._told.get(number, (WAITING, now))
            if status.words == state and not (status.state == RUNNING and now - when >= _LINE_SECONDS):
                continue
            self._told[number] = status.words, now
            self.say(job_line(status))


def job_table(statuses: Sequence[JobStatus], room: int | None = None) -> Table:
    """A row per job, in their order.

    Args:
        statuses: The jobs.
        room: How many rows there may be; what cannot be shown is counted below.
    """
    shown = list(range(len(statuses)))
    if room is not None and len(shown) > room:
        shown = sorted(sorted(shown, key=lambda n: _ORDER.index(statuses[n].state))[:room])
    table = Table(box=None, pad_edge=False, show_footer=len(shown) < len(statuses))
    hidden = Counter(status.state for n, status in enumerate(statuses) if n not in set(shown))
    others = ", ".join(f"{hidden[state]} {state}" for state in _ORDER if hidden[state])
    table.add_column("run", footer=f"and {others}", overflow="fold")
    for head in ("images", "rate", "accuracy"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for number in shown:
        status = statuses[number]
        style = _STYLES.get(status.state, "")
        texts = (status.name, status.images, status.rate, status.accuracy, _state(status))
        table.add_row(*(Text(text) for text in texts), style=style)
    return table


def _state(status: JobStatus) -> str:
    if status.state == FINISHED and status.seconds is not None and not status.detail:
        return f"{FINISHED} in {duration(status.seconds)}"
    if status.state == RUNNING and status.process is not None and status.process.host != socket.gethostname():
        return f"{RUNNING} on {status.process.host}"
    return status.words


def job_line(status: JobStatus) -> str:
    """A job in one line."""
    accuracy = status.accuracy and f"accuracy {status.accuracy}"
    parts = (f"{status.name}: {_state(status)}", status.images, status.rate, accuracy)
    return "; ".join(part for part in parts if part)
