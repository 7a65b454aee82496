"""Searches: the same budget for every method, the best mean wins, and what was tuned on is never tested."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import ramen
from ramen.data.catalogue import describe, list_datasets, load
from ramen.data.corruptions import EXTRA_CORRUPTIONS
from ramen.experiments.experiment import Experiment, plan
from ramen.experiments.store import DamagedResultError, read_result, write_result
from ramen.experiments.tune import (
    SearchSpace,
    SearchSpaces,
    TunedValues,
    chosen_table,
    load_spaces,
    plan_search,
    search_result,
    tuning_domains,
)
from ramen.experiments.unlabelled import Watch
from ramen.experiments.workers import run_all
from ramen.models.classifier import MissingPartError
from ramen.models.tiny_clip.model import load_tiny
from tests.fakes.results import sample_result

# -- search spaces ----------------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    (folder / "spaces.toml").write_text(text)
    return folder / "spaces.toml"


@pytest.mark.parametrize("method", ramen.list_methods())
def test_every_method_has_the_whole_budget_or_nothing_to_choose(method):
    spaces = load_spaces()
    space = spaces.of(method)
    settings = space.settings()
    assert len(settings) == (spaces.budget if space.grid else 1)
    assert len({repr(setting) for setting in settings}) == len(settings)
    has_rate = "lr" in ramen.describe(method).defaults
    assert space.grid or not has_rate, "a method with a learning rate must not go without a search"


@pytest.fixture(scope="module")
def classifier():
    return load_tiny(["cat", "house", "tree", "star"])


@pytest.mark.parametrize("method", ramen.list_methods())
def test_methods_take_what_is_tried(method, classifier):
    for setting in load_spaces().of(method).settings():
        try:
            made = ramen.create(method, classifier, **setting)
        except MissingPartError:
            return
        for name, value in setting.items():
            assert value == "auto" or made.parameters[name] == value


def test_settings_are_all_combinations():
    space = SearchSpace("mint", {"lr": (1, 2), "prior": (math.inf, 3)}, "as given")
    assert space.settings() == [
        {"lr": 1, "prior": math.inf},
        {"lr": 1, "prior": 3},
        {"lr": 2, "prior": math.inf},
        {"lr": 2, "prior": 3},
    ]
    assert SearchSpace("clip", {}, "nothing to choose").settings() == [{}]


def test_a_file_of_ones_own(tmp_path):
    text = "budget = 2\n[default]\nlr = [1.0, 2.0]\n[tda]\npositive_beta = [3.0, inf]\n"
    spaces = load_spaces(write(tmp_path, text))
    assert spaces.of("tda").settings() == [{"positive_beta": 3.0}, {"positive_beta": math.inf}]
    assert spaces.of("tent").settings() == [{"lr": 1.0}, {"lr": 2.0}]
    assert spaces.of("ensemble").origin == "nothing to choose"
    without = load_spaces(write(tmp_path, "budget = 1\n"))
    assert without.of("tent").settings() == [{}]  # no grid for anybody: everybody runs once


# -- a search ---------------------------------------------------------------------------------------


SPACES = SearchSpaces(3, {"tda": {"positive_alpha": (0.5, 1.0, 2.0)}}, {"lr": (1e-3, 1e-2, 1e-1)})
OPTIONS = {"data_options": {"domains": list(EXTRA_CORRUPTIONS)}, "seeds": (1000, 1001)}


def planned(*methods, **changes):
    return plan_search(plan(methods, **{**OPTIONS, **changes}), SPACES)


def answers(search, accuracy):
    """Made-up results; ``accuracy`` of an experiment decides its scores."""
    results = []
    for run in search.experiments:
        result = sample_result(
            run.method, seed=run.seed, data="tiny", model="tiny", domains=EXTRA_CORRUPTIONS
        )
        result["experiment"] = run.identity()
        result["scores"]["average"] = accuracy(run)
        result["cost"] |= {"images": 10, "seconds": {"predict": 2.0, "read": 0.5}}
        result["cost"]["passes"] = {"forward": 2, "backward": 1}
        results.append(result)
    return results


def test_the_highest_mean_over_seeds_wins(tmp_path):
    table = {
        (1e-3, 1000): 50.0,
        (1e-3, 1001): 70.0,  # the best single seed
        (1e-2, 1000): 62.0,
        (1e-2, 1001): 62.0,
        (1e-1, 1000): 10.0,
        (1e-1, 1001): 69.0,
    }
    search = planned("tent", "clip")
    assert [run.parameters.get("lr") for run in search.experiments] == [1e-3] * 2 + [1e-2] * 2 + [
        1e-1
    ] * 2 + [None] * 2

    def accuracy(run):
        return 55.0 if run.method == "clip" else table[run.parameters["lr"], run.seed]

    result = search_result(search, answers(search, accuracy))
    write_result(tmp_path / "search.json", result)
    assert read_result(tmp_path / "search.json") == result
    data = result["data"]
    tent, clip = data["methods"]["tent"], data["methods"]["clip"]
    assert [trial["accuracy"] for trial in tent["trials"]] == [60.0, 62.0, 39.5]
    assert tent["trials"][0]["seeds"] == [50.0, 70.0]
    assert (tent["best"], tent["chosen"]) == (1, {"lr": 1e-2})
    assert tent["space"] == {"lr": [1e-3, 1e-2, 1e-1]}
    assert clip["chosen"] == {}
    assert clip["origin"] == "nothing to choose"
    one = {"images": 10, "seconds": 2.5, "forward_passes": 20, "backward_passes": 10}
    assert tent["trials"][0]["cost"] == {name: 2 * value for name, value in one.items()}
    assert tent["cost"] == {name: 6 * value for name, value in one.items()}
    assert clip["cost"] == {name: 2 * value for name, value in one.items()}
    assert data["cost"] == {name: 8 * value for name, value in one.items()}
    assert data["domains"] == list(EXTRA_CORRUPTIONS)
    assert (data["seeds"], data["budget"], data["search"]) == ([1000, 1001], 3, search.key())
    shown = chosen_table(data)  # `ramen report` shows it
    assert shown.columns[0].values[0] == next(iter(data["methods"]))
    assert [cell.text for cell in shown.cells()[0]][:6] == ["tent", "lr=0.01", "62.00", "+7.00", "39.50", "3"]


def test_of_equal_settings_the_first_wins():
    search = planned("tda")
    result = search_result(
        search, answers(search, lambda run: 60.0 + 1e-12 * run.parameters["positive_alpha"])
    )
    assert result["data"]["methods"]["tda"]["best"] == 0


def test_a_method_that_cannot_run_is_skipped():
    search = planned("tda", "tent")
    results = answers(search, lambda run: 60.0)
    results[:6] = [{"kind": "skipped", "experiment": {}, "reason": "it needs text"}] * 6
    data = search_result(search, results)["data"]
    assert data["skipped"] == {"tda": "it needs text"}
    assert list(data["methods"]) == ["tent"]
    only = planned("tda")
    with pytest.raises(ValueError, match="no method could run: tda: it needs text"):
        search_result(only, results[:6])


def test_the_key_changes_with_what_decides_the_choice():
    keys = {
        planned("tent").key(),
        planned("tda").key(),
        planned("tent", seeds=(1000,)).key(),
        planned("tent", batch=7).key(),
        planned("tent", protocol="single").key(),
        planned("tent", data_options={"domains": ["spatter"]}).key(),
        planned("tent", settings=["optimizer=sgd"]).key(),
        plan_search(plan(["tent"], **OPTIONS), SearchSpaces(1, {}, {"lr": (1.0,)})).key(),
    }
    assert len(keys) == 8
    assert planned("tent").key() == planned("tent").key()
    json.dumps(planned("tent").identity(), allow_nan=False)


def test_what_is_not_searched_can_be_set():
    free = planned("tent", settings=["optimizer=sgd"])
    assert all(run.parameters["optimizer"] == "sgd" for run in free.experiments)


@pytest.mark.parametrize("data", list_datasets())
def test_no_extra_domain_is_tested_by_default(data):
    extra = describe(data).extra_domains
    if data == "tiny":
        assert not {domain.name for domain in load(data, pictures=1).domains} & set(extra)
    assert extra == (EXTRA_CORRUPTIONS if data == "tiny" or data.endswith(("0c", "netc", "5k")) else ())
    if extra:
        assert tuning_domains(data, None) == list(extra)
        assert tuning_domains(data, ["spatter"]) == ["spatter"]
        with pytest.raises(ValueError, match=r"--domain must be one of .* for tests, got fog"):
            tuning_domains(data, ["spatter", "fog"])
    else:
        assert tuning_domains(data, ["fog"]) == ["fog"]
        with pytest.raises(ValueError, match=r"--domain must name domains that will not be tested"):
            tuning_domains(data, None)


# -- what was chosen --------------------------------------------------------------------------------


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
    write_result(path, {"kind": "study", "study": "tune", "title": "", "data": {**DATA, **changes}})
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
    (result,) = run_all([experiment], tmp_path / "out")
    assert result["experiment"]["tuned"] == "0123456789ab"
    assert result["tuned"] == {
        **{name: value for name, value in DATA.items() if name != "methods"},
        "parameters": {"lr": 0.003},
    }
    assert Experiment.from_result(result) == experiment
    assert run_all([experiment], tmp_path / "out") == [result]  # found again
    (by_hand,) = plan(["tent"], settings=["lr=0.003"], **options)
    assert by_hand.key() != experiment.key()  # so a table never mixes them up
    (other,) = run_all([by_hand], tmp_path / "out")
    assert "tuned" not in other
    assert other["scores"] == result["scores"]


def test_streams_of_the_search_are_refused(tuned, tmp_path):
    with pytest.raises(ValueError, match="--tuned: the values were chosen on seed 1001 of tiny"):
        plan(["tent"], tuned=tuned, seeds=(0, 1001))
    options = {"domains": ["fog", "spatter"], "pictures": 3}
    with pytest.raises(ValueError, match="--tuned: the values were chosen on spatter of tiny"):
        plan(["tent"], tuned=tuned, data_options=options)
    # also if nobody knew before the stream was made
    np.savez(tmp_path / "x.npz", labels=[0], spatter=np.zeros((1, 32, 32, 3), np.uint8), classes=["cat"])
    own = TunedValues.read(written(tmp_path, data="arrays"))
    (experiment,) = plan(["tent"], tuned=own, data="arrays", root=tmp_path / "x.npz", model="tiny")
    with pytest.raises(ValueError, match="they must not be tested there"):
        run_all([experiment], tmp_path / "out")
    assert not list(tmp_path.glob("out/**/*.json"))


def test_what_counts_as_the_same_stream(tuned):
    def on(seed, *domains, data="tiny"):
        root = None if data == "tiny" else "DATA"
        given = {"model": "tiny", "data": data, "root": root, "data_options": {"domains": list(domains)}}
        return plan(["tent"], tuned=tuned, seeds=[seed], **given)

    assert on(0, "fog")
    assert on(1000, "spatter", data="cifar10c")
    for seed, domains in ((1000, ["fog"]), (1000, []), (0, ["saturate"]), (0, ["fog", "spatter"])):
        with pytest.raises(ValueError, match="--tuned"):
            on(seed, *domains)


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


# -- without labels ---------------------------------------------------------------------------------


def blind(*moves_and_information):
    """A search of tent among as many settings as pairs of movement and information."""
    rates = tuple(1e-3 * (place + 1) for place in range(len(moves_and_information)))
    search = plan_search(plan(["tent"]), SearchSpaces(len(rates), {}, {"lr": rates}), images=50)
    cost = {"images": 50, "seconds": {"predict": 1.0}, "passes": {"forward": 1, "backward": 1}}
    about = {"zero_shot_information": 1.0, "provenance": {"stream": {"domains": ["fog"]}}}
    trials = [
        {"kind": "trial", "movement": moved, "information": told, "cost": cost, **about}
        for moved, told in moves_and_information
    ]
    return search_result(search, trials)


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        (((0.1, 1.2), (0.5, 1.5), (0.6, 1.4)), 1),
        (((0.1, 1.2), (0.5, 1.5), (0.71, 1.9)), 1),
        (((0.1, 1.2), (0.7, 1.9)), 1),
        (((0.9, 1.9), (0.8, 1.2)), 1),  # all move too far: the least of them
        (((0.2, 1.5), (0.1, 1.5)), 0),
    ],
)
def test_the_most_information_wins_among_moderate_movements(trials, best):
    data = blind(*trials)["data"]
    assert data["methods"]["tent"]["best"] == best
    assert (data["labels"], data["images"], data["seeds"]) == (False, 50, [0])
    shown = chosen_table(data)
    assert [column.head for column in shown.columns][2:5] == ["information", "above zero-shot", "movement"]


def test_values_without_labels_are_for_their_own_stream_alone(tmp_path):
    write_result(tmp_path / "search.json", blind((0.1, 1.2), (0.5, 1.5)))
    tuned = TunedValues.read(tmp_path / "search.json")
    (experiment,) = plan(["tent"], tuned=tuned)
    assert experiment.parameters["lr"] == 2e-3
    assert experiment.tuned["labels"] is False
    for argument, changed in (
        ("seed", {"seeds": (1,)}),
        ("protocol", {"protocol": "single"}),
        ("protocol_parameters", {"protocol_parameters": {"limit": 100}}),
        ("data_options", {"data_options": {"domains": ["fog"]}}),
    ):
        with pytest.raises(ValueError, match=argument):
            plan(["tent"], tuned=tuned, **changed)


def test_movement_is_that_of_the_pass_behind_the_answer():
    classifier = load_tiny(["cat", "house", "tree", "star"])
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    base = classifier.encoder.base
    watch = Watch(classifier)
    zero_shot = classifier.encode(images)
    assert watch.movement(images, classifier.logits(zero_shot)).max() == 0
    moved = watch.classifier.encode(images, 1.1 * base)
    watch.classifier.encode(images.flip(3), 1.2 * base)  # of other images, and not what is answered
    watch.classifier.encode(images[:2])
    answer = classifier.logits(moved) + 0.01
    torch.testing.assert_close(watch.movement(images, answer), (moved - zero_shot).norm(dim=1))
    assert torch.equal(classifier.encode(images), zero_shot)
