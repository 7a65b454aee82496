"""What the user sees of a queue."""

import io
import socket

import pytest
from rich.console import Console

from ramen.experiments.run.queue import status
from ramen.experiments.run.queue.live_table import JobTable, job_line, job_table
from ramen.experiments.run.queue.messages import JobAdvanced, JobStarted
from ramen.experiments.run.queue.status import JobStatus

HERE = socket.gethostname()


def running(name, done=1200, total=5000, host=HERE):
    one = JobStatus(name)
    one.begin(JobStarted(7, host))
    one.advanced = JobAdvanced(done, total, "", 52.4, 71.25, 65.0)
    return one


def ended(name, state, detail=""):
    one = running(name)
    one.end(state, detail)
    return one


def text(table):
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def test_columns():
    rows = [
        running("ramen seed 0"),
        ended("tent seed 0", status.FAILED, "no [memory]"),
        JobStatus("sar seed 0"),
    ]
    lines = text(job_table(rows)).splitlines()
    assert lines[0].split() == ["run", "images", "rate", "accuracy", "state"]
    shown = " ".join(lines[1].split())
    assert shown == "ramen seed 0 1,200 of 5,000 52 images/s 71.2 (zero-shot 65.0) running"
    assert "failed: no [memory]" in lines[2]
    assert "images/s" not in lines[2]
    assert lines[3].split() == ["sar", "seed", "0", "waiting"]
    assert len(lines) == 4


def test_other_machines_are_named():
    assert job_line(running("x", host="node7")).startswith("x: running on node7; 1,200 of 5,000")


def test_too_many_for_a_terminal():
    rows = [ended(f"a{n}", status.FINISHED) for n in range(10)] + [
        running("b"),
        ended("c", status.FAILED, "x"),
    ]
    rows += [JobStatus(f"d{n}") for n in range(10)]
    lines = [line.split() for line in text(job_table(rows, 4)).splitlines()]
    assert [line[0] for line in lines[1:-1]] == ["b", "c", "d0", "d1"]
    assert " ".join(lines[-1]) == "and 8 waiting, 10 finished"


def test_lines_if_it_is_no_terminal(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ramen.experiments.run.queue.live_table.time.monotonic", lambda: now[0])
    out, one = io.StringIO(), JobStatus("ramen seed 0")
    with JobTable([one], Console(file=out, width=30)) as table:
        table.refresh()
        assert not out.getvalue()  # it waits, like all at the start
        one.begin(JobStarted(7, HERE))
        one.advanced = JobAdvanced(3, 16, "drawing")
        table.refresh()
        one.advanced = JobAdvanced(1200, 5000, "", 52.4, 71.25, 65.0)
        for now[0] in (10.0, 29.0, 30.0, 31.0):
            table.refresh()
        one.end(status.FINISHED)
    lines = out.getvalue().splitlines()
    assert lines == [
        "ramen seed 0: running; drawing: 3 of 16",
        "ramen seed 0: running; 1,200 of 5,000; 52 images/s; accuracy 71.2 (zero-shot 65.0)",
        "ramen seed 0: finished in 31.0 s; 1,200 of 5,000; 52 images/s; accuracy 71.2 (zero-shot 65.0)",
    ]


def test_on_a_terminal_the_table_is_drawn_in_place():
    out, one = io.StringIO(), running("ramen seed 0")
    with JobTable([one], Console(file=out, width=100, force_terminal=True)) as table:
        table.refresh()
        table.say("model tiny")
        one.end(status.FINISHED)
    shown = out.getvalue()
    assert "\x1b[" in shown
    assert "model tiny" in shown
    assert shown.index("running") < shown.index("finished in")


@pytest.mark.parametrize(
    ("state", "expected"),
    [(status.FAILED, "x: failed: no memory; 1 of 2"), (status.STOPPED, "x: stopped: no memory; 1 of 2")],
)
def test_a_line_says_why(state, expected):
    one = JobStatus("x")
    one.advanced = JobAdvanced(1, 2)
    one.end(state, "no memory")
    assert job_line(one) == expected
