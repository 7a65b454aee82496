"""Runs that are killed or interrupted resume with the same scores, and repeat no finished work."""

import json
import os
import signal
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from ramen.experiments import checkpoint, run
from ramen.experiments.checkpoint import Checkpoint
from ramen.experiments.experiment import plan
from ramen.experiments.run import Run
from ramen.experiments.store import Store
from ramen.experiments.workers import run_all
from ramen.models.names import load_model
from ramen.utils.sealed import seal, unseal
from ramen.utils.signals import StoppedError
from tests.experiments.tiny_runs import files_of

DATA = {"pictures": 6, "domains": ["fog", "impulse_noise", "neon", "chalk"]}


def experiment(method="ramen", **changes):
    fixed = (
        ["ramen.capacity=20", "ramen.codec=fp32"] if method == "ramen" else []
    )  # otherwise the free memory decides
    (one,) = plan([method], **{"data_options": DATA, "batch": 4, "settings": fixed, **changes})
    return one


@pytest.fixture(autouse=True)
def quick(one_classifier, monkeypatch):
    monkeypatch.setattr(checkpoint, "_PATIENCE", 0)


@pytest.fixture(scope="module")
def whole(one_classifier, tmp_path_factory):
    """The results of runs that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    return lambda one: run_all([one], folder)[0]


@pytest.fixture
def steps(monkeypatch):
    """The batches that runs work on."""
    seen, step = [], Run.step

    def count(self, batch, images):
        seen.append(batch.start)
        return step(self, batch, images)

    monkeypatch.setattr(Run, "step", count)
    return seen


class Crash(BaseException):
    """Ends a run without cleaning up."""


def crash_at(monkeypatch, position, kind=Crash):
    step = Run.step

    def fail(self, batch, images):
        step(self, batch, images)
        if batch.start == position:  # the method has seen the batch, but nothing has recorded it
            self.done = batch.start
            raise kind

    monkeypatch.setattr(Run, "step", fail)


def same(result, other):
    assert result["scores"] == other["scores"]
    assert result["composition"] == other["composition"]
    assert result["cost"]["batches"] == other["cost"]["batches"]


KILLED = """
import os, signal, sys
from pathlib import Path
from ramen.experiments import checkpoint
from ramen.experiments.experiment import plan
from ramen.experiments.run import Run
from ramen.experiments.workers import run_all

checkpoint._PATIENCE = 0
where, at = sys.argv[1], int(sys.argv[2])

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "predict":
    add = Run.step
    Run.step = lambda self, batch, images: die() if batch.start == at else add(self, batch, images)
else:  # while a checkpoint is being written
    seal = checkpoint.seal
    def killed(tensors, about):
        for number, piece in enumerate(seal(tensors, about)):
            if number == 2 and f'"done": {at},' in about["facts"]:
                die()
            yield piece
    checkpoint.seal = killed
(one,) = plan(["ramen"], data_options=%r, batch=4, settings=["ramen.capacity=20", "ramen.codec=fp32"])
run_all([one], Path(sys.argv[3]), checkpoint_seconds=0)
"""


@pytest.mark.parametrize(("where", "at", "saved"), [("predict", 12, 12), ("checkpoint", 12, 8)])
def test_killed_and_started_again(tmp_path, whole, steps, where, at, saved):
    one = experiment()
    done = subprocess.run([sys.executable, "-c", KILLED % DATA, where, str(at), str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not one.path(tmp_path).exists()
    (result,) = run_all([one], tmp_path)
    assert steps == list(range(saved, 24, 4))  # nothing before is done again
    assert result["provenance"]["resumed"] == 1
    same(result, whole(one))
    assert sorted(one.path(tmp_path).parent.iterdir()) == files_of(one, out=tmp_path)


@pytest.mark.parametrize("method", ["note", "rotta", "tda"])
def test_methods_with_state_resume_exactly(tmp_path, whole, monkeypatch, method):
    one = experiment(method)
    with monkeypatch.context() as patch:
        crash_at(patch, 16)
        with pytest.raises(Crash):
            run_all([one], tmp_path, checkpoint_seconds=0)
    (result,) = run_all([one], tmp_path)
    same(result, whole(one))


def test_single_domains_are_saved_when_each_is_done(tmp_path, whole, monkeypatch, steps):
    one = experiment(protocol="single")
    with monkeypatch.context() as patch:
        crash_at(patch, 16)  # in the third domain
        with pytest.raises(Crash):
            run_all([one], tmp_path, checkpoint_seconds=10_000)
    (file,) = one.path(tmp_path).parent.glob(".*.ckpt")
    names = safetensors.torch.load_file(file).keys()
    assert not any(name.startswith("method.") for name in names)  # it is reset there anyway
    steps.clear()
    (result,) = run_all([one], tmp_path)
    assert steps[0] == 12
    same(result, whole(one))


def test_refused_images_are_counted_once(tmp_path, monkeypatch):
    """In finished parts and in the current one, across an interruption."""
    one = experiment(protocol="single")
    step = Run.step

    def spoil(self, batch, images):
        images = images.clone()
        images[0, 0, 0, 0] = float("nan")
        step(self, batch, images)

    monkeypatch.setattr(Run, "step", spoil)
    (plain,) = run_all([one], tmp_path / "whole")
    assert plain["scores"]["refused"] == plain["cost"]["batches"] == 8
    for position in (16, 18):
        with monkeypatch.context() as patch:
            crash_at(patch, position)
            with pytest.raises(Crash):
                run_all([one], tmp_path / "broken", checkpoint_seconds=0)
    (result,) = run_all([one], tmp_path / "broken")
    assert result["scores"]["refused"] == 8
    assert result["provenance"]["resumed"] == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_a_checkpoint_and_says_how_to_resume(
    tmp_path, whole, monkeypatch, steps, capsys, number, code
):
    handler = signal.getsignal(number)
    one = experiment()
    with monkeypatch.context() as patch:
        step = Run.step

        def interrupt(self, batch, images):
            if batch.start == 8:
                os.kill(os.getpid(), number)  # in the middle of a batch
            step(self, batch, images)

        patch.setattr(Run, "step", interrupt)
        with pytest.raises(StoppedError) as stopped:
            run_all([one], tmp_path)
    assert stopped.value.exit_code == code
    assert "Stopped after 12 of 24 images. The same command resumes." in capsys.readouterr().err
    assert signal.getsignal(number) is handler
    steps.clear()
    (result,) = run_all([one], tmp_path)
    assert "ramen, seed 0: resuming after 12 images." in capsys.readouterr().err
    assert steps[0] == 12
    same(result, whole(one))


def interrupted_run(one, out, monkeypatch):
    with monkeypatch.context() as patch:
        crash_at(patch, 16)
        with pytest.raises(Crash):
            run_all([one], out, checkpoint_seconds=0)
    (file,) = one.path(out).parent.glob(".*.ckpt")
    return file


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


def lose_a_fact(file):
    tensors, about = unseal(file.read_bytes())
    facts = json.loads(about["facts"])
    del facts["seconds"]
    file.write_bytes(b"".join(seal(tensors, {**about, "facts": json.dumps(facts)})))


def another_model(file):
    tensors, about = unseal(file.read_bytes())
    identity = json.loads(about["identity"])
    identity["classifier"]["weights"] = "sha256:0"
    file.write_bytes(b"".join(seal(tensors, {**about, "identity": json.dumps(identity)})))


def as_before(file):
    """Checkpoints were folders once."""
    file.with_suffix(".partial").mkdir()
    file.rename(file.with_suffix(".partial") / "tensors")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (damage, "the checksum of"),
        (cut, "it ends within"),
        (as_before, "it was written by an earlier version"),
        (lose_a_fact, "'seconds'"),
        (another_model, "it belongs to a run with another classifier"),
    ],
)
def test_a_checkpoint_that_cannot_be_used(tmp_path, whole, monkeypatch, steps, capsys, harm, why):
    one = experiment()
    file = interrupted_run(one, tmp_path, monkeypatch)
    harm(file)
    steps.clear()
    (result,) = run_all([one], tmp_path)
    said = capsys.readouterr().err
    assert "cannot be used (" in said
    assert why in said
    assert "starting over" in said
    (aside,) = file.parent.glob("*-unusable-*")  # nothing is thrown away
    assert str(aside) in said
    assert steps[0] == 0
    assert result["provenance"]["resumed"] == 0
    same(result, whole(one))


def test_a_full_disk_does_not_end_a_run(tmp_path, whole, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "seal", full)
    one = experiment()
    (result,) = run_all([one], tmp_path, checkpoint_seconds=0)
    said = capsys.readouterr().err
    assert said.count("No checkpoint can be written ([Errno 28] No space left on device: '") == 1
    same(result, whole(one))
    assert sorted(one.path(tmp_path).parent.iterdir()) == files_of(one, out=tmp_path)


def test_writing_that_takes_long_is_done_less_often(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint, "_PATIENCE", 20)
    saved = Checkpoint(tmp_path / "one.ckpt", {}, 120.0, print, lambda: now[0])

    def slow():
        now[0] += 30
        return {}, {}

    for due, at in ((False, 119.0), (True, 120.0)):
        now[0] = at
        assert saved.due() == due
    saved.save(slow)
    for due, at in ((False, 599.0), (True, 600.0)):
        now[0] = 150 + at
        assert saved.due() == due


def test_only_the_last_checkpoint_is_kept(tmp_path):
    saved = Checkpoint(tmp_path / ".one.ckpt", {"a": 1}, 0.0, print)
    for number in range(3):
        saved.save(lambda number=number: ({"done": number}, {"x": torch.tensor(number)}))
    assert os.listdir(tmp_path) == [".one.ckpt"]
    facts, tensors = saved.load()
    assert (facts, int(tensors["x"])) == ({"done": 2}, 2)
    saved.remove()
    assert not os.listdir(tmp_path)


def test_who_comes_second_reads_what_the_first_finished(tmp_path, whole, monkeypatch):
    """The result appears between the first look and the lock."""
    one = experiment()
    result = whole(one)
    found = iter([None, result])
    monkeypatch.setattr(Store, "result", lambda *_: next(found))
    monkeypatch.setattr(Run, "__init__", lambda *_: pytest.fail("it ran again"))
    assert run_all([one], tmp_path) == [result]


@pytest.mark.gpu
def test_on_a_gpu(tmp_path, monkeypatch):
    """Batches come from threads, the state is moved to the host and back."""
    monkeypatch.setattr(run, "load_model", load_model)
    one = experiment(device="cuda", dtype="float16")
    (plain,) = run_all([one], tmp_path / "whole")
    assert plain["cost"]["peak_device_bytes"] > 10**6
    assert plain["provenance"]["hardware"]["name"] == torch.cuda.get_device_name()
    interrupted_run(one, tmp_path / "broken", monkeypatch)
    (result,) = run_all([one], tmp_path / "broken")
    assert result["provenance"]["resumed"] == 1
    assert result["scores"]["average"] == pytest.approx(plain["scores"]["average"], abs=5)
    assert result["composition"]["domains"] == plain["composition"]["domains"]
