"""Worker processes for making sets, each computing on one thread."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

Task = TypeVar("Task")

# One thread per worker: they share the cores, and sums in another order could change a byte.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def available_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_processes(work: Callable[[Task], object], tasks: Iterable[Task], workers: int) -> Iterator[Task]:
    """Run every task in one of the worker processes; yield each task when it is done, in any order."""
    with _single_threaded():
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_prepare_worker)
        try:
            waiting = {pool.submit(work, task): task for task in tasks}
            for done in as_completed(waiting):
                done.result()
                yield waiting.pop(done)
        except BrokenProcessPool:
            raise RuntimeError(
                "a worker process died (out of memory?): run the same command again to resume, "
                "with fewer workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Worker processes that start in this block compute on one thread."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _prepare_worker() -> None:
    # The parent handles interrupts, and a worker must not outlive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
