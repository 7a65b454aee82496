"""What the user sees of many runs."""

import io
import socket

import pytest
from rich.console import Console

from ramen.experiments import progress
from ramen.experiments.progress import Bars, LiveTable, Status, table_of
from ramen.experiments.store import Progress

HERE = socket.gethostname()


def running(name, done=1200, total=5000, host=HERE):
    one = Status(name)
    one.runs(host, Progress(done, total, "", 52.4, 71.25, 65.0))
    return one


def ended(name, state, detail=""):
    one = running(name)
    one.is_now(state, detail)
    return one


def text(table):
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def test_columns():
    rows = [
        running("ramen seed 0"),
        ended("tent seed 0", progress.FAILED, "no [memory]"),
        Status("sar seed 0"),
    ]
    lines = text(table_of(rows)).splitlines()
    assert lines[0].split() == ["run", "images", "rate", "accuracy", "state"]
    shown = " ".join(lines[1].split())
    assert shown == "ramen seed 0 1,200 of 5,000 52 images/s 71.2 (zero-shot 65.0) running"
    assert "failed: no [memory]" in lines[2]
    assert "images/s" not in lines[2]
    assert lines[3].split() == ["sar", "seed", "0", "waiting"]
    assert len(lines) == 4


def test_other_machines_are_named():
    assert running("x", host="node7").line.startswith("x: running on node7; 1,200 of 5,000")


def test_too_many_for_a_terminal():
    rows = [ended(f"a{n}", progress.FINISHED) for n in range(10)]
    rows += [running("b"), ended("c", progress.FAILED, "x"), *(Status(f"d{n}") for n in range(10))]
    lines = [line.split() for line in text(table_of(rows, 4)).splitlines()]
    assert [line[0] for line in lines[1:-1]] == ["b", "c", "d0", "d1"]
    assert " ".join(lines[-1]) == "and 8 waiting, 10 finished"


def test_lines_if_it_is_no_terminal():
    now, out, one = [0.0], io.StringIO(), Status("ramen seed 0")
    with LiveTable([one], Console(file=out, width=30), lambda: now[0]) as table:
        table.refresh()
        assert not out.getvalue()  # it waits, like all at the start
        one.runs(HERE, Progress(3, 16, "drawing"))
        table.refresh()
        one.runs(HERE, Progress(1200, 5000, "", 52.4, 71.25, 65.0))
        for now[0] in (10.0, 29.0, 30.0, 31.0):
            table.refresh()
        one.is_now(progress.FINISHED, seconds=31.0)
    lines = out.getvalue().splitlines()
    assert lines == [
        "ramen seed 0: running; drawing: 3 of 16",
        "ramen seed 0: running; 1,200 of 5,000; 52 images/s; accuracy 71.2 (zero-shot 65.0)",
        "ramen seed 0: finished in 31.0 s; 1,200 of 5,000; 52 images/s; accuracy 71.2 (zero-shot 65.0)",
    ]


def test_on_a_terminal_the_table_is_drawn_in_place():
    out, one = io.StringIO(), running("ramen seed 0")
    with LiveTable([one], Console(file=out, width=100, force_terminal=True)) as table:
        table.refresh()
        table.print("model tiny")
        one.is_now(progress.FINISHED, seconds=3.0)
    shown = out.getvalue()
    assert "\x1b[" in shown
    assert "model tiny" in shown
    assert shown.index("running") < shown.index("finished in")


@pytest.mark.parametrize("state", [progress.FAILED, progress.STOPPED])
def test_a_line_says_why(state):
    one = Status("x", progress=Progress(1, 2))
    one.is_now(state, "no memory")
    assert one.line == f"x: {state}: no memory; 1 of 2"


@pytest.mark.parametrize("keep", [False, True])
def test_bars(keep):
    out = io.StringIO()
    with Bars(Console(file=out, width=120, force_terminal=True), keep=keep) as bars:
        bars.say("model tiny")
        bars.say("model tiny")
        bars.show("tent seed 0", Progress(4, 4, "drawing"))
        for done in (10, 20):
            bars.show("tent seed 0", Progress(done, 20, "", 52.4, 71.25, 65.0))
    shown = out.getvalue()
    assert shown.count("model tiny") == 1
    assert "drawing" in shown
    last = shown.rsplit("\x1b[2K", 1)[-1]
    assert ("accuracy 71.2 (zero-shot 65.0)" in last) == keep
