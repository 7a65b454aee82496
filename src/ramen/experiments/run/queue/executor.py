"""What runs the jobs of a queue."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from ramen.experiments.run.queue.job import Job
from ramen.experiments.run.queue.messages import JobMessage


class JobExecutor(ABC):
    """Processes that run jobs, within a ``with`` block; none of them outlives it.

    Attributes:
        retries: How often a job is started again if its process dies.
    """

    retries = 0

    @abstractmethod
    def has_room(self) -> bool:
        """Whether another job can be submitted now."""

    @abstractmethod
    def submit(self, number: int, job: Job) -> None:
        """Start a job; its messages carry the number."""

    @abstractmethod
    def wait(self, seconds: float) -> list[tuple[int, JobMessage]]:
        """New messages, in the order of each job; returns after so many seconds if there are none.

        The last message of every job is a ``JobEnd`` or ``JobDied``.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ask all jobs to stop as soon as they have saved what they did."""

    @abstractmethod
    def close(self) -> None:
        """End all processes at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
