"""``--jobs`` and ``--ray`` of the commands: the same output, failures at the end, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys

import pytest

from ramen.experiments.experiment import plan
from ramen.experiments.options import ExperimentOptions, ParallelOptions
from ramen.experiments.workers import run_all
from ramen.utils import pools
from ramen.utils.sealed import unseal
from tests.helpers.forked_processes import CONTEXT
from tests.helpers.ramen_command import ramen
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.waiting import checkpoint_of, has_ended, process_of, wait_until

FEW = ("--data-set", "pictures=6", "--domain", "fog", "--domain", "neon", "--device", "cpu")


@pytest.fixture
def quick_processes(monkeypatch):
    monkeypatch.setattr(pools.multiprocessing, "get_context", lambda kind: CONTEXT)


def without_times(printed):
    """What a comparison prints as JSON, but for the time per image."""
    value = json.loads(printed)
    for table in value["tables"]:
        for row in table.get("rows", []):
            row.pop("ms_an_image", None)
    return value


@pytest.mark.usefixtures("quick_processes")
def test_compare_prints_the_same(tmp_path):
    asked = ("compare", "--run", "--method", "ramen", "--method", "tent", "--seeds", 2, *FEW, "--json")
    sequential = ramen(*asked, "--store", tmp_path / "a")
    queued = ramen(*asked, "--store", tmp_path / "b", "--jobs", 2)
    assert json.loads(queued.stdout)["failed"] == []
    assert without_times(queued.stdout) == without_times(sequential.stdout)
    assert queued.stderr.count("finished in") == 4
    assert queued.stderr.count("model      tiny") == 1
    again = ramen(*asked, "--store", tmp_path / "b", "--jobs", 2)
    assert again.stdout == queued.stdout
    assert "finished in" not in again.stderr  # nothing was left to run


@pytest.mark.usefixtures("quick_processes")
def test_failed_runs_are_reported_after_the_others(tmp_path):
    common = (*FEW, "--store", tmp_path, "--jobs", 2, "--set", "ramen.capacity=3")
    wrong = ("--set", "ramen.topk=9")
    shown = ramen(
        "compare", "--run", "--method", "ramen", "--method", "tent", *common, *wrong, "--json", code=1
    )
    content = json.loads(shown.stdout)
    assert {row["method"] for row in content["tables"][0]["rows"]} == {"tent"}
    (failed,) = content["failed"]
    assert failed["reason"] == "topk must be between 1 and capacity=3, got 9"
    (log,) = tmp_path.rglob("*.log")
    assert failed["log"] == str(log)
    lines = shown.stderr.splitlines()
    place = lines.index("failed: ramen seed 0: topk must be between 1 and capacity=3, got 9")
    assert lines[place + 1] == f"  its log is {log}"
    assert lines[-1] == "  | ValueError: topk must be between 1 and capacity=3, got 9"
    alone = ramen("compare", "--run", "--method", "ramen", *common, *wrong, "--json", code=1)
    assert json.loads(alone.stdout)["tables"] == []

    swept = json.loads(ramen("sweep", "--vary", "topk=1,2,9", *common, "--json", code=1).stdout)
    assert [row.get("value") for row in swept["tables"][0]["rows"]] == [1, 2, None, None]
    assert [one["experiment"]["parameters"]["topk"] for one in swept["failed"]] == [9]


def test_runs_with_a_share_of_a_gpu_are_on_a_gpu():
    """Also if the machine of the command has none."""
    asked = ParallelOptions(ray="auto", gpus_per_run=0.5).check(ExperimentOptions())
    assert asked.fields["device"] == "cuda"
    assert ParallelOptions(ray="auto").check(ExperimentOptions()).fields == {}


CASES = [(signal.SIGINT, ("--jobs", "2"))]
if RUN_SLOW_TESTS:
    CASES += [(signal.SIGTERM, ("--jobs", "2")), (signal.SIGINT, ("--ray", "local"))]


@pytest.mark.parametrize(("number", "queue"), CASES, ids=["-".join([one.name, *how]) for one, how in CASES])
def test_ctrl_c_stops_all_runs_and_the_same_command_resumes(tmp_path, number, queue):
    """In a process group of its own, as in a terminal: Ctrl-C goes to all of them."""
    options = {
        "data_options": {"pictures": 80, "domains": ["fog", "neon"]},
        "protocol": "single",
        "batch": 1,
    }
    experiments = plan(["sar", "tent"], **options)
    asked = [
        "compare",
        "--run",
        "--method",
        "tent",
        "--method",
        "sar",
        "--protocol",
        "single",
        "--batch",
        "1",
    ]
    asked += ["--data-set", "pictures=80", "--domain", "fog", "--domain", "neon", "--device", "cpu"]
    words = [sys.executable, "-m", "ramen", *asked, "--store", str(tmp_path / "s"), *queue]
    path = experiments[0].path(tmp_path / "s")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        wait_until(lambda: checkpoint_of(path).exists() or running.poll() is not None)  # the first domain
        worker = process_of(path)
        os.killpg(running.pid, number)
        out, said = running.communicate(timeout=120)
    assert running.returncode == 128 + number, said
    assert out == ""
    assert "Stopping after the current batches" in said
    assert "Traceback" not in said
    wait_until(lambda: has_ended(worker))
    assert not list(tmp_path.rglob("*.lock"))
    assert not list(tmp_path.rglob("*.log"))
    assert not path.exists()
    facts = json.loads(unseal(checkpoint_of(path).read_bytes())[1]["facts"])
    assert 80 < facts["done"] < 160  # not that of the first domain
    (resumed,) = run_all(experiments[:1], tmp_path / "s")
    assert resumed["provenance"]["resumed"] == 1
    assert resumed["cost"]["images"] == 160
