"""A job in this process: what it returns, says and prints."""

import pytest

from ramen.experiments.run.queue.job import perform
from ramen.experiments.run.queue.messages import JobAdvanced, JobEnd, JobSaid, JobStarted
from ramen.experiments.run.resources import Resources
from tests.fakes.jobs import SmallJob


def run(folder, work, name="small"):
    messages = []
    job = SmallJob(name, folder, work)
    return job, perform(job, messages.append, Resources()), messages


def test_a_finished_job_leaves_no_log(tmp_path):
    _, end, messages = run(tmp_path / "new", "square")
    assert end == JobEnd("finished", 9)
    assert [type(one) for one in messages] == [JobStarted, JobSaid, JobAdvanced]
    assert messages[1:] == [JobSaid("small begins"), JobAdvanced(1, 1, "squaring")]
    assert not list((tmp_path / "new").iterdir())


def test_a_failed_job_leaves_all_that_was_printed(tmp_path, capfd):
    job, end, _ = run(tmp_path, "fail")
    assert (end.state, end.reason) == ("failed", "RuntimeError: it cannot be done")
    lines = end.log.splitlines()
    assert lines[:3] == ["small begins", "a line of a library", "a line of a child"]
    assert lines[-1] == "RuntimeError: it cannot be done"
    assert "Traceback" in end.log
    assert job.live_log().read_text() == end.log
    assert capfd.readouterr() == ("", "")
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"  # standard output is back


@pytest.mark.parametrize(
    ("work", "state", "reason"),
    [
        ("refuse", "failed", "number must be positive, got -1"),
        ("meet", "busy", "process 7 on far-away is running this experiment"),
        ("interrupted", "stopped", ""),
    ],
)
def test_ends(tmp_path, work, state, reason):
    _, end, _ = run(tmp_path, work)
    assert (end.state, end.reason) == (state, reason)
    assert bool(list(tmp_path.iterdir())) == (state == "failed")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    _, end, messages = run(tmp_path / "file" / "folder", "square")
    assert end.state == "failed"
    assert "this is a file, and a folder is expected" in end.reason
    assert not messages


def test_two_commands_never_share_a_log(tmp_path):
    first, second = SmallJob("a", tmp_path, owner="one"), SmallJob("a", tmp_path, owner="two")
    assert first.log == second.log
    assert first.live_log() != second.live_log()
