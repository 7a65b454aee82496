"""CLIPTTA against a mutable model with its B x B matrix, lists as memory and torch's Adam."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods.cliptta import contrastive_entropy, entropy_of_mean
from ramen.utils.numerics import pair_scores
from tests.oracles.mutable_model import CLASSES, SCALE, MutableModel, stream, use_batch_statistics
from tests.oracles.mutable_model import compare as compare_answers

QUICK = {"iterations": 3, "shots": 2, "sample": 7}


class Oracle(MutableModel):
    """The similarities of all images of a batch with the texts of all of them."""

    def __init__(
        self,
        kind: str,
        lr: float = 1e-4,
        iterations: int = 10,
        beta: float = 1.0,
        shots: int = 4,
        sample: int = 40,
        learn_from: str = "both",
        optimizer: str = "adam",
        seed: int = 0,
    ) -> None:
        super().__init__(kind)
        parameters = self.parameters.values()
        self.optimizer = {
            "adam": lambda: torch.optim.Adam(parameters, lr=lr, eps=1e-6),
            "sgd": lambda: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        }[optimizer]()
        self.iterations, self.beta, self.shots, self.sample = iterations, beta, shots, sample
        self.learn_from, self.seed, self.taken = learn_from, seed, 0
        self.memory: list[dict] = []
        self.replaced = self.refused = 0

    def objective(self, images: Tensor) -> Tensor:
        embeddings = self.encode(images)
        p = (SCALE * embeddings @ self.text.T).softmax(1)
        matrix = (SCALE * embeddings @ self.text[p.argmax(1)].T).softmax(1)
        contrast = -(matrix * matrix.log()).sum(1).mean()
        mean = p.mean(0)
        return contrast - self.beta * -(mean * mean.log()).sum()

    @torch.no_grad()
    def remember(self, images: Tensor) -> None:
        p = (self.encode(images) @ self.text.T).softmax(1)
        for image, label, confidence in zip(images, p.argmax(1).tolist(), p.amax(1).tolist(), strict=True):
            new = {"image": image, "label": label, "confidence": confidence}
            own = [item for item in self.memory if item["label"] == label]
            if len(own) < self.shots:
                self.memory.append(new)
                continue
            least = min(own, key=lambda item: item["confidence"])
            if confidence > least["confidence"]:
                least.update(new)
                self.replaced += 1
            else:
                self.refused += 1

    def drawn(self) -> Tensor:
        slots = torch.arange(len(self.memory))
        draws = pair_scores(self.seed, torch.tensor(self.taken), slots).tolist()
        chosen = []
        for label in range(CLASSES):
            own = [slot for slot, item in enumerate(self.memory) if item["label"] == label]
            chosen += sorted(own, key=lambda slot: draws[slot])[: max(1, self.sample // CLASSES)]
        return torch.stack([self.memory[slot]["image"] for slot in chosen])

    def predict(self, images: Tensor) -> Tensor:
        for step in range(self.iterations):
            if step == 0:
                self.remember(images)
            loss = self.objective(self.drawn())
            if self.learn_from == "both":
                loss = loss + self.objective(images)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.taken += 1
        return self.logits(images).detach()


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor]) -> None:
    compare_answers(oracle, method, batches, 1e-6)
    content = method.state.content()
    assert content["labels"].tolist() == [item["label"] for item in oracle.memory]
    assert content["steps_taken"] == oracle.taken
    torch.testing.assert_close(content["images"], torch.stack([i["image"] for i in oracle.memory]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"learn_from": "memory", "beta": 0.1, "lr": 1e-3, "sample": 15},
        {"optimizer": "sgd", "lr": 1e-5, "seed": 3},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    settings = {**QUICK, **options}
    oracle = Oracle(tower_kind, **settings)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("cliptta", clf, **settings)
    compare(oracle, method, stream(20, 4))
    assert oracle.replaced > 3
    assert oracle.refused > 3
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"), [("vit", {}), ("resnet", {}), ("vit", {"learn_from": "memory"})]
)
def test_images_of_the_memory_in_blocks_equal_a_mutable_model_that_takes_all(
    kind: str, options: dict
) -> None:
    """Several classes in the memory, at most two images of it at a time in the encoder."""
    settings = {**QUICK, **options}
    clf = testing.bench.CountingClassifier(testing.small_classifier(kind, dtype="float64"))
    method = ramen.create("cliptta", clf, **settings, images_at_once=2)
    compare(Oracle(kind, **settings), method, stream(12, 4))
    in_batches = {5, 4}
    assert {size for size in clf.backwards if size not in in_batches} == {1, 2}
    assert {size for size in clf.forwards if size not in in_batches} == {1, 2}


def test_equals_a_mutable_model_with_its_own_settings() -> None:
    method = ramen.create("cliptta", testing.small_classifier(dtype="float64"))
    assert (method.iterations, method.shots, method.sample, method.beta) == (10, 4, 40, 1.0)
    compare(Oracle("vit"), method, stream(3))


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    """Those of the batch for the batch, those of the sample for the sample."""
    oracle = Oracle("resnet", lr=1e-5, **QUICK)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    compare(oracle, ramen.create("cliptta", clf, lr=1e-5, **QUICK, statistics="batch"), stream(20, 4))


def test_one_image_at_a_time_equals_a_mutable_model() -> None:
    """The batch's own contrastive entropy is zero."""
    oracle = Oracle("vit", **QUICK)
    method = ramen.create("cliptta", testing.small_classifier(dtype="float64"), **QUICK)
    compare(oracle, method, stream(20, 1))


def test_the_losses_by_hand() -> None:
    """Two images of one class and one of another: three texts, of which two are the same."""
    logits = torch.tensor([[2.0, 0.0, 1.0], [3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [math.nan] * 3])
    usable = torch.tensor([True, True, True, False])
    texts = torch.stack([logits[:3, label] for label in (0, 0, 1)], 1)
    p = texts.softmax(1)
    torch.testing.assert_close(contrastive_entropy(logits, usable), -(p * p.log()).sum(1).mean())
    mean = logits[:3].softmax(1).mean(0)
    torch.testing.assert_close(entropy_of_mean(logits, usable), -(mean * mean.log()).sum())
    assert contrastive_entropy(logits[:1], usable[:1]) == 0
    assert contrastive_entropy(logits, torch.zeros(4, dtype=torch.bool)) == 0
