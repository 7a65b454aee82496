"""A method that is written from the outside passes the contract at the first try."""

import inspect

import pytest
import torch

import ramen
from ramen import testing
from ramen.methods import _registry
from tests.contract import t3a

RECORD = ramen.MethodInfo(
    name="own t3a",
    title="T3A, from the outside",
    venue="NeurIPS 2021",
    paper="https://openreview.net/forum?id=e_yvNqkJKAW",
    updates="nothing in the model; the classes' vectors",
    predicts_with="the one forward pass",
    batch_dependent=True,
    forwards=1,
    backwards=0,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    ramen.list_methods()  # so that all others are there before
    _registry._load_own_methods()  # into the registry that stays
    monkeypatch.setattr(_registry, "_METHODS", dict(_registry._METHODS))
    ramen.register(RECORD)(t3a.T3A)


@pytest.mark.parametrize("parameters", [{}, {"keep": 1}], ids=str)
def test_it_keeps_the_contract(parameters: dict, tower_kind: str) -> None:
    testing.check_method("own t3a", testing.small_classifier(tower_kind), **parameters)


def test_it_is_short() -> None:
    assert len(inspect.getsource(t3a).splitlines()) <= 50


def test_its_means_are_those_of_plain_lists() -> None:
    classifier = testing.small_classifier()
    method = ramen.create("own t3a", classifier, keep=2)
    held: dict[int, list[tuple[float, torch.Tensor]]] = {c: [] for c in range(classifier.num_classes)}
    for images in torch.randn(6, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0)):
        embeddings = classifier.encode(images)
        logits = classifier.logits(embeddings)
        for row, embedding in zip(logits.softmax(1), embeddings, strict=True):
            unsure = float(-(row * row.log()).sum())
            entries = [*held[int(row.argmax())], (unsure, embedding)]
            held[int(row.argmax())] = sorted(entries, key=lambda entry: entry[0])[:2]
        means = torch.stack(
            [
                torch.stack([text, *(embedding for _, embedding in held[c])]).mean(0)
                for c, text in enumerate(classifier.class_embeddings)
            ]
        )
        means = means / means.norm(dim=1, keepdim=True)
        expected = classifier.logit_scale * embeddings @ means.T
        torch.testing.assert_close(method.predict(images).logits, expected, rtol=1e-4, atol=1e-4)
