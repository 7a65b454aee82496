"""A Ray cluster of several nodes, one of which is lost: its run resumes on another."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ramen.experiments.run.execute import run_experiments
from ramen.experiments.run.queue.ray_tasks import RayTasks
from ramen.experiments.run.queue.scheduler import run_jobs
from tests.experiments.run.tiny_runs import planned
from tests.fakes.jobs import NodeExperimentJob
from tests.helpers.same_results import without_timings
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.waiting import checkpoint_of, once

ray = pytest.importorskip("ray", reason="Ray is not installed")
QUIET = Console(quiet=True)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without cores, and two nodes with a core each."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    small = {"object_store_memory": 80 << 20, "num_gpus": 0}
    started = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
    )
    for _ in range(2):
        started.add_node(num_cpus=1, **small)
    started.wait_for_nodes()
    ray.init(address=started.address, log_to_driver=False)
    yield started
    ray.shutdown()
    started.shutdown()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="slow; RAMEN_SLOW_TESTS=1 runs them")
def test_a_run_of_a_lost_node_resumes_on_another(cluster: Any, tmp_path: Path) -> None:
    (experiment,) = planned("ramen")
    (expected,) = run_experiments([experiment], tmp_path / "alone", console=QUIET)
    nodes, out = tmp_path / "nodes", tmp_path / "results"
    job = NodeExperimentJob(experiment, out, "own", checkpoint_seconds=0.0, pause=1.0, nodes=nodes)

    def lose_its_node() -> None:
        own = nodes.read_text().split()[0]
        cluster.remove_node(
            next(one for one in cluster.worker_nodes if one.node_id == own), allow_graceful=False
        )

    killer = once(checkpoint_of(experiment.path(out)).exists, lose_its_node)
    with RayTasks("auto") as tasks:
        (end,) = run_jobs([job], tasks, QUIET)
    killer.join()
    assert end.state == "finished", end.reason
    started_on = nodes.read_text().split()
    assert len(started_on) == len(set(started_on)) == 2
    assert end.value["provenance"]["resumed"] == 1
    assert without_timings(end.value) == without_timings(expected)
