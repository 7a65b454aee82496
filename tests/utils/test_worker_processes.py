"""Worker processes: a death is noticed, blamed on the right call, and does not end the work of others."""

import os
import time
from concurrent.futures import BrokenExecutor
from functools import partial

import pytest

from ramen.utils import worker_processes
from ramen.utils.worker_processes import WorkerProcesses, WorkersCannotStartError
from tests.helpers.leftovers import child_processes


def test_a_pool_whose_process_dies_is_replaced() -> None:
    workers = WorkerProcesses(1)
    try:
        first = workers.submit(os.getpid).result()
        with pytest.raises(BrokenExecutor):
            workers.submit(os._exit, 3).result()
        second = workers.submit(os.getpid).result()
        assert len({first, second, os.getpid()}) == 3

        alone = workers.run_alone(os.getpid)
        assert alone not in (first, second)
        with pytest.raises(BrokenExecutor):
            workers.run_alone(os._exit, 3)
        assert workers.submit(os.getpid).result() == second  # which is not affected
        assert workers.run_alone(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            workers.run_alone(divmod, 7, 0)
    finally:
        workers.shutdown()
    assert not child_processes()
    with pytest.raises(RuntimeError, match="shut down"):
        workers.run_alone(os.getpid)
    workers.shutdown()  # once more does nothing


def test_what_has_not_started_is_cancelled_at_the_end() -> None:
    workers = WorkerProcesses(1)
    futures = [workers.submit(time.sleep, 0.01) for _ in range(200)]
    workers.shutdown()
    assert futures[-1].cancelled()
    assert all(future.done() for future in futures)


def test_processes_that_cannot_start_are_no_fault_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "start_worker", partial(os._exit, 1))
    workers = WorkerProcesses(1)
    try:
        with pytest.raises(BrokenExecutor):
            workers.submit(os.getpid).result()
        with pytest.raises(WorkersCannotStartError, match="if __name__ =="):
            workers.run_alone(os.getpid)
    finally:
        workers.shutdown()
