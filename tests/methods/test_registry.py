import subprocess
import sys

import pytest
import torch

import ramen
from ramen import testing


def test_the_methods_are_there() -> None:
    expected = {"clip", "ensemble", "entmin", "tent", "watt", "clipartt", "mint", "ramen"}
    assert expected <= set(ramen.list_methods())


def test_records_hold_the_defaults() -> None:
    record = ramen.describe("ramen")
    for name in ("capacity", "topk", "beta", "lr", "guard", "codec"):
        assert record.defaults[name] == "auto"
    assert ramen.describe("entmin").defaults == {"lr": 1e-2, "statistics": "source", "seed": 0}
    assert "2 forward, 1 backward" in str(record)


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


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"capacity": 75, "topk": 100}, ValueError, "topk must be between 1 and capacity=75, got 100"),
        ({"topk": 0}, ValueError, "topk must be at least 1, got 0"),
        ({"capacity": 0}, ValueError, "capacity must be at least 1, got 0"),
        ({"capacity": 1.5}, TypeError, "capacity must be a whole number, got float 1.5"),
        ({"lr": -1}, ValueError, "lr must be finite and at least 0, got -1"),
        ({"lr": float("nan")}, ValueError, "lr must be finite and at least 0, got nan"),
        ({"beta": "5"}, TypeError, "beta must be a number, got str '5'"),
        ({"balance": 1}, TypeError, "balance must be True or False, got int 1"),
        ({"fifo": "fp16"}, ValueError, "fifo must be one of 'exact', 'float16', got 'fp16'"),
        ({"visibility": "strict"}, ValueError, "visibility must be one of 'batch', 'causal', got 'strict'"),
        ({"codec": "int3"}, ValueError, "codec must be one of 'fp32', .* 'sign', 'auto', got 'int3'"),
        ({"memory_budget": "2 GiG"}, ValueError, "memory_budget must be a number of bytes or text .*'2 GiG'"),
        ({"memory_budget": 1.5}, TypeError, "memory_budget must be a whole number, got float 1.5"),
        (
            {"capacity": 750, "codec": "fp16", "memory_budget": "9 kB"},
            MemoryError,
            "codec 'fp16' take .* but memory_budget is 8.79 KiB: raise it",
        ),
        ({"codec": "auto", "memory_budget": 9}, MemoryError, "even the smallest codec .* 'sign' take up to"),
        ({"placement": "disk"}, ValueError, "placement must be one of 'encoder', 'cpu', 'split', got 'disk'"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"fifo": "float16", "visibility": "causal"}, ValueError, "which has visibility='batch'"),
        ({"capacity": 10**9}, MemoryError, "capacity=1000000000 .* lower capacity"),
        ({"guard": 1}, ValueError, "guard must be below 1, got 1"),
        ({"guard": -0.1}, ValueError, "guard must be finite and at least 0, got -0.1"),
    ],
)
def test_bad_parameters(parameters: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ramen.create("ramen", testing.small_classifier(), **parameters)


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
    with pytest.raises(TypeError, match="classifier must be a ZeroShotClassifier, got Linear"):
        ramen.create(name, torch.nn.Linear(2, 2))


def test_a_name_is_taken_whatever_was_imported_before() -> None:
    """In a fresh process, before any method of the library has been asked for."""
    code = """
import ramen
info = ramen.MethodInfo("tent", "t", "", "p", "u", "w", False, 1, 0)
try:
    @ramen.register(info)
    class Tent(ramen.Method):
        def adapt(self, *args): ...
except ValueError as error:
    print(error)
print(ramen.describe("tent").venue)
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "name 'tent' is taken by ramen.methods.tent.Tent\nICLR 2021\n"


def test_a_name_is_given_once() -> None:
    from ramen.methods.tent import Tent

    class Other(Tent):
        pass

    with pytest.raises(ValueError, match=r"name 'tent' is taken by ramen\.methods\.tent\.Tent"):
        ramen.register(Tent.info)(Other)


@pytest.mark.parametrize("name", ramen.list_methods())
def test_every_parameter_is_explained(name: str) -> None:
    """In the words of the class's docstring, which are on the page of the method."""
    from ramen.methods._registry import get_method

    record = ramen.describe(name)
    page = " ".join(str(record).split())
    documented = " ".join((get_method(name).__doc__ + ramen.Method.__doc__).replace("``", "`").split())
    assert list(record.explanations) == list(record.defaults)
    for parameter, text in record.explanations.items():
        assert len(text) > 5
        assert f"{parameter}: {text}" in documented
        assert f"{parameter}={record.defaults[parameter]!r} {text}" in page


def test_a_method_without_a_docstring_inherits_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramen.methods import _registry

    _registry._load_own_methods()  # into the registry that stays
    monkeypatch.setattr(_registry, "_METHODS", dict(_registry._METHODS))

    @ramen.register(ramen.MethodInfo("bare", "t", "", "p", "u", "w", False, 1, 0))
    class Bare(ramen.Method):
        def __init__(self, classifier: object, speed: int, *, seed: int = 0) -> None: ...

        def adapt(self, images: torch.Tensor, usable: torch.Tensor) -> ramen.Answer: ...

    assert ramen.describe("bare").explanations == {"speed": "", "seed": "Decides everything random."}
