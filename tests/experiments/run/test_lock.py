"""Locks: two processes never run the same experiment, and a dead process blocks nobody."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ramen.experiments.plan.experiment import plan
from ramen.experiments.run.execute import run_experiments
from ramen.experiments.run.lock import RunningError, lock


def experiment():
    (one,) = plan(["ensemble"], data_options={"pictures": 2, "domains": ["fog"]})
    return one


HOLDER = """
import sys, time
from pathlib import Path
from ramen.experiments.run.lock import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_processes_and_one_experiment(tmp_path):
    path = experiment().path(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        who = f"process {holder.pid} on {socket.gethostname()} is running this experiment"
        with pytest.raises(RunningError, match=who):
            run_experiments([experiment()], tmp_path, console=Console(quiet=True))
    finally:
        holder.kill()
        holder.wait()
    assert path.with_name(f".{path.stem}.lock").exists()  # it was killed
    run_experiments([experiment()], tmp_path)
    assert os.listdir(path.parent) == [path.name]


def test_a_lock_of_another_host_is_believed(tmp_path):
    path = tmp_path / "one.json"
    held = tmp_path / ".one.lock"
    held.write_text(json.dumps({"pid": 7, "host": "far-away"}))
    with pytest.raises(RunningError, match=r"process 7 on far-away .* remove .*\.one\.lock"), lock(path):
        pass
    held.write_text("nonsense")
    with lock(path):
        assert json.loads(held.read_text()) == {"pid": os.getpid(), "host": socket.gethostname()}
    assert not held.exists()


def test_a_lock_that_a_dead_host_left_is_taken_over_by_its_owner_alone(tmp_path):
    path, held = tmp_path / "one.json", tmp_path / ".one.lock"
    held.write_text(json.dumps({"pid": 7, "host": "far-away", "owner": "command 1"}))
    for other in (None, "command 2"):
        with pytest.raises(RunningError, match="process 7 on far-away"), lock(path, other):
            pass
    with lock(path, "command 1"):
        holder = json.loads(held.read_text())
        assert holder == {"pid": os.getpid(), "host": socket.gethostname(), "owner": "command 1"}
        with pytest.raises(RunningError, match=f"process {os.getpid()}"), lock(path, "command 1"):
            pass  # it is not dead
    assert not held.exists()


def test_a_lock_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyError), lock(tmp_path / "one.json"):
        raise KeyError
    with lock(tmp_path / "one.json"):
        pass
    assert not list(Path(tmp_path).iterdir())
