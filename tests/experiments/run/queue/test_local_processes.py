"""Local processes: the same results, also if one of them is killed."""

import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from ramen.experiments.run.execute import run_experiments
from ramen.experiments.run.queue import local_processes
from ramen.experiments.run.queue.experiment_queue import run_queued
from ramen.experiments.run.queue.local_processes import LocalProcesses, usable_cores, visible_gpus
from ramen.experiments.run.queue.scheduler import run_jobs
from ramen.utils.stopping import StoppedError
from tests.experiments.run.tiny_runs import planned
from tests.fakes.jobs import SlowExperimentJob, SmallJob
from tests.helpers.forked_processes import CONTEXT
from tests.helpers.same_results import without_timings
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.waiting import checkpoint_of, has_ended, once, process_of, wait_until

QUIET = Console(quiet=True)


@pytest.fixture
def processes():
    with LocalProcesses(2, threads=1, context=CONTEXT) as executor:
        yield executor
        started = [worker.process for worker in executor._workers]
    assert not any(process.is_alive() for process in started)


def small(tmp_path, *works):
    return [SmallJob(f"{number}-{work}", tmp_path, work) for number, work in enumerate(works)]


def test_processes_are_kept_and_those_that_die_are_replaced(tmp_path, processes):
    jobs = small(tmp_path, "pid", "die", "square", "pid", "pid", "fail", "pid")
    ends = run_jobs(jobs, processes, QUIET)
    states = [end.state for end in ends]
    assert states == ["finished", "failed", *["finished"] * 3, "failed", "finished"]
    assert "ended with exit code 5; the same command resumes it" in ends[1].reason
    assert "the last words" in jobs[1].log.read_text()
    assert "RuntimeError: it cannot be done" in jobs[5].log.read_text()
    assert len({end.value for end in ends if isinstance(end.value, int) and end.value != 9}) <= 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-die.log", "5-fail.log"]


def test_each_process_has_its_gpu_and_its_share_of_the_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(local_processes.torch, "get_num_threads", lambda: 5)
    with LocalProcesses(2, gpus=["3", "GPU-8f"], context=CONTEXT) as executor:
        ends = run_jobs(small(tmp_path, *["environment"] * 2), executor, QUIET)
    assert [end.value for end in ends] == [{"gpu": "3", "threads": 2}, {"gpu": "GPU-8f", "threads": 2}]


def test_gpus_by_the_names_that_the_user_gave(monkeypatch):
    monkeypatch.setattr(local_processes.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8f")
    assert visible_gpus() == ["5", "GPU-8f"]
    assert usable_cores() >= 1


def test_a_process_that_died_without_work_is_replaced(tmp_path, processes):
    (first,) = run_jobs(small(tmp_path, "pid"), processes, QUIET)
    os.kill(first.value, signal.SIGKILL)
    wait_until(lambda: not processes._workers[0].process.is_alive())
    (second,) = run_jobs(small(tmp_path, "pid"), processes, QUIET)
    assert second.state == "finished"
    assert second.value != first.value


def test_nobody_outlives_the_block(tmp_path):
    """Whatever ends it, and whatever the processes are doing."""
    jobs = small(tmp_path, "sleep", "sleep")
    pids = [tmp_path / f"{job.name}.pid" for job in jobs]
    with LocalProcesses(2, context=CONTEXT) as executor:
        for number, job in enumerate(jobs):
            executor.submit(number, job)
        wait_until(lambda: all(path.exists() and path.read_text() for path in pids))
    assert all(has_ended(int(path.read_text())) for path in pids)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    """Results of one run after the other, in one process."""
    experiments = planned("ramen", "tent", "tda")
    out = tmp_path_factory.mktemp("sequential")
    results = run_experiments(experiments, out, console=QUIET)
    return {one.key(): without_timings(result) for one, result in zip(experiments, results, strict=True)}


def test_results_are_the_same_files_as_one_after_the_other(tmp_path, processes, sequential):
    experiments = planned("ramen", "tent", "tda")
    results = run_queued(experiments, tmp_path, processes, console=QUIET)
    assert [without_timings(one) for one in results] == [sequential[one.key()] for one in experiments]
    again = run_experiments(experiments, tmp_path, console=QUIET)  # of the files
    assert again == results
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(one.path(tmp_path) for one in experiments)
    for worker in processes._workers:
        worker.process.kill()
    assert run_queued([*experiments, experiments[0]], tmp_path, processes, console=QUIET) == [
        *results,
        results[0],
    ]


def test_a_killed_run_fails_alone_and_resumes(tmp_path, processes, sequential):
    victim, other = planned("ramen", "tent")
    jobs = [
        SlowExperimentJob(victim, tmp_path, "own", checkpoint_seconds=0.0),
        SlowExperimentJob(other, tmp_path, "own"),
    ]
    path = victim.path(tmp_path)
    killer = once(checkpoint_of(path).exists, lambda: os.kill(process_of(path), signal.SIGKILL))
    ends = run_jobs(jobs, processes, QUIET)
    killer.join()
    assert [end.state for end in ends] == ["failed", "finished"]
    assert "was killed by SIGKILL; if nobody did that, the memory was full" in ends[0].reason
    assert "method     ramen" in path.with_suffix(".log").read_text()
    assert without_timings(ends[1].value) == sequential[other.key()]
    (result,) = run_queued([victim], tmp_path, processes, console=QUIET)
    assert result["provenance"]["resumed"] == 1
    assert without_timings(result) == sequential[victim.key()]
    assert sorted(os.listdir(path.parent)) == sorted(one.path(tmp_path).name for one in (victim, other))


def test_stopped_runs_leave_checkpoints(tmp_path, processes, sequential):
    experiments = planned("ramen", "tent", "tda")
    paths = [one.path(tmp_path) for one in experiments]
    slowly = {"checkpoint_seconds": 0.0, "pause": 1.5}
    jobs = [SlowExperimentJob(one, tmp_path, "own", **slowly) for one in experiments]
    wait = [checkpoint_of(path) for path in paths[:2]]
    once(lambda: all(path.exists() for path in wait), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(StoppedError):
        run_jobs(jobs, processes, QUIET)
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.log"))
    assert all(path.exists() for path in wait)
    results = run_queued(experiments, tmp_path, processes, console=QUIET)
    assert [one["provenance"]["resumed"] for one in results] == [1, 1, 0]
    assert [without_timings(one) for one in results] == [sequential[one.key()] for one in experiments]


def test_two_queues_share_a_folder(tmp_path, processes, sequential):
    """The second one waits for what the first one runs, and runs the rest."""
    first, second = planned("ramen", "tent")
    with LocalProcesses(1, threads=1, context=CONTEXT) as others:
        job = SlowExperimentJob(first, tmp_path, "other")
        others.submit(0, job)
        path = first.path(tmp_path)
        wait_until(path.with_name(f".{path.stem}.lock").exists)
        results = run_queued([first, second], tmp_path, processes, console=QUIET)
    assert [without_timings(one) for one in results] == [sequential[one.key()] for one in (first, second)]
    assert results[0]["provenance"]["resumed"] == 0


def test_a_result_that_is_something_else_fails_alone(tmp_path, processes):
    bad, good = planned("tent", "ensemble")
    bad.path(tmp_path).parent.mkdir(parents=True)
    bad.path(tmp_path).write_text("{")
    failed, result = run_queued([bad, good], tmp_path, processes, console=QUIET)
    assert (failed["kind"], failed["log"], result["kind"]) == ("failed", None, "run")
    assert "is damaged" in failed["reason"]


ORPHANS = """
import sys
from pathlib import Path
from rich.console import Console
from ramen.experiments.run.queue.local_processes import LocalProcesses
from ramen.experiments.run.queue.scheduler import run_jobs
from tests.fakes.jobs import SmallJob

if __name__ == "__main__":
    jobs = [SmallJob(name, Path(sys.argv[1]), "sleep") for name in "ab"]
    with LocalProcesses(2) as processes:
        run_jobs(jobs, processes, Console(quiet=True))
"""


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="RAMEN_SLOW_TESTS is not set")
def test_no_process_outlives_a_command_that_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    command = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path)], env=environment)
    pids = [tmp_path / f"{name}.pid" for name in "ab"]
    wait_until(lambda: all(path.exists() and path.read_text() for path in pids))
    command.kill()
    command.wait()
    wait_until(lambda: all(has_ended(int(path.read_text())) for path in pids))
