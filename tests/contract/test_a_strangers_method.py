"""A method that is written from the outside passes the contract at the first try."""

from dataclasses import replace

import pytest
import torch

import ramen
from ramen import testing
from ramen.methods import Pass, entropy, field, predict_together, sign_step
from tests.contract import centred_cosines
from tests.fakes.traced_graphs import TracingRecorder, traced

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


class OwnSteps(ramen.Method):
    """Each image's own step, for which the runner gives the passes."""

    lr: float = field(1e-2, ge=0, doc="Step size.")
    recordable = True

    def adapt(self, images: torch.Tensor, usable: torch.Tensor) -> object:
        seen = yield Pass(images, None, entropy, each=True)
        affine = sign_step(self.classifier.encoder.base, seen.gradient, self.lr)
        usable = usable & seen.gradient.isfinite().all(1) & seen.embeddings.isfinite().all(1)
        return ramen.Answer(Pass(images, affine), seen.logits, usable)


def stream(batches: int) -> torch.Tensor:
    return torch.randn(batches, 3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_its_steps_are_recorded() -> None:
    """As on a GPU: what is Python is frozen in the graph of a step."""
    method, recorder = traced("centred cosines", keep=2)
    plain = ramen.create("centred cosines", testing.small_classifier(), keep=2)
    for images in stream(8):
        torch.testing.assert_close(method.predict(images).logits, plain.predict(images).logits)
    (graph,) = recorder.graphs
    assert graph.replays > 4


def test_one_that_asks_for_passes_keeps_the_contract_alone_and_among_others(tower_kind: str) -> None:
    facts = {"name": "own steps", "batch_dependent": False, "forwards": 2, "backwards": 1}
    ramen.register(replace(RECORD, **facts))(OwnSteps)
    testing.check_method("own steps", testing.small_classifier(tower_kind))
    classifier, recorder = testing.small_classifier(tower_kind), TracingRecorder()
    plain = [ramen.create("own steps", classifier) for _ in range(3)]
    recording = classifier.with_classes(list(classifier.classes))
    recording.recorder = lambda: recorder
    recorded = [ramen.create("own steps", recording) for _ in range(3)]
    for images in stream(14):
        expected, found = (
            predict_together(list(zip(methods, images.split(1), strict=True)), batch_sizes=(4,))
            for methods in (plain, recorded)
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)
    assert sum(graph.replays for graph in recorder.graphs) > 20
