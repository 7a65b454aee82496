"""Jobs in processes of this machine: one per GPU, or with its share of the cores."""

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import torch

from ramen.experiments.run.queue.executor import JobExecutor
from ramen.experiments.run.queue.job import Job, perform
from ramen.experiments.run.queue.messages import JobDied, JobEnd, JobMessage
from ramen.experiments.run.resources import Resources
from ramen.utils import checks
from ramen.utils.worker_processes import end_with_parent

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalProcesses(JobExecutor):
    """Processes that run one job after the other; one that dies is replaced.

    They are spawned, not forked: a copy of a process that uses a GPU or threads would hang. Each keeps the
    model and the data of its last job for the next one.

    Args:
        count: How many jobs run at once.
        gpus: The GPUs by their numbers or names; each process sees one of them, as ``cuda``. With fewer GPUs
            than processes, several share one.
        threads: Of each process; by default this process's threads are divided among them.
        context: How to start processes.
    """

    def __init__(
        self,
        count: int,
        *,
        gpus: Sequence[str] = (),
        threads: int | None = None,
        context: BaseContext | None = None,
    ) -> None:
        self._count, self._gpus = checks.integer("count", count, 1), list(gpus)
        self._threads = threads or max(1, torch.get_num_threads() // count)
        self._context = context or multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []

    def has_room(self) -> bool:
        """Whether fewer jobs run than there may be processes."""
        return len(self._busy()) < self._count

    def submit(self, number: int, job: Job) -> None:
        """Give the job to an idle process, or to a new one."""
        for worker in [one for one in self._workers if one.number is None]:
            if worker.take(number, job):
                return
            self._remove(worker)  # it died without work
        worker = self._start()
        self._workers.append(worker)
        worker.take(number, job)  # if it has died already, `wait` reports that

    def wait(self, seconds: float) -> list[tuple[int, JobMessage]]:
        """Messages of all processes, and of those that are gone."""
        busy = self._busy()
        if not busy:
            time.sleep(seconds)
            return []
        connection.wait([*(one.pipe for one in busy), *(one.process.sentinel for one in busy)], seconds)
        return [message for worker in busy for message in self._receive(worker)]

    def _receive(self, worker: "_Worker") -> Iterator[tuple[int, JobMessage]]:
        number = worker.number
        assert number is not None
        try:
            while worker.number is not None and worker.pipe.poll():
                message = worker.pipe.recv()
                worker.is_ready = True
                if isinstance(message, JobEnd):
                    worker.number = None
                yield number, message
        except (EOFError, OSError):
            worker.process.join()
            self._remove(worker)
            yield number, JobDied(_cause(worker.process))

    def stop(self) -> None:
        """Interrupt each process, as Ctrl-C would."""
        for worker in self._busy():
            if not worker.is_ready:
                worker.process.kill()  # it has nothing to save
            elif worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, signal.SIGINT)

    def close(self) -> None:
        """End idle processes, kill those that are busy."""
        for worker in self._workers:
            if worker.number is not None:
                worker.process.kill()
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_PATIENCE)
            worker.process.kill()
            worker.process.join()
        self._workers = []

    def _busy(self) -> "list[_Worker]":
        return [worker for worker in self._workers if worker.number is not None]

    def _start(self) -> "_Worker":
        place = min(set(range(self._count)) - {worker.place for worker in self._workers})
        gpu = self._gpus[place % len(self._gpus)] if self._gpus else None
        own, other = self._context.Pipe()
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]  # of every real context
            target=_work, args=(other, gpu, self._threads), name=f"ramen-job-{place}"
        )
        with _ctrl_c_held_back(), _visible(gpu):
            process.start()
        other.close()
        return _Worker(process, own, place)

    def _remove(self, worker: "_Worker") -> None:
        worker.pipe.close()
        self._workers.remove(worker)


_PATIENCE = 10.0  # seconds for an idle process to end


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` takes."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def usable_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


@dataclass
class _Worker:
    """A process, and the number of the job that it works on."""

    process: BaseProcess
    pipe: "Connection[tuple[int, Job] | None, JobMessage]"
    place: int
    number: int | None = None
    is_ready: bool = False  # it has reported something, so it listens to signals

    def take(self, number: int, job: Job) -> bool:
        """Send it a job; whether it could be sent."""
        self.number = number
        try:
            self.pipe.send(job)  # type: ignore[arg-type]
        except OSError:
            return False
        return True


def _work(pipe: "Connection[JobMessage, Job]", gpu: str | None, threads: int) -> None:
    """The life of a process: jobs until the queue closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what was held back is dropped
    os.setsid()  # Ctrl-C in the terminal is for the command, which then asks its processes to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with_parent()
    faulthandler.enable()
    if gpu is not None:
        os.environ[_VISIBLE] = gpu  # again, for processes that are forked from an older one
    torch.set_num_threads(threads)
    resources = Resources()
    try:
        while True:
            job = pipe.recv()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            end = perform(job, pipe.send, resources)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            pipe.send(end)
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the queue is gone, or asked to stop between two jobs


@contextmanager
def _visible(gpu: str | None) -> Iterator[None]:
    """A process that starts meanwhile sees this GPU alone, already when it imports what asks for GPUs."""
    before = os.environ.get(_VISIBLE)
    try:
        if gpu is not None:
            os.environ[_VISIBLE] = gpu
        yield
    finally:
        if before is not None:
            os.environ[_VISIBLE] = before
        elif gpu is not None:
            del os.environ[_VISIBLE]


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """A process that starts meanwhile does not get Ctrl-C before it can deal with it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cause(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None or code >= 0:
        return f"its process {process.pid} ended with exit code {code}"
    name = signal.Signals(-code).name
    perhaps = "; if nobody did that, the memory was full" if -code == signal.SIGKILL else ""
    return f"its process {process.pid} was killed by {name}{perhaps}"
