"""Tasks of a small Ray cluster: the same results, also if one of its processes is killed."""

import io
import os
import signal
import sys

import pytest
from rich.console import Console

from ramen.experiments.run.execute import run_experiments
from ramen.experiments.run.queue.experiment_queue import run_queued
from ramen.experiments.run.queue.ray_tasks import RayTasks
from ramen.experiments.run.queue.scheduler import run_jobs
from ramen.utils.stopping import StoppedError
from tests.experiments.run.tiny_runs import planned
from tests.fakes.jobs import SlowExperimentJob, SmallJob
from tests.helpers.same_results import without_timings
from tests.helpers.waiting import checkpoint_of, once, process_of

ray = pytest.importorskip("ray", reason="Ray is not installed")
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def cluster():
    """Two cores; the process of the tests has joined it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    options = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 << 20}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, **options)
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def tasks(cluster):
    with RayTasks("auto") as executor:
        yield executor
    assert ray.is_initialized()  # it was there before


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    experiments = planned("ramen", "tent", "tda")
    results = run_experiments(experiments, tmp_path_factory.mktemp("sequential"), console=QUIET)
    return [without_timings(result) for result in results]


def test_a_killed_run_resumes_and_all_results_are_the_same(tmp_path, tasks, sequential):
    experiments = planned("ramen", "tent", "tda")
    jobs = [SlowExperimentJob(one, tmp_path, "own", checkpoint_seconds=0.0) for one in experiments]
    victim = experiments[0].path(tmp_path)
    killer = once(checkpoint_of(victim).exists, lambda: os.kill(process_of(victim), signal.SIGKILL))
    said = io.StringIO()
    ends = run_jobs(jobs, tasks, Console(file=said, width=200))
    killer.join()
    assert [end.state for end in ends] == ["finished"] * 3
    assert [end.value["provenance"]["resumed"] for end in ends] == [1, 0, 0]
    assert [without_timings(end.value) for end in ends] == sequential
    assert "ramen seed 0: its process or its node died; it is started again" in said.getvalue()
    assert "ramen, seed 0: resuming after" in said.getvalue()
    results = run_queued(experiments, tmp_path, tasks, console=QUIET)  # of the files
    assert results == [end.value for end in ends]
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(one.path(tmp_path) for one in experiments)


def test_stopped_runs_leave_checkpoints(tmp_path, tasks, sequential):
    experiments = planned("ramen", "tent", "tda")
    slowly = {"checkpoint_seconds": 0.0, "pause": 1.5}
    jobs = [SlowExperimentJob(one, tmp_path, "own", **slowly) for one in experiments]
    saved = {one.key(): checkpoint_of(one.path(tmp_path)) for one in experiments}
    once(lambda: any(path.exists() for path in saved.values()), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(StoppedError):
        run_jobs(jobs, tasks, QUIET)
    stopped = [one for one in experiments if saved[one.key()].exists()]
    assert stopped
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.lock"))  # nobody was killed
    results = run_experiments(stopped, tmp_path, console=QUIET)
    expected = dict(zip((one.key() for one in experiments), sequential, strict=True))
    assert [without_timings(one) for one in results] == [expected[one.key()] for one in stopped]
    assert {one["provenance"]["resumed"] for one in results} == {1}


def test_failures_and_deaths_are_reported(tmp_path, tasks, monkeypatch):
    tasks.retries = 1
    jobs = [SmallJob(work, tmp_path, work) for work in ("fail", "place", "die")]
    monkeypatch.chdir(tmp_path)
    ends = run_jobs(jobs, tasks, QUIET)
    assert [end.state for end in ends] == ["failed", "finished", "failed"]
    assert ends[1].value == str(tmp_path)  # paths may be relative to it
    assert "RuntimeError: it cannot be done" in jobs[0].log.read_text()
    assert "its process or its node died; the same command resumes it" in ends[2].reason
    assert jobs[2].log.read_text().count("the last words") == 2  # of both attempts


def test_a_result_of_another_disk_is_written_here(tmp_path, sequential):
    (experiment,) = planned("tda")
    job = SlowExperimentJob(experiment, tmp_path / "here", "own")
    (value,) = run_experiments([experiment], tmp_path / "there", console=QUIET)
    job.deliver(value)
    here, there = (experiment.path(tmp_path / name).read_bytes() for name in ("here", "there"))
    assert here == there


def test_a_run_that_fits_nowhere(tmp_path, cluster):
    with pytest.raises(
        ValueError, match=r"--ray: a run needs 0\.5 GPU of one node, and no node has more than 0"
    ):
        RayTasks("local", gpus=0.5)
    with pytest.raises(ValueError, match=r"gpus must be a whole number or less than 1, got 1\.5"):
        RayTasks("local", gpus=1.5)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--ray needs Ray: pip install 'ramen-tta\[ray\]'"):
        RayTasks("local")
