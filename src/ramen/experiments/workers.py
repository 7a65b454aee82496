"""Many runs, one after the other or at once: in processes of this machine, or as tasks of a Ray cluster.

The folder of results is the queue: who claims a run works on it, says in its lock file how far it is, and
leaves its result, its checkpoint or its log. Several commands on one folder share the work.
"""

import functools
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray
from rich.console import Console

from ramen.experiments import progress
from ramen.experiments.experiment import Experiment
from ramen.experiments.group import Team
from ramen.experiments.progress import Bars, LiveTable, Status
from ramen.experiments.run import CHECKPOINT_SECONDS, Loaded, Missing, Record, Watch, run
from ramen.experiments.store import Store
from ramen.utils import files
from ramen.utils.distributed import Group
from ramen.utils.pools import DiedError, Pool, describe_error, open_pool
from ramen.utils.signals import StoppedError, StopRequest, stop_on_signals

_TICK = 0.2  # seconds between two looks at signals and at the folder
_BUSY_SECONDS = 2.0  # until a run that another command has is tried again
_LOG_BYTES = 1 << 16  # of a log that travel to the command, whose disk may be another one


def run_all(
    plan: Sequence[Experiment],
    store: Store | Path | str,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    gpus: float | None = None,
    console: Console | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    on_missing: Missing = "raise",
    group: Group = None,
) -> list[Record]:
    """The results of experiments, in their order; each is written as soon as it is finished.

    Finished ones are read, interrupted ones resume. With ``jobs`` or ``ray`` many run at once; one that fails
    then does not end the others, and has ``{"kind": "failed", "experiment": ..., "name": ..., "reason": ...,
    "log": ...}`` in place of its result. A script that uses them must keep what it runs under
    ``if __name__ == "__main__":``, since each process is a fresh Python that imports the script.

    Args:
        plan: What to run.
        store: The folder of results.
        jobs: Run so many at once, each in a process with a GPU or its share of the cores; 0 for one per GPU
            or core. None for one after the other, in this process.
        ray: Run on a Ray cluster: its address, ``auto`` for this machine's, ``local`` to start one.
        gpus: With ``ray``: the GPUs of each run; by default 1 on ``cuda``.
        console: Where to show progress; standard error if None.
        checkpoint_seconds: How often a run is saved, in addition to each reset of its method.
        on_missing: What to do about a method that needs what the model does not have: raise, or return
            ``{"kind": "skipped", "experiment": ..., "reason": ...}`` in place of its result, without a file.
        group: Processes that run each experiment together, and all call this; the first one writes results
            and shows progress. The store is a folder that all of them see.
    """
    console = console or Console(stderr=True)
    store = store if isinstance(store, Store) else Store(store)
    if jobs is not None or ray is not None:
        with open_pool(jobs, ray, gpus, plan[0].device) as pool:
            return run_in(
                pool,
                plan,
                store,
                console=console,
                checkpoint_seconds=checkpoint_seconds,
                on_missing=on_missing,
            )
    team, loaded = Team(group), Loaded()
    with Bars(console if team.leads else Console(quiet=True)) as bars:
        return [
            run(e, store, loaded, watch=bars, seconds=checkpoint_seconds, on_missing=on_missing, team=team)
            for e in plan
        ]


# -- one run in its process -------------------------------------------------------------------------------


State = Literal["finished", "failed", "busy", "stopped"]


@dataclass(frozen=True)
class Ended:
    """How a run has ended for its process.

    Attributes:
        state: ``busy`` if another command has it: it may be tried again later.
        record: Of a finished one.
        answers: Likewise, to each image.
        reason: Why it is not finished.
        log: The last part of what a failed one printed.
        said: What the user must know of it.
        seconds: How long it took.
    """

    state: State
    record: Record = field(default_factory=dict)
    answers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    reason: str = ""
    log: str = ""
    said: tuple[str, ...] = ()
    seconds: float = 0.0


class _Printed(Watch):
    """Says what the user must know into the log, and remembers it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.said.append(text)


loaded_here = functools.cache(Loaded)  # what the runs of a process share


def logged_run(
    experiment: Experiment, store: Store, owner: str, checkpoint_seconds: float, on_missing: Missing
) -> Ended:
    """One run, in any process, whose output goes to the run's log meanwhile; it stays if the run fails."""
    watch, start = _Printed(), time.monotonic()
    record: Record = {}
    answers: Mapping[str, NDArray[Any]] = {}
    state: State = "finished"
    reason = text = ""
    try:
        experiment.load_method()  # its files have names only then
        log = store.log(experiment, owner)
        files.make_folder(log.parent)
        with output_to(log):
            try:
                record = run(
                    experiment,
                    store,
                    loaded_here(),
                    watch=watch,
                    seconds=checkpoint_seconds,
                    on_missing=on_missing,
                    owner=owner,
                )
                answers = store.answers(experiment)
            except KeyboardInterrupt:
                state = "stopped"
            except files.LockedError as error:
                state, reason = "busy", str(error)
            except Exception as error:  # whatever it is, it must not end the other runs
                traceback.print_exc()
                state, reason = "failed", describe_error(error)
        if state == "failed":
            text = _last_part(log)
        else:
            log.unlink(missing_ok=True)
    except (ValueError, OSError) as error:
        state, reason = "failed", describe_error(error)
    return Ended(state, record, answers, reason, text, tuple(watch.said), time.monotonic() - start)


def _last_part(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


@contextmanager
def output_to(file: Path) -> Iterator[None]:
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


# -- many runs --------------------------------------------------------------------------------------------


def run_in(
    pool: Pool,
    plan: Sequence[Experiment],
    store: Store,
    *,
    console: Console,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    on_missing: Missing = "raise",
) -> list[Record]:
    """As ``run_all``, in the processes of a pool.

    Ctrl-C and SIGTERM ask all runs to stop, and StoppedError is raised when they have; a second one ends them
    at once.
    """
    unique = {e.key(): e for e in plan}
    loaded = Loaded()
    found = {key: _finished(e, store, loaded) for key, e in unique.items()}
    owner = secrets.token_hex(4)  # of all claims of this command
    jobs = [_Job(e, Status(e.name)) for key, e in unique.items() if found[key] is None]
    with LiveTable([job.status for job in jobs], console) as table:

        def announce() -> None:
            table.print("Stopping after the current batches; once more to stop at once.")

        def submit(job: _Job) -> Future[Ended]:
            return pool.submit(logged_run, job.experiment, store, owner, checkpoint_seconds, on_missing)

        with stop_on_signals(announce) as request:
            _Runs(jobs, pool, store, owner, table).finish(submit, request)
    done = {job.experiment.key(): job.record for job in jobs}
    return [found[e.key()] or done[e.key()] or {} for e in plan]


def _finished(experiment: Experiment, store: Store, loaded: Loaded) -> Record | None:
    """The result of an earlier command; a file that is not this result is a failure."""
    try:
        return store.result(experiment, loaded.stream)
    except (ValueError, OSError) as error:
        return _failure(experiment, str(error), None)


def _failure(experiment: Experiment, reason: str, log: Path | None) -> Record:
    return {
        "kind": "failed",
        "experiment": experiment.identity(),
        "name": experiment.name,
        "reason": reason,
        "log": None if log is None else str(log),
    }


@dataclass
class _Job:
    experiment: Experiment
    status: Status
    record: Record | None = None
    future: Future[Ended] | None = None
    deaths: int = 0
    not_before: float = 0.0  # as time.monotonic counts


class _Runs:
    """The runs of one command, until each is finished or has failed."""

    def __init__(self, jobs: list[_Job], pool: Pool, store: Store, owner: str, table: LiveTable) -> None:
        self._jobs, self._pool, self._store, self._owner, self._table = jobs, pool, store, owner, table
        self._stopping = False

    def finish(self, submit: Callable[[_Job], Future[Ended]], request: StopRequest) -> None:
        if self._jobs and self._pool.notice:
            self._table.print(self._pool.notice)
        while left := [job for job in self._jobs if not job.status.over]:
            if request.requested and not self._stopping:
                self._stop()
            now = time.monotonic()
            for job in left:
                if not self._stopping and job.future is None and job.not_before <= now:
                    job.future = submit(job)
            running = {job.future: job for job in left if job.future is not None}
            if running:
                ended, _ = wait(running, _TICK, FIRST_COMPLETED)
                for future in ended:
                    self._ended(running[future], future)
            else:
                time.sleep(0 if self._stopping else _TICK)
            self._look()
        if self._stopping:
            raise StoppedError(request.exit_code)

    def _look(self) -> None:
        """Read in the folder how far runs are."""
        for job in self._jobs:
            if job.future is not None and job.future.running():
                holder = self._store.holder(job.experiment)
                if holder.get("owner") == self._owner:
                    job.status.runs(holder["host"], holder["progress"])
        self._table.refresh()

    def _stop(self) -> None:
        self._stopping = True
        for job in self._jobs:
            if not job.status.over and (job.future is None or job.future.cancel()):
                self._stopped(job)
        self._pool.stop()

    def _ended(self, job: _Job, future: Future[Ended]) -> None:
        job.future = None
        try:
            end = future.result()
        except DiedError as error:
            job.deaths += 1
            if job.deaths <= self._pool.retries and not self._stopping:
                job.status.is_now(progress.WAITING, f"again, since {error}")
                self._table.print(f"{job.experiment.name}: {error}; it is started again")
                return
            end = Ended("failed", reason=f"{error}; the same command resumes it")
        except Exception as error:
            end = Ended("failed", reason=describe_error(error))
        for text in end.said:
            self._table.say(text)
        if end.state == "finished":
            if end.record["kind"] == "run" and not self._store.path(job.experiment).exists():
                # it ran on a machine with another disk
                self._store.write(job.experiment, end.record, end.answers)
            self._store.log(job.experiment).unlink(missing_ok=True)  # of an earlier attempt
            job.record = end.record
            job.status.is_now(progress.FINISHED, seconds=end.seconds)
        elif self._stopping:
            self._stopped(job)
        elif end.state == "busy":
            job.not_before = time.monotonic() + _BUSY_SECONDS
            job.status.is_now(progress.ELSEWHERE, end.reason)
        elif end.state == "stopped":  # by somebody else than this command
            self._fail(job, "it was interrupted; the same command resumes it", end.log)
        else:
            self._fail(job, end.reason, end.log)

    def _fail(self, job: _Job, reason: str, text: str) -> None:
        """The log takes its lasting name; it may have been written on the disk of another machine."""
        live, log = (self._store.log(job.experiment, owner) for owner in (self._owner, None))
        if live.exists():
            live.replace(log)
        else:
            files.write_text(log, text)
        job.record = _failure(job.experiment, reason, log)
        job.status.is_now(progress.FAILED, reason)

    def _stopped(self, job: _Job) -> None:
        job.status.is_now(progress.STOPPED)
        self._store.log(job.experiment, self._owner).unlink(missing_ok=True)
