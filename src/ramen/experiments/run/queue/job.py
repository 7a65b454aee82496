"""Jobs: work that any process can do."""

import os
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from ramen.experiments.run.method_run import MethodRun
from ramen.experiments.run.queue.messages import JobAdvanced, JobEnd, JobMessage, JobSaid, JobStarted
from ramen.experiments.run.resources import Resources
from ramen.utils.atomic_files import make_folder
from ramen.utils.file_locks import LockedError

_SECONDS = 0.25  # between two reports of progress
_LOG_BYTES = 1 << 16  # of a log that travel to the command, whose disk may be another one

Send = Callable[[JobMessage], object]


class Job(ABC):
    """Work with a name, which can be pickled.

    Attributes:
        name: What the user sees.
        log: The file for what the job prints; it stays if the job fails.
        owner: The command that the job belongs to, by a name that no other command has.
    """

    name: str
    log: Path
    owner: str

    @abstractmethod
    def run(self, desk: "JobDesk") -> Any:
        """Do the work, in any process; the value can be pickled."""

    def deliver(self, value: Any) -> None:  # noqa: B027  # most have nothing to do
        """Take over a finished job's value, in the process of the queue."""

    def live_log(self) -> Path:
        """The log while the job runs: no other command writes to this file."""
        return self.log.with_name(f".{self.log.stem}.{self.owner}.log")


class JobDesk:
    """What a job finds in the process that runs it.

    Args:
        send: Takes messages for the queue.
        resources: What earlier jobs of the process have loaded.
    """

    def __init__(self, send: Send, resources: Resources) -> None:
        self.resources = resources
        self._send, self._last = send, 0.0

    def say(self, text: str) -> None:
        """Something that the user must know."""
        print(text, flush=True)  # into the log
        self._send(JobSaid(text))

    def report(self, step: str, done: int, total: int) -> None:
        """How far a step is, as studies report it."""
        self._advance(JobAdvanced(done, total, step))

    @contextmanager
    def show(self, run: MethodRun) -> Iterator[Callable[[MethodRun], None]]:
        """Report a run, batch after batch."""
        first, start, total = run.done, time.perf_counter(), len(run.stream)

        def update(run: MethodRun) -> None:
            rate = (run.done - first) / (time.perf_counter() - start)
            now, before = (100 * hits / run.done for hits in (run.outcome.hits, run.outcome.zero_shot_hits))
            self._advance(JobAdvanced(run.done, total, "", rate, now, before))

        yield update

    @contextmanager
    def count(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Report work that counts up to ``total``."""
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            self._advance(JobAdvanced(done, total, name))

        yield advance

    def _advance(self, message: JobAdvanced) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS or message.done == message.total:
            self._last = now
            self._send(message)


def perform(job: Job, send: Send, resources: Resources) -> JobEnd:
    """Run a job in this process, whose output goes to the job's log meanwhile."""
    log = job.live_log()
    try:
        make_folder(log.parent)
        with _output_to(log):
            send(JobStarted(os.getpid(), socket.gethostname()))
            end = _run(job, JobDesk(send, resources))
    except OSError as error:
        return JobEnd("failed", reason=describe_error(error))
    if end.state != "failed":
        log.unlink(missing_ok=True)
        return end
    return JobEnd("failed", reason=end.reason, log=_last_part(log))


def _run(job: Job, desk: JobDesk) -> JobEnd:
    try:
        return JobEnd("finished", job.run(desk))
    except KeyboardInterrupt:
        return JobEnd("stopped")
    except LockedError as error:
        return JobEnd("busy", reason=str(error))
    except Exception as error:  # whatever it is, it must not end the other jobs
        traceback.print_exc()
        return JobEnd("failed", reason=describe_error(error))


def describe_error(error: Exception) -> str:
    """An error in one line; the type says more than the text if it is not one of ours."""
    text = str(error).strip()
    if not text or not isinstance(error, ValueError | OSError):
        return f"{type(error).__name__}: {text}".rstrip(": ")
    return text


def _last_part(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Append standard output and standard error to a file, also those of libraries and of children."""
    _flush()
    before = [os.dup(number) for number in (1, 2)]
    with file.open("a", encoding="utf-8", errors="replace", buffering=1) as log:
        try:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            with redirect_stdout(log), redirect_stderr(log):
                yield
        finally:
            _flush()
            for number, earlier in zip((1, 2), before, strict=True):
                os.dup2(earlier, number)
                os.close(earlier)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
