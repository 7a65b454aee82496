"""Tasks of a small Ray cluster: the same results, also if one of its processes or nodes is lost."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ramen.experiments.store import Store
from ramen.experiments.workers import run_all, run_in
from ramen.utils.pools import DiedError, RayPool
from ramen.utils.signals import StoppedError
from tests.experiments.test_workers import die
from tests.experiments.tiny_runs import files_of, odd
from tests.helpers.same_results import without_timings
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.waiting import checkpoint_of, once, process_of

ray = pytest.importorskip("ray", reason="Ray is not installed")
QUIET = Console(quiet=True)
SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "num_gpus": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two cores; the process of the tests has joined it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2, **SMALL)
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def pool(cluster: None) -> Iterator[RayPool]:
    with RayPool("auto") as opened:
        yield opened
    assert ray.is_initialized()  # it was there before


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    results = run_all(odd("slow", seeds=[0, 1, 2]), tmp_path_factory.mktemp("sequential"), console=QUIET)
    return [without_timings(result) for result in results]


def test_a_killed_run_resumes_and_all_results_are_the_same(
    tmp_path: Path, pool: RayPool, sequential: list[str]
) -> None:
    experiments, said = odd("slow", seeds=[0, 1, 2]), io.StringIO()
    victim = experiments[0].path(tmp_path)
    killer = once(checkpoint_of(victim).exists, lambda: os.kill(process_of(victim), signal.SIGKILL))
    console = Console(file=said, width=200)
    results = run_in(pool, experiments, Store(tmp_path), console=console, checkpoint_seconds=0)
    killer.join()
    assert [without_timings(one) for one in results] == sequential
    assert [one["provenance"]["resumed"] for one in results] == [1, 0, 0]
    assert "slow seed 0: its process or its node died; it is started again" in said.getvalue()
    assert "slow, seed 0: resuming after" in said.getvalue()
    assert run_in(pool, experiments, Store(tmp_path), console=QUIET) == results  # of the files
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == files_of(*experiments, out=tmp_path)


def test_stopped_runs_leave_checkpoints(tmp_path: Path, pool: RayPool, sequential: list[str]) -> None:
    experiments = odd("slow", seeds=[0, 1, 2])
    saved = {one.key(): checkpoint_of(one.path(tmp_path)) for one in experiments}
    once(lambda: any(path.exists() for path in saved.values()), lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(StoppedError):
        run_in(pool, experiments, Store(tmp_path), console=QUIET, checkpoint_seconds=0)
    stopped = [place for place, one in enumerate(experiments) if saved[one.key()].exists()]
    assert stopped
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.lock"))  # nobody was killed
    results = run_all([experiments[place] for place in stopped], tmp_path, console=QUIET)
    assert [without_timings(one) for one in results] == [sequential[place] for place in stopped]
    assert {one["provenance"]["resumed"] for one in results} == {1}


def test_failures_and_deaths_are_reported(
    tmp_path: Path, pool: RayPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pool.submit(os.getcwd).result() == str(tmp_path)  # paths may be relative to it
    with pytest.raises(ValueError, match="invalid literal"):
        pool.submit(int, "x").result()
    with pytest.raises(DiedError, match="its process or its node died"):
        pool.submit(die).result()


def test_a_run_that_fits_nowhere(cluster: None) -> None:
    with pytest.raises(ValueError, match=r"--ray: a run needs 0\.5 GPU of one node"):
        RayPool("local", gpus=0.5)
    assert "Runs wait for a node" in RayPool("auto", gpus=0.5).notice
    with pytest.raises(ValueError, match=r"gpus must be .* got 1\.5"):
        RayPool("local", gpus=1.5)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--ray needs Ray: pip install 'ramen-tta\[ray\]'"):
        RayPool("local")


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="slow; RAMEN_SLOW_TESTS=1 runs them")
def test_a_run_of_a_lost_node_resumes_on_another(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    ray.shutdown()
    before = signal.getsignal(signal.SIGTERM)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL})
    for _ in range(2):
        nodes.add_node(num_cpus=1, **SMALL)
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False)
    try:
        (one,) = odd("slow", settings=["pause=1.0"])
        (expected,) = run_all([one], tmp_path / "alone", console=QUIET)
        path, lost = one.path(tmp_path / "nodes"), []

        def lose_its_node() -> None:
            tree = _parents(process_of(path))
            node = next(n for n in nodes.worker_nodes if n.all_processes["raylet"][0].process.pid in tree)
            lost.append(node.node_id)
            nodes.remove_node(node, allow_graceful=False)

        killer = once(checkpoint_of(path).exists, lose_its_node)
        with RayPool("auto") as tasks:
            (found,) = run_in(tasks, [one], Store(tmp_path / "nodes"), console=QUIET, checkpoint_seconds=0)
        killer.join()
        assert len(lost) == 1
        assert found["provenance"]["resumed"] == 1
        assert without_timings(found) == without_timings(expected)
    finally:
        ray.shutdown()
        nodes.shutdown()
        signal.signal(signal.SIGTERM, before)


def _parents(process: int) -> list[int]:
    found = [process]
    while found[-1] > 1:
        status = Path(f"/proc/{found[-1]}/status").read_text()
        found.append(int(status.split("PPid:")[1].split()[0]))
    return found
