"""CLIP-OT against a mutable model, transport by plain division and torch's optimizers."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods.clipot import assignment
from tests.oracles.mutable_model import SCALE, MutableModel, compare, stream, use_batch_statistics

TWO = ("a drawing of a {}.", "a photo of a {}.")


def transported(scores: Tensor, rounds: int) -> Tensor:
    """As it is written in the literature: a matrix with the masses of all pairs of an image and a class."""
    masses = (scores - scores.amax(1, keepdim=True)).exp()
    masses = masses / masses.sum(1, keepdim=True)
    for _ in range(rounds):
        masses = masses / masses.sum(0, keepdim=True) / scores.shape[1]
        masses = masses / masses.sum(1, keepdim=True) / scores.shape[0]
    return masses * scores.shape[0]


class Oracle(MutableModel):
    """One step per template."""

    def __init__(
        self,
        kind: str,
        lr: float = 1e-4,
        epsilon: float = 0.7,
        rounds: int = 3,
        predictions: str = "average",
        detach_targets: bool = True,
        optimizer: str = "adamw",
        templates: str | tuple[str, ...] = "ensemble",
    ) -> None:
        super().__init__(kind)
        parameters = self.parameters.values()
        self.optimizer = {
            "adamw": lambda: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
            "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.01),
        }[optimizer]()
        self.epsilon, self.rounds = epsilon, rounds
        self.predictions, self.detach_targets = predictions, detach_targets
        clf = testing.small_classifier(kind, dtype="float64")
        names = ramen.prompts.TEMPLATE_SETS[templates] if isinstance(templates, str) else templates
        vectors = ramen.prompts.embed_classes(clf.encode_text, clf.classes, names).double()
        self.templates = [vectors[:, m] / vectors[:, m].norm(dim=1, keepdim=True) for m in range(len(names))]
        mean = sum(self.templates) / len(self.templates)
        self.average = mean / mean.norm(dim=1, keepdim=True)

    def predict(self, images: Tensor) -> Tensor:
        for texts in self.templates:
            embeddings = self.encode(images)
            targets = transported(SCALE * embeddings @ texts.T / self.epsilon, self.rounds)
            targets = targets.detach() if self.detach_targets else targets
            used = texts if self.predictions == "template" else self.average
            p = (SCALE * embeddings @ used.T).softmax(1)
            self.optimizer.zero_grad()
            (-(targets * p.log()).sum(1).mean()).backward()
            self.optimizer.step()
        return (SCALE * self.encode(images) @ self.average.T).detach()


@pytest.mark.parametrize(
    "options",
    [
        {"templates": TWO},
        {"templates": TWO, "predictions": "template", "epsilon": 2.0, "rounds": 5},
        {"detach_targets": False, "optimizer": "sgd", "lr": 2e-5, "templates": "single"},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    oracle = Oracle(tower_kind, **options)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("clipot", clf, **options)
    compare(oracle, method, stream(20, 6), 1e-5)
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-4)


def test_equals_a_mutable_model_with_its_own_settings() -> None:
    compare(Oracle("vit"), ramen.create("clipot", testing.small_classifier(dtype="float64")), stream(3), 1e-5)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    oracle = Oracle("resnet", lr=1e-5, templates=TWO)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    compare(
        oracle, ramen.create("clipot", clf, lr=1e-5, statistics="batch", templates=TWO), stream(20, 6), 1e-5
    )


def test_one_image_at_a_time_equals_a_mutable_model() -> None:
    """A single image is shared equally by all classes."""
    method = ramen.create("clipot", testing.small_classifier(dtype="float64"), templates=TWO)
    compare(Oracle("vit", templates=TWO), method, stream(10, 1), 1e-5)
    alone = assignment(torch.tensor([[5.0, 0.0, -3.0]]), torch.tensor([True]), 3)
    torch.testing.assert_close(alone, torch.full((1, 3), 1 / 3))


def test_the_assignment_is_balanced_and_leaves_out_unusable_images() -> None:
    scores = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double() * 5
    every = torch.ones(12, dtype=torch.bool)
    found = assignment(scores, every, 3)
    torch.testing.assert_close(found, transported(scores, 3))
    torch.testing.assert_close(found.sum(1), torch.ones(12).double())
    shares = assignment(scores, every, 200).sum(0)
    torch.testing.assert_close(shares, torch.full((4,), 3.0).double(), rtol=1e-3, atol=1e-3)
    usable = every.clone()
    usable[[2, 7]] = False
    torch.testing.assert_close(assignment(scores, usable, 3)[usable], transported(scores[usable], 3))
    huge = assignment(scores * 1e4, every, 3)
    assert huge.isfinite().all()


def test_passes_follow_the_templates() -> None:
    clf = testing.small_classifier()
    info = ramen.describe("clipot")
    assert ramen.create("clipot", clf).passes() == (info.forwards, info.backwards) == (8, 7)
    assert ramen.create("clipot", clf, templates="watt").passes() == (9, 8)
