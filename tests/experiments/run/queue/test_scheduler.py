"""The queue, with an executor that does what a test says."""

import io
import os
import signal
import socket

import pytest
from rich.console import Console

from ramen.experiments.run.queue import scheduler
from ramen.experiments.run.queue.executor import JobExecutor
from ramen.experiments.run.queue.messages import JobAdvanced, JobDied, JobEnd, JobSaid, JobStarted
from ramen.experiments.run.queue.scheduler import run_jobs
from ramen.utils.stopping import StoppedError
from tests.fakes.jobs import SmallJob


class ScriptedExecutor(JobExecutor):
    """Each submission of a job is answered with the next of its messages."""

    def __init__(self, scripts, room=2, retries=0):
        self.scripts, self.room, self.retries = scripts, room, retries
        self.running, self.submitted, self.stopped, self.most = {}, [], False, 0

    def has_room(self):
        return len(self.running) < self.room

    def submit(self, number, job):
        self.submitted.append(number)
        self.running[number] = self.scripts[number].pop(0)
        self.most = max(self.most, len(self.running))

    def wait(self, seconds):
        messages = []
        for number, script in list(self.running.items()):
            if self.stopped:
                script = [JobEnd("stopped")]
            if callable(script):
                script = script()
            messages += [(number, one) for one in script]
            if script and isinstance(script[-1], JobEnd | JobDied):
                del self.running[number]
        return messages

    def stop(self):
        self.stopped = True

    def close(self):
        pass


DONE = JobEnd("finished", 1)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(scheduler, "_BUSY_SECONDS", 0.0)


def go(tmp_path, executor, count):
    jobs = [SmallJob(f"job{number}", tmp_path) for number in range(count)]
    said = io.StringIO()
    return jobs, run_jobs(jobs, executor, Console(file=said, width=200)), said


def test_no_more_at_once_than_there_is_room(tmp_path):
    executor = ScriptedExecutor([[[JobStarted(1, "here"), DONE]] for _ in range(5)], room=2)
    jobs, ends, said = go(tmp_path, executor, 5)
    assert executor.submitted == list(range(5))
    assert executor.most == 2
    assert ends == [DONE] * 5
    assert [job.delivered for job in jobs] == [[1]] * 5
    assert said.getvalue().count("finished in") == 5


def test_a_failure_does_not_end_the_others_and_keeps_its_log(tmp_path):
    failed = JobEnd("failed", reason="no", log="from another machine\n")
    executor = ScriptedExecutor([[[failed]], [[DONE]]])
    jobs, ends, said = go(tmp_path, executor, 2)
    assert [end.state for end in ends] == ["failed", "finished"]
    assert jobs[0].log.read_text() == "from another machine\n"  # this machine had none
    assert "job0: failed: no" in said.getvalue()


def test_the_log_of_an_earlier_failure_goes_when_the_job_is_finished(tmp_path):
    (tmp_path / "job0.log").write_text("old")
    go(tmp_path, ScriptedExecutor([[[DONE]]]), 1)
    assert not list(tmp_path.iterdir())


def test_the_dead_are_started_again_so_often_and_no_more(tmp_path):
    dead = [JobStarted(1, "here"), JobDied("its node died")]
    executor = ScriptedExecutor([[dead, dead, [DONE]], [dead, dead, dead]], retries=2)
    _, ends, said = go(tmp_path, executor, 2)
    assert sorted(executor.submitted) == [0, 0, 0, 1, 1, 1]
    assert ends[0] == DONE
    assert (ends[1].state, ends[1].reason) == ("failed", "its node died; the same command resumes it")
    assert "job0: its node died; it is started again" in said.getvalue()


@pytest.mark.usefixtures("quick")
def test_what_another_command_does_is_awaited_while_others_run(tmp_path):

    def one_by_one(*messages):
        left = iter(messages)
        return lambda: [next(left)]

    begun, busy = JobStarted(1, socket.gethostname()), JobEnd("busy", reason="process 7 does it")
    tries = [one_by_one(begun, busy), one_by_one(begun, busy), one_by_one(begun, JobAdvanced(1, 2), DONE)]
    executor = ScriptedExecutor([tries, [[DONE]]], room=1)
    _, ends, said = go(tmp_path, executor, 2)
    assert ends == [DONE, DONE]
    lines = [line.split(";")[0] for line in said.getvalue().splitlines() if line.startswith("job0")]
    assert lines[:3] == ["job0: running", "job0: running elsewhere: process 7 does it", "job0: running"]
    assert lines[3].startswith("job0: finished")
    assert len(lines) == 4


def test_settings_that_jobs_share_are_said_once(tmp_path):
    executor = ScriptedExecutor([[[JobSaid("model tiny"), JobSaid(f"method {n}"), DONE]] for n in "ab"])
    _, _, said = go(tmp_path, executor, 2)
    assert said.getvalue().count("model tiny") == 1
    assert said.getvalue().count("method") == 2


def test_a_late_report_changes_nothing(tmp_path):
    late = [JobEnd("failed", reason="no")]
    executor = ScriptedExecutor([[late], [lambda: [DONE]]])
    wait = executor.wait
    executor.wait = lambda seconds: [*wait(seconds), (0, JobStarted(1, "x")), (0, JobAdvanced(1, 2))]
    _, ends, said = go(tmp_path, executor, 2)
    assert [end.state for end in ends] == ["failed", "finished"]
    assert "running" not in said.getvalue()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_stop_what_runs_and_drop_what_waits(tmp_path, number, code):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def interrupted():
        os.kill(os.getpid(), number)
        return [JobStarted(1, "here")]

    executor = ScriptedExecutor([[interrupted], [[DONE]]], room=1)
    with pytest.raises(StoppedError) as stopped:
        go(tmp_path, executor, 2)
    assert stopped.value.exit_code == code
    assert executor.submitted == [0]
    assert executor.stopped
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert not list(tmp_path.iterdir())


def test_the_second_signal_does_not_wait(tmp_path):
    class DeafExecutor(ScriptedExecutor):
        def stop(self):
            pass

    def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        return []

    with pytest.raises(KeyboardInterrupt) as stopped:
        go(tmp_path, DeafExecutor([[interrupted]]), 1)
    assert not isinstance(stopped.value, StoppedError)


def test_what_finishes_while_it_is_asked_to_stop_is_kept(tmp_path):
    class FinishingExecutor(ScriptedExecutor):
        def stop(self):
            self.running[0] = [DONE]

    def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        return []

    job = SmallJob("job", tmp_path)
    with pytest.raises(StoppedError):
        run_jobs([job], FinishingExecutor([[interrupted]]), Console(quiet=True))
    assert job.delivered == [1]
