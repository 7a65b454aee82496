"""Runs with a sliding window, against a loop that prepares every window anew."""

import dataclasses

import numpy as np
import pytest
import torch

import ramen
from ramen.data.catalogue import load
from ramen.data.streams.stream import make_stream
from ramen.experiments import checkpoint
from ramen.experiments.group import Team
from ramen.experiments.options import ExperimentOptions
from ramen.experiments.run import Run, SlidingWindow
from ramen.experiments.store import read_result
from ramen.experiments.workers import run_all
from tests.experiments.tiny_runs import DATA, planned

pytestmark = pytest.mark.usefixtures("one_classifier")


class Killed(BaseException):
    """Ends a run without cleaning up."""


def plain_windows(classifier, experiment, stream):
    """The answers, the domains of their support, and how many images the method got."""
    method = ramen.create(experiment.method, classifier, **experiment.parameters)
    answers, tags, fed, begin = [], [], 0, 0
    for position in range(len(stream)):
        if position in stream.resets:
            method.reset()
            begin = position
        if (position - begin) % experiment.batch:
            continue
        end = min([position + experiment.batch, len(stream), *(r for r in stream.resets if r > position)])
        places = [i for i in range(begin, end) if i >= end - experiment.window]
        images = torch.cat([classifier.preprocess(stream.read(slice(i, i + 1))) for i in places])
        domains = torch.tensor([int(stream.domain[i]) for i in places])
        out = method.predict(images, tags=domains, return_support=method.retrieves)
        fed += len(places)
        for i in range(position, end):
            row = places.index(i)
            answers.append(int(out.logits[row].argmax()))
            if out.support is not None:
                tags += [
                    (int(stream.domain[i]), int(t)) for t in out.support.tags[row][out.support.valid[row]]
                ]
    return answers, tags, fed


@pytest.mark.parametrize(
    ("method", "protocol", "batch", "window"),
    [("tent", "mixed", 1, 4), ("entmin", "single", 3, 5), ("ramen", "single", 2, 6), ("clip", "mixed", 4, 4)],
)
def test_a_window_is_the_plain_loop(tmp_path, classifier, method, protocol, batch, window):
    (one,) = planned(method, protocol=protocol, batch=batch, window=window)
    (result,) = run_all([one], tmp_path)
    stream = make_stream(protocol, load("tiny", **DATA), 0)
    answers, tags, fed = plain_windows(classifier, one, stream)
    right = np.array(answers) == stream.labels()
    names = [domain.name for domain in stream.dataset.domains]
    expected = {name: 100 * right[stream.domain == number].mean() for number, name in enumerate(names)}
    assert result["scores"]["domains"] == pytest.approx(expected)
    assert result["experiment"]["window"] == window
    plain = ramen.create(method, classifier, **one.parameters).passes()
    assert result["cost"]["passes"]["forward"] == pytest.approx(plain[0] * fed / len(stream))
    assert result["cost"]["images"] == len(stream)
    if result["composition"] is not None:
        counts = [[sum(pair == (a, b) for pair in tags) for b in range(4)] for a in range(4)]
        assert result["composition"]["counts"] == counts


def test_a_run_with_a_window_resumes(tmp_path, monkeypatch):
    """What was in the window is read again."""
    monkeypatch.setattr(checkpoint, "_PATIENCE", 0)
    (one,) = planned("entmin", batch=2, window=7)
    (whole,) = run_all([one], tmp_path / "whole")
    step = Run.step

    def fail(self, batch, images):
        step(self, batch, images)
        if batch.start == 12:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", fail)
        with pytest.raises(Killed):
            run_all([one], tmp_path / "broken", checkpoint_seconds=0)
    (result,) = run_all([one], tmp_path / "broken")
    assert result["provenance"]["resumed"] == 1
    assert result["scores"] == whole["scores"]
    assert read_result(one.path(tmp_path / "broken"))["experiment"]["window"] == 7


def test_refused_images_are_counted_once_however_often_they_come(tmp_path, monkeypatch):
    step = Run.step

    def spoil(self, batch, images):
        images = images.clone()
        images[0, 0, 0, 0] = float("nan")
        return step(self, batch, images)

    monkeypatch.setattr(Run, "step", spoil)
    (result,) = run_all(planned("tent", batch=4, window=12), tmp_path)
    assert result["scores"]["refused"] == result["cost"]["batches"] == 8


def test_positions_stop_at_resets():
    stream = make_stream("single", [[0] * 5, [0] * 4])
    window = SlidingWindow(4, stream, None)
    spans = [(s.start, s.stop) for s in map(window.positions, stream.batches(2))]
    assert spans == [(0, 2), (0, 4), (1, 5), (5, 7), (5, 9)]
    assert window.repetition(2) == (2 + 4 + 4 + 2 + 4) / 9


def test_a_window_is_part_of_what_decides_a_result():
    (plain,) = planned("tent")
    windowed = dataclasses.replace(plain, window=20)
    assert "window" not in plain.identity()
    assert windowed.key() != plain.key()
    with pytest.raises(ValueError, match="window must be at least batch=7, got 6"):
        dataclasses.replace(plain, window=6)
    (drafted,) = ExperimentOptions({"batch": 2, "window": 16}).draft(["tent"])
    assert (drafted.batch, drafted.window) == (2, 16)


def test_processes_cannot_share_a_window(classifier):
    (one,) = planned("ramen", window=20)
    team = Team()
    team.group = object()
    with pytest.raises(ValueError, match="window must be None"):
        Run(one, classifier, make_stream("mixed", load("tiny", **DATA)), team)
