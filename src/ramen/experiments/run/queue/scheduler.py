"""The queue: jobs go to an executor until all are finished, have failed, or somebody stops them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from ramen.experiments.run.queue import status
from ramen.experiments.run.queue.executor import JobExecutor
from ramen.experiments.run.queue.job import Job
from ramen.experiments.run.queue.live_table import JobTable
from ramen.experiments.run.queue.messages import (
    JobAdvanced,
    JobDied,
    JobEnd,
    JobMessage,
    JobSaid,
    JobStarted,
)
from ramen.experiments.run.queue.status import JobStatus
from ramen.utils.atomic_files import write_text
from ramen.utils.stopping import StoppedError, StopRequest, stop_on_signals

_TICK = 0.2  # seconds between two looks at signals and messages
_BUSY_SECONDS = 2.0  # until work that another command does is tried again


def run_jobs(jobs: Sequence[Job], executor: JobExecutor, console: Console) -> list[JobEnd]:
    """Run jobs until each is finished or has failed; their ends, in their order.

    Ctrl-C and SIGTERM ask all of them to stop, and StoppedError is raised when they have; a second one ends
    them at once.

    Args:
        jobs: What to run.
        executor: What runs it.
        console: Where to show progress.
    """
    statuses = [JobStatus(job.name) for job in jobs]
    with JobTable(statuses, console) as table:
        queue = _Queue([_Entry(job, one) for job, one in zip(jobs, statuses, strict=True)], executor, table)

        def announce() -> None:
            table.say("Stopping after the current batches; once more to stop at once.")

        with stop_on_signals(announce) as request:
            return queue.run(request)


@dataclass
class _Entry:
    """A job in the queue."""

    job: Job
    status: JobStatus
    end: JobEnd | None = None
    is_submitted: bool = False
    deaths: int = 0
    not_before: float = 0.0  # as time.monotonic counts


class _Queue:
    def __init__(self, entries: list[_Entry], executor: JobExecutor, table: JobTable) -> None:
        self._entries, self._executor, self._table = entries, executor, table
        self._stopping = False
        self._said: set[str] = set()  # settings that several runs share are shown once

    def run(self, request: StopRequest) -> list[JobEnd]:
        while any(entry.end is None for entry in self._entries):
            if request.requested and not self._stopping:
                self._stop()
            if not self._stopping:
                self._submit()
            for number, message in self._executor.wait(_TICK):
                self._receive(self._entries[number], message)
            self._table.refresh()
        if self._stopping:
            raise StoppedError(request.exit_code)
        return [entry.end for entry in self._entries if entry.end is not None]

    def _submit(self) -> None:
        now = time.monotonic()
        for number, entry in enumerate(self._entries):
            if entry.end is None and not entry.is_submitted and entry.not_before <= now:
                if not self._executor.has_room():
                    return
                entry.is_submitted = True
                self._executor.submit(number, entry.job)

    def _stop(self) -> None:
        self._stopping = True
        self._executor.stop()
        for entry in self._entries:
            if entry.end is None and not entry.is_submitted:
                self._finish(entry, JobEnd("stopped"))

    def _receive(self, entry: _Entry, message: JobMessage) -> None:
        if isinstance(message, JobSaid):
            if message.text not in self._said:
                self._said.add(message.text)
                self._table.say(message.text)
        elif isinstance(message, JobEnd):
            self._ended(entry, message)
        elif isinstance(message, JobDied):
            self._died(entry, message)
        elif entry.is_submitted:  # a report may arrive late
            self._advance(entry.status, message)

    def _advance(self, one: JobStatus, message: JobStarted | JobAdvanced) -> None:
        if isinstance(message, JobAdvanced):
            one.advanced = message
            if one.state == status.ELSEWHERE and one.process is not None:
                one.begin(one.process)
        elif one.state == status.ELSEWHERE:  # this attempt may be in vain, too
            one.process = message
        else:
            one.begin(message)

    def _ended(self, entry: _Entry, end: JobEnd) -> None:
        entry.is_submitted = False
        if self._stopping and end.state != "finished":
            self._finish(entry, JobEnd("stopped"))
        elif end.state == "busy":
            entry.not_before = time.monotonic() + _BUSY_SECONDS
            entry.status.end(status.ELSEWHERE, end.reason)
        elif end.state == "stopped":  # by somebody else than this queue
            self._fail(entry, "it was interrupted; the same command resumes it", end.log)
        elif end.state == "failed":
            self._fail(entry, end.reason, end.log)
        else:
            entry.job.deliver(end.value)
            entry.job.log.unlink(missing_ok=True)  # of an earlier attempt
            self._finish(entry, end)

    def _died(self, entry: _Entry, died: JobDied) -> None:
        entry.is_submitted = False
        entry.deaths += 1
        if self._stopping:
            self._finish(entry, JobEnd("stopped"))
        elif entry.deaths <= self._executor.retries:
            entry.status.end(status.WAITING, f"again, since {died.reason}")
            self._table.say(f"{entry.job.name}: {died.reason}; it is started again")
        else:
            self._fail(entry, f"{died.reason}; the same command resumes it", "")

    def _fail(self, entry: _Entry, reason: str, log: str) -> None:
        """The log takes its lasting name; it may have been written on the disk of another machine."""
        live = entry.job.live_log()
        if live.exists():
            live.replace(entry.job.log)
        else:
            write_text(entry.job.log, log)
        self._finish(entry, JobEnd("failed", reason=reason, log=log))

    def _finish(self, entry: _Entry, end: JobEnd) -> None:
        entry.end = end
        entry.status.end(end.state, end.reason)
        if end.state == "stopped":
            entry.job.live_log().unlink(missing_ok=True)
