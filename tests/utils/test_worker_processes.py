"""Worker processes: a death is noticed, blamed on the right call, and does not end the work of others."""

import os
import time
from concurrent.futures import BrokenExecutor
from functools import partial

import pytest

from ramen.utils import workers
from ramen.utils.workers import WorkerProcesses, WorkersCannotStartError
from tests.helpers.leftovers import child_processes


def test_a_pool_whose_process_dies_is_replaced() -> None:
    processes = WorkerProcesses(1)
    try:
        first = processes.submit(os.getpid).result()
        with pytest.raises(BrokenExecutor):
            processes.submit(os._exit, 3).result()
        second = processes.submit(os.getpid).result()
        assert len({first, second, os.getpid()}) == 3

        alone = processes.run_alone(os.getpid)
        assert alone not in (first, second)
        with pytest.raises(BrokenExecutor):
            processes.run_alone(os._exit, 3)
        assert processes.submit(os.getpid).result() == second  # which is not affected
        assert processes.run_alone(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            processes.run_alone(divmod, 7, 0)
    finally:
        processes.shutdown()
    assert not child_processes()
    with pytest.raises(RuntimeError, match="shut down"):
        processes.run_alone(os.getpid)
    processes.shutdown()  # once more does nothing


def test_what_has_not_started_is_cancelled_at_the_end() -> None:
    processes = WorkerProcesses(1)
    futures = [processes.submit(time.sleep, 0.01) for _ in range(200)]
    processes.shutdown()
    assert futures[-1].cancelled()
    assert all(future.done() for future in futures)


def test_processes_that_cannot_start_are_no_fault_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "start_worker", partial(os._exit, 1))
    processes = WorkerProcesses(1)
    try:
        with pytest.raises(BrokenExecutor):
            processes.submit(os.getpid).result()
        with pytest.raises(WorkersCannotStartError, match="if __name__ =="):
            processes.run_alone(os.getpid)
    finally:
        processes.shutdown()
