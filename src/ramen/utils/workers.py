"""Worker processes that compute on one thread each and never outlive the process that started them.

They are spawned, not forked: a copy of a process that uses a GPU or threads would hang. A script that uses
them must keep what it runs under ``if __name__ == "__main__":``, since each is a fresh Python that imports
the script.
"""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import ParamSpec, TypeVar

# To be held while a process starts: what multiprocessing notes of its processes is not made for threads.
STARTING = threading.Lock()

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class WorkersCannotStartError(RuntimeError):
    """New worker processes end before they have done anything."""


def process_pool(workers: int) -> Executor:
    """A pool of so many worker processes, which start when they are needed."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker)


class WorkerProcesses:
    """A process pool that is replaced if one of its processes dies.

    Whatever the pool was doing at that moment fails with BrokenExecutor; ``run_alone`` then finds out, in one
    more process, which call it was that ends a process. May be used by several threads at once.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool = process_pool(workers)
        self._alone: Executor | None = None
        self._ended = False
        # of the attributes; garbage that is collected meanwhile may shut the processes down
        self._lock = threading.RLock()
        self._alone_lock = threading.Lock()  # held while something runs alone

    def submit(
        self, function: Callable[Arguments, Returned], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Returned]:
        with self._lock:
            try:
                return self._pool.submit(function, *args, **kwargs)
            except BrokenExecutor:
                self._pool.shutdown(wait=False)
                self._pool = process_pool(self._workers)
                return self._pool.submit(function, *args, **kwargs)

    def run_alone(
        self, function: Callable[Arguments, Returned], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Returned:
        """Call ``function`` in a process that does nothing else meanwhile, and wait for it.

        Raises:
            BrokenExecutor: The process died of it.
            WorkersCannotStartError: The process died before it.
        """
        with self._alone_lock:
            pool = self._start_alone()
            try:
                return pool.submit(function, *args, **kwargs).result()
            except BrokenExecutor:
                with self._lock:
                    self._alone = None
                pool.shutdown(wait=False)
                raise

    def _start_alone(self) -> Executor:
        with self._lock:
            if self._ended:
                raise RuntimeError("the worker processes have been shut down")
            if self._alone is not None:
                return self._alone
            pool = self._alone = process_pool(1)
        try:
            pool.submit(os.getpid).result()
        except BrokenExecutor:
            with self._lock:
                self._alone = None
            pool.shutdown(wait=False)
            raise WorkersCannotStartError(
                "worker processes end as soon as they start. Their own error is above. A script that uses "
                'workers must keep what it runs under `if __name__ == "__main__":`'
            ) from None
        return pool

    def shutdown(self) -> None:
        """End the processes; what is running is finished, what has not started is cancelled."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            pools = [self._pool] if self._alone is None else [self._pool, self._alone]
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)


def start_worker() -> None:
    """One torch thread per worker; Ctrl-C is for the parent, without which no worker stays."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    end_with_parent()


def end_with_parent() -> None:
    """From now on this process ends as soon as the one that started it does, however that ends."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def available_cores() -> int:
    """The cores that this process may use: its affinity, limited by the CPU quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such controller, or "max"
        return cores


@contextmanager
def left_out_of_collections() -> Iterator[None]:
    """A block in which garbage collections leave out all objects that were there before it.

    For a service that has started. What a model and its libraries consist of never becomes garbage, but
    looking through it takes a third of a second, in which nothing is answered. Afterwards all is as before:
    some libraries report what is not collected when Python ends.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
