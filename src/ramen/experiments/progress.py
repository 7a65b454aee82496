"""What a user sees of runs: bars of one after the other, or a live table of many."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from ramen.experiments.render import duration
from ramen.experiments.run import Watch
from ramen.experiments.store import Progress

WAITING, RUNNING, ELSEWHERE = "waiting", "running", "running elsewhere"
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
_ORDER = (RUNNING, ELSEWHERE, FAILED, STOPPED, WAITING, FINISHED)  # who is shown if not all can be
_STYLES = {RUNNING: "bold", FAILED: "red", FINISHED: "green", WAITING: "dim", ELSEWHERE: "yellow"}
_LINE_SECONDS = 30.0  # between two lines about one run
_OTHER_LINES = 6  # of a terminal: head, foot, and what stands below


class _Lines(Watch):
    def __init__(self, console: Console) -> None:
        self._console, self._said = console, set[str]()

    def print(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def say(self, text: str) -> None:
        """Print a line, unless it was printed before: settings that several runs share come with each."""
        if text not in self._said:
            self._said.add(text)
            self.print(text)


class Bars(_Lines):
    """Progress bars on a console, within a ``with`` block.

    Args:
        console: Where they are shown.
        keep: Leave the bars of what is finished on the console.
    """

    def __init__(self, console: Console, *, keep: bool = False) -> None:
        super().__init__(console)
        self._keep = keep
        self._tasks: dict[str, TaskID] = {}
        self._progress = RichProgress(
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

    def show(self, name: str, progress: Progress) -> None:
        """Update the bar of a run, or of a step before it."""
        name = progress.step or name
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=progress.total, status="")
        status = "  ".join(filter(None, (_rate(progress), _accuracy(progress, "accuracy "))))
        self._progress.update(self._tasks[name], completed=progress.done, status=status)
        if progress.done == progress.total:
            task = self._tasks.pop(name)
            if not self._keep:
                self._progress.remove_task(task)


def _rate(progress: Progress | None) -> str:
    return "" if progress is None or progress.rate is None else f"{progress.rate:,.0f} images/s"


def _accuracy(progress: Progress | None, what: str = "") -> str:
    if progress is None or progress.accuracy is None:
        return ""
    return f"{what}{progress.accuracy:.1f} (zero-shot {progress.zero_shot:.1f})"


@dataclass
class Status:
    """What is known about one of many runs.

    Attributes:
        name: The run's.
        state: One of this module's constants.
        detail: A few words about the state.
        host: Where it runs.
        progress: How far it is.
        seconds: How long it took.
    """

    name: str
    state: str = WAITING
    detail: str = ""
    host: str | None = None
    progress: Progress | None = None
    seconds: float | None = None

    def runs(self, host: str, progress: Progress | None) -> None:
        """A process works on it."""
        self.state, self.detail, self.host = RUNNING, "", host
        self.progress = progress or self.progress

    def is_now(self, state: str, detail: str = "", seconds: float | None = None) -> None:
        """No process works on it any longer."""
        self.state, self.detail, self.seconds = state, detail, seconds

    @property
    def over(self) -> bool:
        """Whether nothing more will be done about it."""
        return self.state in (FINISHED, FAILED, STOPPED)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Images, rate, accuracy and state, in words."""
        now = self.progress
        images = "" if now is None else f"{now.done:,} of {now.total:,}"
        if now is not None and now.step:
            images = f"{now.step}: {images}"
        rate = "" if self.state == FAILED else _rate(now)
        words = f"{self.state}: {self.detail}" if self.detail else self.state
        if self.state == FINISHED and self.seconds is not None:
            words = f"{FINISHED} in {duration(self.seconds)}"
        elif self.state == RUNNING and self.host != socket.gethostname():
            words = f"{RUNNING} on {self.host}"
        return images, rate, _accuracy(now), words

    @property
    def line(self) -> str:
        """All of it in one line."""
        images, rate, accuracy, words = self.cells
        parts = (f"{self.name}: {words}", images, rate, accuracy and f"accuracy {accuracy}")
        return "; ".join(part for part in parts if part)


class LiveTable(_Lines):
    """Many runs in one table that is kept up to date, within a ``with`` block; in lines without a terminal.

    Args:
        statuses: One per run; they change while the table is shown.
        console: A terminal, or something that keeps lines.
        clock: What tells the time.
    """

    def __init__(
        self, statuses: Sequence[Status], console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console)
        self._statuses, self._clock = statuses, clock
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

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(table_of(self._statuses), refresh=True)
            self._live.stop()
        else:
            self._print_lines()

    def refresh(self) -> None:
        """Show what has changed."""
        if self._live is None:
            self._print_lines()
        else:
            room = max(3, self._console.height - _OTHER_LINES)
            self._live.update(table_of(self._statuses, room), refresh=True)

    def _print_lines(self) -> None:
        now = self._clock()
        for number, status in enumerate(self._statuses):
            words = f"{status.state}: {status.detail}"
            told, when = self._told.get(number, (f"{WAITING}: ", now))
            if words != told or (status.state == RUNNING and now - when >= _LINE_SECONDS):
                self._told[number] = words, now
                self.print(status.line)


def table_of(statuses: Sequence[Status], room: int | None = None) -> Table:
    """A row per run, in their order.

    Args:
        statuses: The runs.
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
        table.add_row(*(Text(text) for text in (status.name, *status.cells)), style=style)
    return table
