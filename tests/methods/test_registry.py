import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ramen
from ramen import testing
from ramen.methods import _registry
from ramen.methods._registry import AUTO, field
from ramen.methods.tent import Tent
from tools import method_records


def test_parameters_reach_the_method() -> None:
    method = ramen.create("ramen", testing.small_classifier(), capacity=9, topk=3, beta=0, lr=2e-2)
    assert (method.capacity, method.topk, method.beta, method.lr) == (9, 3, 0.0, 2e-2)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("ramne", "did you mean 'ramen'"), ("TENT", "did you mean 'tent'"), ("x", "Valid: .*clip, ")],
)
def test_an_unknown_name(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"there is no method '{name}'.*{hint}"):
        ramen.create(name, testing.small_classifier())


def test_an_unknown_parameter() -> None:
    with pytest.raises(TypeError, match=r"method 'ramen' has no parameter 'top_k'; did you mean 'topk'\?"):
        ramen.create("ramen", testing.small_classifier(), top_k=3)


def test_random_numbers_depend_on_the_seed_and_the_place_in_the_stream() -> None:
    clf = testing.small_classifier()
    draws = set()
    for seed in range(20):
        method = ramen.create("ensemble", clf, seed=seed)
        for place in range(20):
            method.images_seen = place
            draws.add(torch.rand((), generator=method.generator()).item())
            assert torch.equal(method.generator().get_state(), method.generator().get_state())
    assert len(draws) == 400


@pytest.mark.parametrize("name", ramen.list_methods())
def test_a_method_needs_a_classifier(name: str) -> None:
    with pytest.raises(TypeError, match="classifier"):
        ramen.create(name, torch.nn.Linear(2, 2))


def test_a_name_is_given_once() -> None:
    class Other(Tent):
        pass

    with pytest.raises(ValueError, match=r"name 'tent' is taken by ramen\.methods\.tent\.Tent"):
        ramen.register(Tent.info)(Other)


def test_the_committed_records_are_current() -> None:
    """They are made from the classes: `python -m tools.method_records`."""
    made = json.loads(method_records.records())
    committed = json.loads(Path(_registry.__file__).with_name(_registry.RECORDS).read_text(encoding="utf-8"))
    assert committed == made


def test_records_need_no_torch() -> None:
    code = (
        "import sys, ramen; names = ramen.list_methods(); "
        "print(ramen.describe('tent').venue, 'watt' in names, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["ICLR", "2021", "True", "False"]


@pytest.mark.usefixtures("own_methods")
def test_a_field_is_checked_saved_and_inherited() -> None:
    @ramen.register(ramen.MethodInfo("fielded", "t", "", "p", "u", "w", False, 1, 0))
    class Fielded(Tent):
        lr: float = field(0.5, gt=0, lt=1, doc="Another step size.")
        rounds: int = field(AUTO, ge=1, published={5: 2, 50: 3}, doc="How often.")
        words: "str | None" = field(None, doc="Any.")
        memory: int = field(4, ge=0, le=9, saved=True, before=3, doc="How much.")

        def setup(self) -> None:
            super().setup()
            self.made_of = self.memory

    clf = testing.small_classifier()
    record = ramen.describe("fielded")
    assert list(record.defaults)[:4] == ["lr", "rounds", "words", "memory"]
    assert record.defaults.keys() == {*record.defaults, *ramen.describe("tent").defaults}
    assert record.limits["lr"] == "above 0 and below 1"
    method = ramen.create("fielded", clf, memory=7)
    assert (method.lr, method.rounds, method.words, method.made_of) == (0.5, 2, None, 7)
    assert "about 5 classes" in method.parameters.why["rounds"]
    assert {"memory", "statistics", "optimizer"} == set(Fielded.state_parameters)
    for name, value, error in (
        ("lr", 0, ValueError),
        ("lr", 1, ValueError),
        ("lr", float("nan"), ValueError),
        ("lr", "auto", TypeError),
        ("rounds", 1.5, TypeError),
        ("memory", 10, ValueError),
        ("optimizer", "adamw", ValueError),
        ("statistics", "batch", ValueError),  # the tower has no BatchNorm
    ):
        with pytest.raises(error, match=name):
            ramen.create("fielded", clf, **{name: value})
    with pytest.raises(TypeError, match="memry"):
        Fielded(clf, memry=1)


@pytest.mark.usefixtures("own_methods")
def test_a_method_with_its_own_init_inherits_what_is_known() -> None:
    @ramen.register(ramen.MethodInfo("bare", "t", "", "p", "u", "w", False, 1, 0))
    class Bare(ramen.Method):
        def __init__(self, classifier: object, speed: int, *, seed: int = 0) -> None: ...

        def adapt(self, images: torch.Tensor, usable: torch.Tensor) -> ramen.Answer: ...

    assert ramen.describe("bare").explanations == {"speed": "", "seed": "Has no effect."}
