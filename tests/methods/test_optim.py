"""The optimizers of online methods against those of torch, on the pieces of the same vector."""

import pytest
import torch
from torch import Tensor

from ramen import testing
from ramen.methods import Answer, Method, MethodInfo
from ramen.methods._optim import AdamState, OnlineWeights, adam_step

INFO = MethodInfo("steps", "Takes steps", "", "", "", "", False, 1, 0)


class Stepping(Method):
    """Answers zero-shot; its weights are moved by hand."""

    info = INFO

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        logits = self.classifier.logits(self.classifier.encode(images))
        return Answer(logits, logits, usable)


def weights_of(optimizer: str, **settings) -> tuple[Stepping, OnlineWeights]:
    method = Stepping(testing.small_classifier(dtype="float64"))
    return method, OnlineWeights(method, optimizer, **settings)


def gradients(count: int, size: int) -> list[Tensor]:
    """Of all sizes, with zeros and changes of sign."""
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(count)]
    for step, gradient in enumerate(found):
        gradient *= 10.0 ** (step % 12 - 9)
        gradient[::5] = 0
    return found


CASES = [
    ("sgd", {}, torch.optim.SGD, {}),
    ("sgd", {"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    ("adam", {}, torch.optim.Adam, {}),
    ("adam", {"weight_decay": 0.01, "eps": 1e-3}, torch.optim.Adam, {"weight_decay": 0.01, "eps": 1e-3}),
    ("adamw", {"weight_decay": 0.01}, torch.optim.AdamW, {"weight_decay": 0.01}),
]


@pytest.mark.parametrize(("name", "own", "kind", "theirs"), CASES, ids=lambda value: str(value))
def test_steps_equal_torchs(name, own, kind, theirs) -> None:
    method, weights = weights_of(name, lr=1e-2, **own)
    base = method.classifier.encoder.base
    parameter = torch.nn.Parameter(base.clone())
    optimizer = kind([parameter], lr=1e-2, **theirs)
    for gradient in gradients(30, len(base)):
        parameter.grad = gradient.clone()
        optimizer.step()
        before = weights.affine.clone()
        weights.step(gradient)
        method.state.commit(vars(method))
        assert not torch.equal(weights.affine, before)
        torch.testing.assert_close(weights.affine, parameter.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sign", "adam"])
def test_momentum_is_that_of_sgd_alone(name) -> None:
    (method, weights), (other, expected) = (
        weights_of(name, lr=1e-2, momentum=momentum) for momentum in (0.9, 0)
    )
    for gradient in gradients(3, len(method.classifier.encoder.base)):
        for stepped in (weights, expected):
            stepped.step(gradient)
    assert method.state.content().keys() == other.state.content().keys()
    assert torch.equal(weights.affine, expected.affine)


def test_weights_have_the_name_that_a_method_gives_them() -> None:
    method = Stepping(testing.small_classifier())
    weights = OnlineWeights(method, "sgd", 0.1, momentum=0.9, name="pupil", prefix="slow_")
    weights.step(torch.ones_like(weights.affine))
    method.state.commit(vars(method))
    assert method.state.content().keys() == {"slow_pupil", "slow_velocity"}


def test_signed_steps() -> None:
    method, weights = weights_of("sign", lr=0.5)
    base = method.classifier.encoder.base
    gradient = torch.zeros(len(base), dtype=torch.float64)
    gradient[:4] = torch.tensor([3.0, -1e-30, torch.nan, torch.inf])
    weights.step(gradient)
    assert (weights.affine - base)[:5].tolist() == [-0.5, 0.5, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "settings"), [("sign", {}), ("sgd", {"momentum": 0.9}), ("adamw", {"weight_decay": 0.1})]
)
def test_a_step_that_is_not_taken_leaves_no_trace(name, settings) -> None:
    (method, weights), (other, expected) = (
        weights_of(name, lr=0.1, **settings),
        weights_of(name, lr=0.1, **settings),
    )
    first, ignored, second = gradients(3, len(method.classifier.encoder.base))
    yes, no = torch.tensor(True), torch.tensor(False)
    for gradient, taken in ((first, yes), (ignored, no), (second, yes)):
        weights.step(gradient, taken)
        method.state.commit(vars(method))
    for gradient in (first, second):
        expected.step(gradient)
        other.state.commit(vars(other))
    for key, value in other.state.content().items():
        assert torch.equal(method.state.content()[key], value), key


@pytest.mark.parametrize(("name", "settings"), [("sgd", {"momentum": 0.9}), ("adam", {})])
def test_a_restart_equals_a_fresh_start(name, settings) -> None:
    method, weights = weights_of(name, lr=0.1, **settings)
    fresh = method.state.content()
    weights.step(gradients(1, len(method.classifier.encoder.base))[0])
    method.state.commit(vars(method))
    moved = method.state.content()
    weights.restart(torch.tensor(False))
    method.state.commit(vars(method))
    assert all(torch.equal(value, moved[key]) for key, value in method.state.content().items())
    weights.restart(torch.tensor(True))
    method.state.commit(vars(method))
    assert all(torch.equal(value, fresh[key]) for key, value in method.state.content().items())


@pytest.mark.parametrize("name", ["sign", "sgd", "adam", "adamw"])
def test_frozen_parameters_stay(name) -> None:
    clf = testing.small_classifier(dtype="float64")
    trained = torch.zeros_like(clf.encoder.base)
    trained[::2] = 1
    method = Stepping(clf)
    weights = OnlineWeights(method, name, 0.1, weight_decay=0.1, trained=trained)
    weights.step(torch.ones(len(trained), dtype=torch.float64))
    assert ((weights.affine != clf.encoder.base) == trained.bool()).all()


@pytest.mark.parametrize(
    ("name", "value"), [("optimizer", "sdg"), ("lr", -1), ("momentum", 1.0), ("weight_decay", -1)]
)
def test_bad_settings(name, value) -> None:
    method = Stepping(testing.small_classifier())
    with pytest.raises(ValueError, match=name):
        OnlineWeights(method, **{"optimizer": "sgd", "lr": 0.1, name: value})


@pytest.mark.parametrize("lr", [1e-3, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_equals_torchs(lr: float, decay: float) -> None:
    """On a vector of three parts, with gradients of all sizes, zeros and changes of sign."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 40, 7)]
    parameters = [torch.nn.Parameter(p.clone()) for p in parts]
    adam = torch.optim.Adam(parameters, lr=lr)
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=decay) if decay else adam
    affine = torch.cat(parts)
    state = AdamState.zero(affine)
    for step in range(30):
        gradient = torch.randn(50, generator=generator, dtype=torch.float64) * 10.0 ** (step % 12 - 9)
        gradient[::5] = 0
        for parameter, g in zip(parameters, gradient.split([3, 40, 7]), strict=True):
            parameter.grad = g.clone()
        optimizer.step()
        before = affine.clone()
        new, state = adam_step(affine, gradient, state, lr, decay)
        assert torch.equal(affine, before)
        affine = new
        expected = torch.cat([p.detach() for p in parameters])
        torch.testing.assert_close(affine, expected, rtol=0, atol=1e-13)
    assert state.steps == 30


def test_the_first_step_is_signed() -> None:
    gradient = torch.tensor([3.0, -1e-3, 0.0])
    affine, _ = adam_step(torch.ones(3), gradient, AdamState.zero(gradient), lr=0.1)
    torch.testing.assert_close(affine, torch.tensor([0.9, 1.1, 1.0]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_gradient_shows_in_the_last_vector(bad: float) -> None:
    affine = torch.zeros(3)
    state = AdamState.zero(affine)
    for step in range(5):
        gradient = torch.ones(3)
        if step == 1:
            gradient[2] = bad
        affine, state = adam_step(affine, gradient, state, lr=0.1)
    assert affine.isfinite().tolist() == [True, True, False]
