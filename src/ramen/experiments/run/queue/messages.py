"""What a job reports to the queue, from whatever process it runs in."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class JobStarted:
    """A process has begun with the job."""

    process: int
    host: str


@dataclass(frozen=True)
class JobSaid:
    """Something that the user must know."""

    text: str


@dataclass(frozen=True)
class JobAdvanced:
    """How far a job is.

    Attributes:
        done: Images, or another count.
        total: How many there are.
        step: What is counted, if it is not the images of the stream.
        rate: Images per second.
        accuracy: Of the images so far, in percent.
        zero_shot: That of the classifier without adaptation.
    """

    done: int
    total: int
    step: str = ""
    rate: float | None = None
    accuracy: float | None = None
    zero_shot: float | None = None


@dataclass(frozen=True)
class JobEnd:
    """A job is over for its process.

    Attributes:
        state: ``busy`` if another command does the same work: it may be tried again later.
        value: What a finished job returned.
        reason: Why it is not finished.
        log: The last part of what a failed job printed.
    """

    state: Literal["finished", "failed", "busy", "stopped"]
    value: Any = None
    reason: str = ""
    log: str = ""


@dataclass(frozen=True)
class JobDied:
    """The process of a job, or its machine, is gone."""

    reason: str


JobMessage = JobStarted | JobSaid | JobAdvanced | JobEnd | JobDied
