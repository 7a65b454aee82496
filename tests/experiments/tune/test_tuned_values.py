"""Chosen values are used as they were chosen, and never where they were chosen."""

import math

import pytest

from ramen.experiments.plan.experiment import Experiment, plan
from ramen.experiments.run.execute import run_experiments
from ramen.experiments.run.results import DamagedResultError, write_result
from ramen.experiments.tune.tuned_values import TunedValues, refuse_tuning_stream
from tests.fakes.results import sample_result

DATA = {
    "search": "0123456789ab",
    "model": "tiny",
    "data": "tiny",
    "domains": ["spatter", "saturate"],
    "seeds": [1000, 1001],
    "protocol": "mixed",
    "batch": 100,
    "budget": 8,
    "methods": {
        "tent": {"chosen": {"lr": 0.003}},
        "mint": {"chosen": {"lr": 0.02, "prior": "inf"}},
        "clip": {"chosen": {}},
    },
}


def written(folder, **changes):
    path = folder / "search.json"
    write_result(
        path, {"kind": "study", "study": "tune", "title": "", "tables": [], "data": {**DATA, **changes}}
    )
    return path


@pytest.fixture
def tuned(tmp_path):
    return TunedValues.read(written(tmp_path))


def test_values_are_between_preset_and_settings(tuned):
    assert plan(["tent"])[0].parameters["lr"] == 1e-3  # the preset's
    assert plan(["tent"], tuned=tuned)[0].parameters["lr"] == 0.003
    assert plan(["tent"], tuned=tuned, settings=["lr=0.5"])[0].parameters["lr"] == 0.5
    (mint,) = plan(["mint"], tuned=tuned)
    assert mint.parameters["prior"] == math.inf
    assert plan(["clip"], tuned=tuned)[0].parameters == plan(["clip"])[0].parameters


def test_results_say_where_values_come_from(tuned, tmp_path):
    options = {"data_options": {"pictures": 3, "domains": ["fog"]}, "batch": 10}
    (experiment,) = plan(["tent"], tuned=tuned, **options)
    (result,) = run_experiments([experiment], tmp_path / "out")
    assert result["experiment"]["tuned"] == "0123456789ab"
    assert result["tuned"] == {
        **{name: value for name, value in DATA.items() if name != "methods"},
        "parameters": {"lr": 0.003},
    }
    assert Experiment.from_result(result) == experiment
    assert run_experiments([experiment], tmp_path / "out") == [result]  # found again
    (by_hand,) = plan(["tent"], settings=["lr=0.003"], **options)
    assert by_hand.key() != experiment.key()  # so a table never mixes them up
    (other,) = run_experiments([by_hand], tmp_path / "out")
    assert "tuned" not in other
    assert other["scores"] == result["scores"]


def test_streams_of_the_search_are_refused(tuned, tmp_path):
    with pytest.raises(ValueError, match="--tuned: the values were chosen on seed 1001 of tiny"):
        plan(["tent"], tuned=tuned, seeds=(0, 1001))
    options = {"domains": ["fog", "spatter"], "pictures": 3}
    with pytest.raises(ValueError, match="--tuned: the values were chosen on spatter of tiny"):
        plan(["tent"], tuned=tuned, data_options=options)
    # also if the plan was made before anybody knew
    (experiment,) = plan(["tent"], tuned=tuned)
    unchecked = Experiment(**{**vars(experiment), "data_options": options})
    with pytest.raises(ValueError, match="they must not be tested there"):
        run_experiments([unchecked], tmp_path)
    assert not list(tmp_path.glob("tiny/**/*.json"))


def test_what_counts_as_the_same_stream(tuned):
    record = tuned.record("tent", "tiny")
    refuse_tuning_stream(record, "tiny", 0, ["fog"])
    refuse_tuning_stream(record, "tiny", 0)
    refuse_tuning_stream(record, "cifar10c", 1000, ["spatter"])
    for seed, domains in ((1000, ["fog"]), (1000, None), (0, ["saturate"]), (0, ["fog", "spatter"])):
        with pytest.raises(ValueError, match="--tuned"):
            refuse_tuning_stream(record, "tiny", seed, domains)


def test_values_for_another_model_or_method_are_refused(tuned):
    with pytest.raises(ValueError, match=r"the search did not include method 'ramen'.*clip, mint, tent"):
        plan(["tent", "ramen"], tuned=tuned)
    with pytest.raises(ValueError, match="chosen for model 'tiny', got 'ViT-B-32/openai'"):
        plan(["tent"], tuned=tuned, model="ViT-B-32/openai")


def test_files_that_are_something_else(tmp_path):
    write_result(tmp_path / "run.json", sample_result())
    with pytest.raises(ValueError, match="is not a result of `ramen tune`, but of a run"):
        TunedValues.read(tmp_path / "run.json")
    write_result(tmp_path / "study.json", {"kind": "study", "study": "harm"})
    with pytest.raises(ValueError, match="but of a study, 'harm'"):
        TunedValues.read(tmp_path / "study.json")
    with pytest.raises(DamagedResultError, match="it has no"):
        TunedValues.read(written(tmp_path, methods={"tent": {}}))
    with pytest.raises(FileNotFoundError):
        TunedValues.read(tmp_path / "nothing.json")
