"""Many runs at once: the same results, also if a process is killed; nobody outlives a command."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest
import torch
from rich.console import Console

from ramen.experiments import workers
from ramen.experiments.experiment import plan
from ramen.experiments.store import Store
from ramen.experiments.workers import run_all, run_in
from ramen.utils import pools
from ramen.utils.pools import DiedError, LocalPool, Pool, open_pool, visible_gpus
from ramen.utils.signals import StoppedError
from tests.experiments.tiny_runs import FIXED, files_of, odd, planned
from tests.helpers.forked_processes import CONTEXT
from tests.helpers.same_results import without_timings
from tests.helpers.slow_tests import RUN_SLOW_TESTS
from tests.helpers.waiting import checkpoint_of, has_ended, once, process_of, wait_until

QUIET = Console(quiet=True)


@pytest.fixture
def pool():
    with LocalPool(2, threads=1, context=CONTEXT) as opened:
        yield opened
    assert not any(one.process is not None and one.process.is_alive() for one in opened.workers)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    """Results of one run after the other, in one process, by key."""
    experiments = [*planned("ramen", "tent", "tda", **FIXED), *odd("slow", seeds=[0, 1, 2])]
    results = run_all(experiments, tmp_path_factory.mktemp("sequential"), console=QUIET)
    return {one.key(): without_timings(result) for one, result in zip(experiments, results, strict=True)}


# -- processes --------------------------------------------------------------------------------------------


def die():
    os._exit(5)


def surroundings():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads()


def test_processes_are_kept_and_those_that_die_are_replaced(pool):
    ids = {pool.submit(os.getpid).result() for _ in range(4)}
    assert len(ids) <= 2
    with pytest.raises(DiedError, match="ended with exit code 5"):
        pool.submit(die).result()
    with pytest.raises(ValueError, match="invalid literal"):
        pool.submit(int, "x").result()
    first = pool.submit(os.getpid).result()
    os.kill(first, signal.SIGKILL)
    wait_until(
        lambda: (
            not any(
                one.process and one.process.is_alive() and one.process.pid == first for one in pool.workers
            )
        )
    )
    assert {pool.submit(os.getpid).result() for _ in range(2)}.isdisjoint({first})


def test_each_process_has_its_gpu_and_its_share_of_the_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    with LocalPool(2, gpus=["3", "GPU-8f"], context=CONTEXT) as opened:
        found = [future.result() for future in [opened.submit(surroundings) for _ in range(2)]]
    assert set(found) <= {("3", 2), ("GPU-8f", 2)}


def test_gpus_by_the_names_that_the_user_gave(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(pools, "available_cores", lambda: 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1", "2"]
    counts = [len(open_pool(0, None, None, name).workers) for name in ("cuda", "cuda:1", "cpu")]
    assert counts == [3, 1, 5]
    assert len(open_pool(7, None, None, "cuda").workers) == 7
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8f, 7")
    assert visible_gpus() == ["5", "GPU-8f", "7"]


def test_nobody_outlives_the_block():
    """Whatever ends it, and whatever the processes are doing."""
    with LocalPool(2, context=CONTEXT) as opened:
        ids = {opened.submit(os.getpid).result() for _ in range(2)}
        calls = [opened.submit(time.sleep, 600) for _ in range(3)]
        wait_until(lambda: all(call.running() for call in calls[:2]))
        ids |= {one.process.pid for one in opened.workers if one.process is not None}
    assert all(map(has_ended, ids))
    assert isinstance(calls[0].exception(), DiedError)
    assert calls[2].cancelled()


ORPHANS = """
import sys, time
from pathlib import Path
from ramen.utils.pools import LocalPool

if __name__ == "__main__":
    with LocalPool(2) as pool:
        calls = [pool.submit(time.sleep, 600) for _ in range(2)]
        while not all(one.process and one.process.pid for one in pool.workers):
            time.sleep(0.1)
        Path(sys.argv[1]).write_text(" ".join(str(one.process.pid) for one in pool.workers))
        calls[0].result()
"""


@pytest.mark.skipif(not RUN_SLOW_TESTS, reason="RAMEN_SLOW_TESTS is not set")
def test_no_process_outlives_a_command_that_is_killed(tmp_path):
    script, ids = tmp_path / "script.py", tmp_path / "ids"
    script.write_text(ORPHANS)
    command = subprocess.Popen([sys.executable, str(script), str(ids)])
    wait_until(lambda: ids.exists() and ids.read_text())
    command.kill()
    command.wait()
    wait_until(lambda: all(has_ended(int(one)) for one in ids.read_text().split()))


# -- runs ---------------------------------------------------------------------------------------------------


def test_results_are_the_same_files_as_one_after_the_other(tmp_path, pool, sequential):
    experiments = planned("ramen", "tent", "tda", **FIXED)
    results = run_in(pool, experiments, Store(tmp_path), console=QUIET)
    assert [without_timings(one) for one in results] == [sequential[one.key()] for one in experiments]
    assert run_all(experiments, tmp_path, console=QUIET) == results  # of the files
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert files == files_of(*experiments, out=tmp_path)
    pool.close()
    twice = [*experiments, experiments[0]]
    assert run_in(pool, twice, Store(tmp_path), console=QUIET) == [*results, results[0]]


def test_a_killed_run_fails_alone_and_resumes(tmp_path, pool, sequential):
    victim, other = odd("slow", seeds=[0, 1])
    path = victim.path(tmp_path)
    killer = once(checkpoint_of(path).exists, lambda: os.kill(process_of(path), signal.SIGKILL))
    failed, found = run_in(pool, [victim, other], Store(tmp_path), console=QUIET, checkpoint_seconds=0)
    killer.join()
    assert failed["kind"] == "failed"
    assert "was killed by SIGKILL; if nobody did that, the memory was full" in failed["reason"]
    assert "method     slow" in path.with_suffix(".log").read_text()
    assert without_timings(found) == sequential[other.key()]
    (result,) = run_in(pool, [victim], Store(tmp_path), console=QUIET)
    assert result["provenance"]["resumed"] == 1
    assert without_timings(result) == sequential[victim.key()]
    assert sorted(path.parent.iterdir()) == files_of(victim, other, out=tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_runs_leave_checkpoints(tmp_path, pool, sequential, number, code):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    experiments = odd("slow", seeds=[0, 1, 2])
    saved = [checkpoint_of(one.path(tmp_path)) for one in experiments[:2]]
    once(lambda: all(path.exists() for path in saved), lambda: os.kill(os.getpid(), number))
    with pytest.raises(StoppedError) as stopped:
        run_in(pool, experiments, Store(tmp_path), console=QUIET, checkpoint_seconds=0)
    assert stopped.value.exit_code == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert all(path.exists() for path in saved)
    left = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".ckpt"}
    results = run_all(experiments, tmp_path, console=QUIET)
    assert [one["provenance"]["resumed"] for one in results] == [1, 1, 0]
    assert [without_timings(one) for one in results] == [sequential[one.key()] for one in experiments]


def test_the_second_signal_does_not_wait(tmp_path):
    (one,) = odd("slow", settings=["pause=600"])
    lock = one.path(tmp_path).with_name(f".{one.path(tmp_path).stem}.lock")

    def twice():
        wait_until(lambda: lock.exists() and b'"done": 7' in lock.read_bytes())
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=twice, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as stopped, LocalPool(1, context=CONTEXT) as pool:
        run_in(pool, [one], Store(tmp_path), console=QUIET)
    thread.join()
    assert not isinstance(stopped.value, StoppedError)
    assert pool.workers[0].process.exitcode == -signal.SIGKILL


def test_two_commands_share_a_folder(tmp_path, pool, sequential):
    """Each runs what the other does not have, and waits for the rest."""
    experiments, said = odd("slow", seeds=[0, 1, 2]), io.StringIO()
    found = {}
    with LocalPool(1, threads=1, context=CONTEXT) as other:

        def beside():
            found["other"] = run_in(other, experiments, Store(tmp_path), console=QUIET)

        thread = threading.Thread(target=beside)
        thread.start()
        path = experiments[0].path(tmp_path)
        wait_until(path.with_name(f".{path.stem}.lock").exists)
        found["own"] = run_in(pool, experiments, Store(tmp_path), console=Console(file=said, width=200))
        thread.join()
    assert "slow seed 0: running elsewhere: process" in said.getvalue()
    for results in found.values():
        assert [without_timings(one) for one in results] == [sequential[one.key()] for one in experiments]
        assert {one["provenance"]["resumed"] for one in results} == {0}


def test_failures_end_nobody_and_keep_their_logs(tmp_path, pool, capfd):
    bad, good = planned("tent", "ensemble")
    bad.path(tmp_path).parent.mkdir(parents=True)
    bad.path(tmp_path).write_text("{")
    failing, dying = odd("odd")[0], odd("odd", settings=["end=die"])[0]
    said = io.StringIO()
    damaged, failed, died, result = run_in(
        pool, [bad, failing, dying, good], Store(tmp_path), console=Console(file=said, width=200)
    )
    assert [one["kind"] for one in (damaged, failed, died, result)] == [*["failed"] * 3, "run"]
    assert (damaged["log"], "is damaged" in damaged["reason"]) == (None, True)
    assert (failed["reason"], failed["name"]) == ("RuntimeError: it cannot be done", "odd seed 0")
    log = failing.path(tmp_path).with_suffix(".log")
    assert failed["log"] == str(log)
    lines = log.read_text().splitlines()
    assert {"a line of a library", "a line of a child"} <= set(lines)
    assert lines[-1] == "RuntimeError: it cannot be done"
    assert "ended with exit code 5; the same command resumes it" in died["reason"]
    assert "a line of a child" in dying.path(tmp_path).with_suffix(".log").read_text()
    assert capfd.readouterr() == ("", "")
    assert "odd seed 0: failed: RuntimeError: it cannot be done" in said.getvalue()
    assert said.getvalue().count("model      tiny") == 1  # settings that runs share


class Elsewhere(Pool):
    """Runs on machines with other disks: what is in the folder goes away, and the first attempts die."""

    def __init__(self, folder, deaths=0, log="from another machine\n"):
        self.folder, self.deaths, self.log = folder, deaths, log
        self.retries = 2

    def submit(self, function, experiment, store, *rest):
        future = Future()
        self.deaths -= 1
        if self.deaths >= 0:
            future.set_exception(DiedError("its node died"))
            return future
        future.set_result(function(experiment, Store(self.folder), *rest))
        return future

    def stop(self):
        pass

    def close(self):
        pass


def test_a_result_of_another_disk_is_written_here(tmp_path, sequential):
    (one,) = planned("tda")
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    said = io.StringIO()
    (result,) = run_in(Elsewhere(there.folder, deaths=2), [one], here, console=Console(file=said, width=200))
    assert said.getvalue().count("tda seed 0: its node died; it is started again") == 2
    assert without_timings(result) == sequential[one.key()]
    for path in files_of(one, out=here.folder):
        assert path.read_bytes() == (there.folder / path.relative_to(here.folder)).read_bytes()


def test_the_dead_are_started_again_so_often_and_no_more(tmp_path):
    (one,) = planned("tda")
    (failed,) = run_in(Elsewhere(tmp_path, deaths=3), [one], Store(tmp_path / "here"), console=QUIET)
    assert failed["reason"] == "its node died; the same command resumes it"
    (wrong,) = odd("odd")
    (failed,) = run_in(Elsewhere(tmp_path / "there"), [wrong], Store(tmp_path / "here"), console=QUIET)
    log = wrong.path(tmp_path / "here").with_suffix(".log")
    assert log.read_text().splitlines()[-1] == "RuntimeError: it cannot be done"  # of the other machine


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    (one,) = plan(["ensemble"])
    end = workers.logged_run(one, Store(tmp_path / "file"), "own", 120.0, "raise")
    assert end.state == "failed"
    assert "this is a file, and a folder is expected" in end.reason
