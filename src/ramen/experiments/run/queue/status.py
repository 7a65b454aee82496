"""How far each job of a queue is."""

import time
from dataclasses import dataclass, field

from ramen.experiments.run.queue.messages import JobAdvanced, JobStarted

WAITING, RUNNING, ELSEWHERE = "waiting", "running", "running elsewhere"
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"


@dataclass
class JobStatus:
    """What is known about a job.

    Attributes:
        name: The job's.
        state: One of this module's constants.
        detail: A few words about the state.
        process: Which process runs it.
        advanced: Its last report.
        started: When it was started for the last time, as ``time.monotonic`` counts.
        seconds: How long it took.
    """

    name: str
    state: str = WAITING
    detail: str = ""
    process: JobStarted | None = None
    advanced: JobAdvanced | None = None
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None

    def begin(self, process: JobStarted) -> None:
        """A process has begun with it."""
        self.state, self.detail, self.process, self.started = RUNNING, "", process, time.monotonic()

    def end(self, state: str, detail: str = "") -> None:
        """No process works on it any longer."""
        self.state, self.detail, self.seconds = state, detail, time.monotonic() - self.started

    @property
    def images(self) -> str:
        """How much is done, in words."""
        if self.advanced is None:
            return ""
        counts = f"{self.advanced.done:,} of {self.advanced.total:,}"
        return f"{self.advanced.step}: {counts}" if self.advanced.step else counts

    @property
    def rate(self) -> str:
        """Images per second, in words."""
        if self.advanced is None or self.advanced.rate is None or self.state == FAILED:
            return ""
        return f"{self.advanced.rate:,.0f} images/s"

    @property
    def accuracy(self) -> str:
        """The accuracy so far, beside that of zero-shot, in words."""
        if self.advanced is None or self.advanced.accuracy is None:
            return ""
        return f"{self.advanced.accuracy:.1f} (zero-shot {self.advanced.zero_shot:.1f})"

    @property
    def words(self) -> str:
        """The state with its detail."""
        return f"{self.state}: {self.detail}" if self.detail else self.state
