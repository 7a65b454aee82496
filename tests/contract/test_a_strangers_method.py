"""A method that is written from the outside passes the contract at the first try."""

import pytest
import torch

import ramen
from ramen import testing
from tests.contract import centred_cosines

RECORD = ramen.MethodInfo(
    name="centred cosines",
    title="Cosines from the centres of images and texts",
    venue="",
    paper="none",
    updates="nothing in the model; the centre of the images",
    predicts_with="the one forward pass",
    batch_dependent=True,
    forwards=1,
    backwards=0,
)


@pytest.fixture(autouse=True)
def registered(own_methods: None) -> None:
    ramen.register(RECORD)(centred_cosines.CentredCosines)


@pytest.mark.parametrize("parameters", [{}, {"keep": 1}], ids=str)
def test_it_keeps_the_contract(parameters: dict, tower_kind: str) -> None:
    testing.check_method("centred cosines", testing.small_classifier(tower_kind), **parameters)


def test_its_centre_is_that_of_plain_lists() -> None:
    classifier = testing.small_classifier()
    method = ramen.create("centred cosines", classifier, keep=2)
    texts = classifier.class_embeddings
    directions = texts - texts.mean(0)
    directions = directions / directions.norm(dim=1, keepdim=True)
    held: dict[int, list[tuple[float, torch.Tensor]]] = {c: [] for c in range(classifier.num_classes)}
    for images in torch.randn(6, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0)):
        embeddings = classifier.encode(images)
        logits = classifier.logits(embeddings)
        for row, embedding in zip(logits.softmax(1), embeddings, strict=True):
            unsure = float(-(row * row.log()).sum())
            entries = [*held[int(row.argmax())], (unsure, embedding)]
            held[int(row.argmax())] = sorted(entries, key=lambda entry: entry[0])[:2]
        centre = torch.stack([embedding for entries in held.values() for _, embedding in entries]).mean(0)
        moved = embeddings - centre
        expected = classifier.logit_scale * (moved / moved.norm(dim=1, keepdim=True)) @ directions.T
        torch.testing.assert_close(method.predict(images).logits, expected, rtol=1e-4, atol=1e-4)
