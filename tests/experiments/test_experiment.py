"""Experiments: what identifies them, and how options become a plan."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

import ramen
from ramen.experiments.experiment import Experiment, plan
from ramen.methods import _registry
from tests.fakes.results import sample_result

BASE = Experiment(
    "mint", "ViT-B-32/openai", "cifar10c", "DATA", {"severity": 5}, parameters={"lr": 5e-3, "prior": math.inf}
)


def test_the_identity_has_the_blocks_of_a_result():
    assert list(BASE.identity()) == list(sample_result()["experiment"])
    assert BASE.identity()["parameters"] == {"lr": 0.005, "prior": "inf"}
    json.dumps(BASE.identity(), allow_nan=False)


def test_the_key_is_the_same_on_every_machine():
    """Results of earlier versions must be found again: this value does not change unless a default does."""
    assert BASE.key() == "04c2e068b468"
    assert BASE.path(Path("out")) == Path("out/cifar10c/mixed/mint-seed0-04c2e068b468.json")


def test_an_alias_is_the_same_experiment():
    """Also its preset's row is that of the protocol that it stands for."""
    alias = dataclasses.replace(BASE, protocol="practical", protocol_parameters={"delta": 0.5})
    parameters = {"delta": 0.5, "domains": "successive"}
    named = dataclasses.replace(BASE, protocol="correlated", protocol_parameters=parameters)
    assert alias == named
    assert alias.key() == named.key()
    options = {"model": "ViT-B-32/openai", "data": "cifar10c", "root": "DATA"}
    short, long = (plan(["tent"], protocol=name, **options) for name in ("reset_each_shift", "single"))
    assert short == long


@pytest.mark.parametrize(
    "change",
    [
        {"method": "tent", "parameters": {}},
        {"model": "ViT-B-16/openai"},
        {"data": "cifar100c"},
        {"data_options": {"severity": 4}},
        {"protocol": "single"},
        {"protocol_parameters": {"limit": 10}},
        {"parameters": {"lr": 5e-3, "prior": 1e4}},
        {"label": "w/o prior"},
        {"seed": 1},
        {"batch": 50},
        {"device": "cuda"},
        {"dtype": "float16"},
        {"templates": "single"},
    ],
)
def test_what_decides_the_result_decides_the_key(change):
    assert dataclasses.replace(BASE, **change).key() != BASE.key()


@pytest.mark.parametrize(
    "change",
    [
        {"root": "/elsewhere"},
        {"preset": "cifar10c"},
        {"overrides": {"lr": 5e-3}},
        {"parameters": {"prior": math.inf}},  # the other one is the default
        {"parameters": {"prior": math.inf, "statistics": "source", "lr": 5e-3}},
    ],
)
def test_what_does_not_decide_it_leaves_the_key(change):
    assert dataclasses.replace(BASE, **change).key() == BASE.key()


def test_back_from_a_result():
    result = {"experiment": BASE.identity(), "preset": None, "overrides": {}}
    again = Experiment.from_result(json.loads(json.dumps(result)), root="DATA")
    assert again == BASE
    assert again.parameters["prior"] == math.inf


def test_a_plan_takes_everything_from_the_preset():
    runs = plan(["ramen", "mint"], data="cifar100c", root="DATA", seeds=[0, 3])
    assert [(run.method, run.seed) for run in runs] == [("ramen", 0), ("ramen", 3), ("mint", 0), ("mint", 3)]
    first = runs[0]
    assert (first.model, first.batch, first.templates) == ("ViT-B-16/openai", 100, "ensemble")
    assert first.data_options == {"severity": 5}
    assert first.parameters == {"capacity": 750, "topk": 5, "beta": 5.0, "lr": 0.01}
    assert (first.preset, first.overrides) == ("cifar100c", {})


def test_options_override_the_preset():
    (run,) = plan(
        ["ramen"],
        model="ViT-B-32/openai",
        data="imagenetc5k",
        root="DATA",
        settings=["topk=3", "ramen.beta=1"],
        data_options={"severity": 3},
        batch=10,
        templates="single",
    )
    assert run.parameters == {"capacity": 75, "topk": 3, "beta": 1, "lr": 0.01}
    assert run.overrides == {"topk": 3, "beta": 1}
    assert (run.model, run.batch, run.templates) == ("ViT-B-32/openai", 10, "single")
    assert run.data_options == {"severity": 3}


def test_settings_reach_the_methods_that_have_them():
    runs = plan(["tent", "ramen", "ensemble"], settings=["lr=0.5", "ramen.lr=0.25", "topk=2"])
    assert [run.overrides for run in runs] == [{"lr": 0.5}, {"lr": 0.25, "topk": 2}, {}]


def test_a_preset_can_be_refused_or_borrowed():
    (run,) = plan(["ramen"], model="tiny", preset="none")
    assert (run.parameters, run.preset) == ({}, None)
    (run,) = plan(["ramen"], data="arrays", root="x.npz", model="stored:x", preset="cifar10c")
    assert (run.parameters["capacity"], run.preset) == (7500, "cifar10c")
    assert run.data_options == {}  # an array file has no severities
    with pytest.raises(ValueError, match="model must be given: there is no preset for data set 'arrays'"):
        plan(["ramen"], data="arrays", root="x.npz")


def test_a_method_of_ones_own_has_no_row(monkeypatch):

    monkeypatch.setattr(
        _registry, "_METHODS", {name: _registry.get_method(name) for name in ramen.list_methods()}
    )
    facts = {"title": "t", "venue": "", "paper": "p", "updates": "nothing", "predicts_with": "it"}
    info = ramen.MethodInfo("own", **facts, batch_dependent=False, forwards=1, backwards=0)

    @ramen.register(info)
    class Own(_registry.get_method("ensemble")):
        pass

    assert plan(["own"])[0].parameters == {}
