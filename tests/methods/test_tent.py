"""Tent's optimizers and losses against a mutable model; ``test_simple_methods`` has its default."""

import pytest
import torch

import ramen
from ramen import testing
from tests.oracles.mutable_model import MutableModel, stream


@pytest.mark.parametrize(
    ("optimizer", "lr", "loss"),
    [("sgd", 2e-3, "entropy"), ("adam", 2e-3, "entropy"), ("sign", 1e-2, "come"), ("sgd", 2e-3, "come")],
)
def test_equals_a_mutable_model(tower_kind: str, optimizer: str, lr: float, loss: str) -> None:
    oracle = MutableModel(tower_kind)
    oracle.use_optimizer(optimizer, lr)
    oracle.loss = loss
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("tent", clf, lr=lr, optimizer=optimizer, loss=loss)
    for images in stream(20):
        expected = oracle.logits(images)
        oracle.zero_grad()
        oracle.uncertainties(expected).mean().backward()
        oracle.move(lr)
        out = method.predict(images)
        torch.testing.assert_close(out.logits, expected.detach(), rtol=0, atol=1e-8)
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_batch_without_a_usable_image_is_no_step(optimizer: str) -> None:
    """Momentum and running means would move the weights otherwise."""
    method = ramen.create("tent", testing.small_classifier(), lr=1e-2, optimizer=optimizer)
    first = stream(1)[0].float()
    method.predict(first)
    before = method.content()
    for value in (torch.nan, 1e38):
        method.predict(torch.full_like(first, value))
    assert all(torch.equal(before[name], tensor) for name, tensor in method.content().items())
    method.predict(first)
    assert not torch.equal(before["affine"], method.content()["affine"])


@pytest.mark.parametrize("loss", ["entropy", "come"])
def test_an_overflowing_image_leaves_no_trace(loss: str) -> None:
    clf = testing.small_classifier()
    with_bad, without = (ramen.create("tent", clf, lr=0.05, optimizer="sgd", loss=loss) for _ in range(2))
    for images in (batch.float() for batch in stream(3)):
        with_bad.predict(torch.cat([images[:2], torch.full_like(images[:1], 1e38), images[2:]]))
        without.predict(images)
    assert not torch.equal(without.content()["affine"], clf.encoder.base)
    for name, tensor in without.content().items():
        torch.testing.assert_close(with_bad.content()[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_state_of_another_optimizer_is_refused() -> None:
    clf = testing.small_classifier()
    state = ramen.create("tent", clf, optimizer="adam").state_dict()
    with pytest.raises(ValueError, match="optimizer is 'adam' there and 'sign' here"):
        ramen.create("tent", clf).load_state_dict(state)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"optimizer": "adamw"}, "optimizer must be one of 'sign', 'sgd', 'adam', got 'adamw'"),
        ({"momentum": 1.0, "optimizer": "sgd"}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"loss": "opinion"}, "loss must be one of 'entropy', 'come', got 'opinion'"),
    ],
)
def test_bad_parameters(parameters: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ramen.create("tent", testing.small_classifier(), **parameters)
