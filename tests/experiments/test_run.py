"""What the runner does with experiments that are finished, cannot run, or share resources."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

import ramen
from ramen.data.drawings.shapes import OBJECTS
from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.run import Run
from ramen.experiments.store import DamagedResultError, read_result, write_result
from ramen.experiments.workers import run_all
from ramen.methods import _registry
from tests.experiments.tiny_runs import files_of, planned

pytestmark = pytest.mark.usefixtures("one_classifier")


def test_a_finished_run_is_read_and_not_repeated(mixed, monkeypatch):
    out, results = mixed
    monkeypatch.setattr(Run, "__init__", lambda *_: pytest.fail("it ran again"))
    assert run_all(planned("ramen", "tent"), out) == list(results.values())
    assert read_result(planned("tent")[0].path(out)) == results["tent"]
    assert sorted((out / "tiny/mixed").iterdir()) == files_of(*planned("ramen", "tent"), out=out)


def test_the_seed_decides_the_stream(tmp_path, mixed):
    first, second = run_all(planned("tent", seeds=[0, 1]), tmp_path)
    assert first["scores"] == mixed[1]["tent"]["scores"]
    assert first["provenance"]["stream"]["order"] != second["provenance"]["stream"]["order"]


def test_infinity(tmp_path):
    (experiment,) = planned("mint", protocol_parameters={"limit": 10})
    (result,) = run_all([experiment], tmp_path)
    assert result["experiment"]["parameters"]["prior"] == "inf"
    assert Experiment.from_result(read_result(experiment.path(tmp_path))).parameters["prior"] == math.inf
    assert run_all([experiment], tmp_path) == [result]


def test_results_that_are_not_of_this_experiment(mixed, tmp_path):
    _, results = mixed
    (experiment,) = planned("tent")
    path = experiment.path(tmp_path)
    write_result(path, {**results["tent"], "experiment": {**results["tent"]["experiment"], "batch": 11}})
    with pytest.raises(ValueError, match="is the result of another experiment"):
        run_all([experiment], tmp_path)
    write_result(path, {"kind": "run"})
    with pytest.raises(DamagedResultError, match="is not the result of a run: it has no 'provenance'"):
        run_all([experiment], tmp_path)
    path.write_text("{")
    with pytest.raises(DamagedResultError, match="is damaged"):
        run_all([experiment], tmp_path)


def test_data_that_moved_and_data_that_changed(tmp_path):
    rng = np.random.default_rng(0)
    labels, fog = rng.integers(0, 24, 10), rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", labels=labels, fog=fog, classes=np.array(list(OBJECTS)))
    (experiment,) = plan(["ensemble"], data="arrays", root=tmp_path / "a.npz", model="tiny")
    (result,) = run_all([experiment], tmp_path / "out")
    shutil.copy(tmp_path / "a.npz", tmp_path / "b.npz")
    moved = replace(experiment, root=str(tmp_path / "b.npz"))
    assert run_all([moved], tmp_path / "out") == [result]
    np.savez(tmp_path / "b.npz", labels=labels, fog=255 - fog, classes=np.array(list(OBJECTS)))
    with pytest.raises(
        ValueError, match=r"is the result of other data, in .*a\.npz: .*b\.npz differs in identity"
    ):
        run_all([moved], tmp_path / "out")


class NeedsText(ramen.Method):
    """Writes a prompt that nobody can embed."""

    def adapt(self, images, usable):
        from ramen.models.classifier import MissingPartError

        raise MissingPartError("there is no text encoder")


def test_methods_that_the_model_cannot_serve(tmp_path, monkeypatch):

    known = {name: _registry.get_method(name) for name in ramen.list_methods()}
    monkeypatch.setattr(_registry, "_METHODS", known)
    facts = {"title": "t", "venue": "", "paper": "p", "updates": "nothing", "predicts_with": "it"}
    ramen.register(ramen.MethodInfo("own", **facts, batch_dependent=False, forwards=1, backwards=0))(
        NeedsText
    )
    experiments = planned("own", "ensemble", protocol_parameters={"limit": 10})
    with pytest.raises(ValueError, match="there is no text encoder"):
        run_all(experiments, tmp_path)
    skipped, result = run_all(experiments, tmp_path, on_missing="skip")
    expected = {"kind": "skipped", "experiment": experiments[0].identity()}
    assert skipped == {**expected, "reason": "there is no text encoder"}
    assert result["kind"] == "run"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == files_of(experiments[1], out=tmp_path)
    wrong = planned("ramen", settings=["capacity=1", "topk=2"])
    with pytest.raises(ValueError, match="topk must be between 1 and capacity=1"):  # that is nobody's lack
        run_all(wrong, tmp_path, on_missing="skip")


def test_gradual_needs_severities(tmp_path):
    with pytest.raises(ValueError, match="protocol 'gradual' needs severities, which data set 'tiny'"):
        run_all(planned("ensemble", protocol="gradual"), tmp_path)


def test_gradual_goes_up_to_the_chosen_severity(tmp_path):
    np.save(tmp_path / "labels.npy", np.tile([0, 1], 5))
    np.save(tmp_path / "fog.npy", np.zeros((10, 32, 32, 3), dtype=np.uint8))
    options = {"severity": 3, "domains": ["fog"]}
    (experiment,) = plan(
        ["ensemble"], model="tiny", data="cifar10c", root=tmp_path, protocol="gradual", data_options=options
    )
    (result,) = run_all([experiment], tmp_path / "out")
    assert result["provenance"]["stream"]["severities"] == [1, 2, 3]
    assert result["cost"]["images"] == 2 * 5  # 1, 2, 3, 2, 1


def test_the_console_says_what_a_reader_must_know(tmp_path, capsys):
    run_all(planned("tent", "ramen", protocol_parameters={"limit": 10}), tmp_path)
    said = capsys.readouterr().err
    for word in (
        "model      tiny",
        "sha256:",
        "32x32 pixels, bicubic",
        "ensemble: 7",
        "seed 0",
        "never within the stream",
    ):
        assert said.count(word) == 1, word
    assert "predicts with the forward pass before the update; lr=0.001 (preset tiny)" in said
    assert "predicts with a second forward pass after the update" in said
