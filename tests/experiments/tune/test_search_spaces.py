"""Search spaces: the same budget for every method, and only values that a method takes."""

import math
from pathlib import Path

import pytest

import ramen
from ramen.experiments.tune.search_spaces import SearchSpace, load_spaces
from ramen.models.classifier import MissingPartError
from ramen.models.tiny_clip.model import load_tiny


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tent]\nlr = [1.0]\n", "budget is missing"),
        ("budget = 0\n", "budget must be at least 1, got 0"),
        ("budget = 2\n[tent]\nlr = [1.0]\n", "tent must have 2 combinations, as every method, got 1"),
        ("budget = 2\n[tent]\nlr = [1.0, 1.0]\n", "tent.lr has a value twice"),
        ("budget = 2\n[tnet]\nlr = [1.0, 2.0]\n", "there is no method 'tnet', did you mean 'tent'"),
        ("budget = 2\n[tent]\nrate = [1.0, 2.0]\n", "tent has no parameter 'rate'"),
        ("budget = 2\n[tent]\nseed = [1, 2]\n", "tent has no parameter 'seed'"),
        ("budget = 2\n[tent]\nlr = 1.0\n", "tent must be a table of lists"),
        ("budget = 2\ntent = 3\n", "tent must be a table of lists"),
        ("budget =", "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_says_which(tmp_path, text, message):
    with pytest.raises(ValueError) as error:
        load_spaces(write(tmp_path, text))
    assert message in str(error.value).replace(";", ",")
    assert "spaces.toml" in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        load_spaces(tmp_path / "nothing.toml")
