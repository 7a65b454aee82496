"""Locks: two processes never run the same experiment, and a dead process blocks nobody."""

import json
import os
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from ramen.experiments.experiment import plan
from ramen.experiments.store import Progress, Store
from ramen.experiments.workers import run_all
from ramen.utils.files import LockedError
from tests.experiments.tiny_runs import files_of


def experiment():
    (one,) = plan(["ensemble"], data_options={"pictures": 2, "domains": ["fog"]})
    return one


HOLDER = """
import sys, time
from ramen.experiments.store import Progress, Store
from tests.experiments.test_lock import experiment
with Store(sys.argv[1]).claim(experiment()):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_processes_and_one_experiment(tmp_path):
    path = experiment().path(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        who = f"process {holder.pid} on {socket.gethostname()} is running this experiment"
        with pytest.raises(LockedError, match=who):
            run_all([experiment()], tmp_path, console=Console(quiet=True))
    finally:
        holder.kill()
        holder.wait()
    assert path.with_name(f".{path.stem}.lock").exists()  # it was killed
    run_all([experiment()], tmp_path)
    assert sorted(path.parent.iterdir()) == files_of(experiment(), out=tmp_path)


def lock_file(store):
    path = store.path(experiment())
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.stem}.lock")


def test_a_lock_of_another_host_is_believed(tmp_path):
    store = Store(tmp_path)
    held = lock_file(store)
    held.write_text(json.dumps({"pid": 7, "host": "far-away"}))
    refused = pytest.raises(LockedError, match=r"process 7 on far-away .* remove .*\.lock")
    with refused, store.claim(experiment()):
        pass
    held.write_text("nonsense")
    with store.claim(experiment()):
        assert json.loads(held.read_text()) == {"pid": os.getpid(), "host": socket.gethostname()}
    assert not held.exists()


def test_a_lock_that_a_dead_host_left_is_taken_over_by_its_owner_alone(tmp_path):
    store = Store(tmp_path)
    held = lock_file(store)
    held.write_text(json.dumps({"pid": 7, "host": "far-away", "owner": "command 1"}))
    for other in (None, "command 2"):
        with pytest.raises(LockedError, match="process 7 on far-away"), store.claim(experiment(), other):
            pass
    with store.claim(experiment(), "command 1"):
        assert store.holder(experiment())["owner"] == "command 1"
        here = pytest.raises(LockedError, match=f"process {os.getpid()}")
        with here, store.claim(experiment(), "command 1"):
            pass  # it is not dead
    assert not held.exists()


def test_a_lock_is_given_back_after_an_error(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(KeyError), store.claim(experiment()):
        raise KeyError
    with store.claim(experiment()):
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_lock_says_how_far_a_run_is(tmp_path):
    store = Store(tmp_path)
    assert store.holder(experiment()) == {}
    with store.claim(experiment(), "command 1") as claim:
        assert store.holder(experiment())["progress"] is None
        claim.report(Progress(3, 40, "drawing"))
        claim.report(Progress(4, 40, "drawing"))  # too soon to be written
        assert store.holder(experiment())["progress"] == Progress(3, 40, "drawing")
        claim.report(Progress(40, 40, "", 52.5, 71.25, 65.0))
        assert store.holder(experiment())["progress"].accuracy == 71.25
    assert store.holder(experiment()) == {}
