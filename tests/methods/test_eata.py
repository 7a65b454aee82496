"""EATA and its relatives against a mutable model with boolean indexing and torch's optimizers."""

import math

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import testing
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics
from tests.oracles.mutable_model import compare as compare_answers

LOOSE = {"lr": 5e-4, "margin": 0.35, "redundancy": 0.5}  # each filter keeps some images and drops others


class Oracle(MutableModel):
    """The steps of the public codes, image by image where they index."""

    def __init__(
        self,
        kind: str,
        lr: float,
        margin: float,
        redundancy: float,
        fisher: float = 0.0,
        reset_every: int = 0,
        class_balance: float = 0.0,
        optimizer: str = "sgd",
        loss: str = "entropy",
    ) -> None:
        super().__init__(kind)
        self.use_optimizer(optimizer, lr)
        self.lr, self.redundancy, self.fisher = lr, redundancy, fisher
        self.loss, self.bound = loss, margin * math.log(CLASSES)
        self.reset_every, self.class_balance = reset_every, class_balance
        self.source = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.importance = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.forget()
        self.kept: list[tuple[int, int]] = []  # by the first filter, by both

    def forget(self) -> None:
        self.current: Tensor | None = None
        self.frequencies = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
        self.batches = 0

    def remember(self, batches: list[Tensor]) -> None:
        for images in batches:
            self.zero_grad()
            logits = self.logits(images)
            nn.functional.cross_entropy(logits, logits.argmax(1)).backward()
            for name, p in self.parameters.items():
                self.importance[name] += p.grad**2 / len(batches)

    def predict(self, images: Tensor) -> Tensor:
        logits = self.logits(images)
        entropies = self.uncertainties(logits)
        p = logits.softmax(1).detach()
        confident = [i for i in range(len(images)) if entropies[i] < self.bound]
        new = [i for i in confident if self.current is None or self.likeness(p[i]) < self.redundancy]
        self.kept.append((len(confident), len(new)))
        if new:
            weights = torch.exp(self.bound - entropies.detach())
            if self.class_balance:
                inverse = torch.stack([1 / self.frequencies[row.argmax()] for row in p])
                weights = weights * inverse * len(images) / inverse.sum()
            loss = (weights * entropies)[new].mean()
            for name, parameter in self.parameters.items():
                away = (parameter - self.source[name]) ** 2
                loss = loss + self.fisher * (self.importance[name] * away).sum()
            self.zero_grad()
            loss.backward()
            self.move(self.lr)
            mean = p[new].mean(0)
            self.current = mean if self.current is None else 0.9 * self.current + 0.1 * mean
        if self.class_balance:
            self.frequencies = self.class_balance * self.frequencies + (1 - self.class_balance) * p.mean(0)
        self.batches += 1
        if self.batches == self.reset_every:
            self.reset()
            self.forget()
        return logits.detach()

    def likeness(self, row: Tensor) -> float:
        return abs(float(row @ self.current / row.norm() / self.current.norm()))


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor]) -> None:
    compare_answers(oracle, method, batches, 1e-7)
    if oracle.current is not None:
        torch.testing.assert_close(method.state.content()["probabilities"], oracle.current, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "adam"},
        {"optimizer": "sign"},
        {"loss": "come"},
        {"class_balance": 0.8},
        {"reset_every": 6},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    settings = {**LOOSE, **options}
    oracle = Oracle(tower_kind, **settings)
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("eata", clf, **settings)
    compare(oracle, method, stream(20, 8))
    assert sum(0 < first < 8 for first, _ in oracle.kept) > 5
    assert sum(0 < both < first for first, both in oracle.kept) > 5
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


def test_equals_a_mutable_model_with_its_own_settings(tower_kind: str) -> None:
    oracle = Oracle(tower_kind, 2.5e-4, 0.4, 0.4)
    method = ramen.create("eata", testing.small_classifier(tower_kind, dtype="float64"))
    compare(oracle, method, stream(20))


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    oracle = Oracle("resnet", **LOOSE)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create("eata", clf, **LOOSE, statistics="batch")
    compare(oracle, method, stream(20, 8))
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-3)


# -- source images ----------------------------------------------------------------------------------


def test_equals_a_mutable_model_with_source_images(tower_kind: str) -> None:
    source = torch.cat(stream(4, seed=7))
    settings = {**LOOSE, "fisher": {"vit": 200.0, "resnet": 1.0}[tower_kind]}
    oracle = Oracle(tower_kind, **settings)
    oracle.remember(list(source.split(8)))
    method = ramen.create("eata", testing.small_classifier(tower_kind, dtype="float64"), **settings)
    method.remember_source(source, batch_size=8)
    importance = torch.cat([value.flatten() for value in oracle.importance.values()])
    torch.testing.assert_close(method.state.content()["importance"], importance, rtol=1e-8, atol=1e-12)
    compare(oracle, method, stream(20, 8))


def test_source_images_hold_parameters_back() -> None:
    clf = testing.small_classifier()
    held, free = (ramen.create("eata", clf, **LOOSE, fisher=200.0) for _ in range(2))
    held.remember_source(torch.cat(stream(4, seed=7)).float())
    for images in (batch.float() for batch in stream(20, 8)):
        held.predict(images), free.predict(images)
    importance = held.state.content()["importance"]
    near, far = (
        (importance * (method.state.content()["affine"] - clf.encoder.base).square()).sum()
        for method in (held, free)
    )
    assert 0 < near < 0.8 * far


def test_a_reset_keeps_what_the_source_images_have_taught() -> None:
    clf = testing.small_classifier()
    source, *batches = (batch.float() for batch in stream(4, 8))
    method = ramen.create("eata", clf, **LOOSE, reset_every=2)
    method.remember_source(source)
    importance = method.state.content()["importance"]
    assert importance.max() > 0
    first = [method.predict(images).logits for images in batches]
    assert torch.equal(method.state.content()["importance"], importance)
    method.reset()
    assert torch.equal(method.state.content()["importance"], importance)
    assert all(torch.equal(method.predict(x).logits, y) for x, y in zip(batches, first, strict=True))
    resumed = ramen.create("eata", clf, **LOOSE, reset_every=2)
    resumed.load_state_dict(method.state_dict())
    assert torch.equal(resumed.state.content()["importance"], importance)


def test_source_images_that_are_not_finite_teach_nothing() -> None:
    clf = testing.small_classifier()
    source = torch.cat(stream(2)).float()
    spoiled = torch.cat([source, torch.full_like(source[:1], torch.nan), torch.full_like(source[:1], 1e38)])
    clean, other = (ramen.create("eata", clf) for _ in range(2))
    clean.remember_source(source)
    other.remember_source(spoiled)
    torch.testing.assert_close(
        other.state.content()["importance"], clean.state.content()["importance"], rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize(
    ("images", "options", "named"),
    [
        ([1], {}, "images"),
        (torch.zeros(0, 3, 32, 32), {}, "images"),
        (torch.zeros(2, 3, 32, 32), {"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_source_images(images: object, options: dict, named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        ramen.create("eata", testing.small_classifier()).remember_source(images, **options)


# -- by hand ----------------------------------------------------------------------------------------


def test_nothing_kept_nothing_changes() -> None:
    """Also with momentum, which would go on moving the weights."""
    clf = testing.small_classifier()
    method = ramen.create("eata", clf, **{**LOOSE, "redundancy": 1e-6})
    first, *others = (batch.float() for batch in stream(4, 8))
    method.predict(first)  # there is nothing yet that an image could be like
    before = method.state.content()
    assert before["started"]
    assert not torch.equal(before["affine"], clf.encoder.base)
    for images in others:
        method.predict(images)
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state.content().items())


def test_no_confident_image_no_start() -> None:
    clf = testing.small_classifier()
    method = ramen.create("eata", clf, margin=0.0)
    for images in stream(2):
        method.predict(images.float())
    assert torch.equal(method.state.content()["affine"], clf.encoder.base)
    assert not method.state.content()["started"]


def test_one_image_at_a_time_equals_a_mutable_model() -> None:
    settings = {**LOOSE, "redundancy": 2.0}
    oracle = Oracle("vit", **settings)
    method = ramen.create("eata", testing.small_classifier(dtype="float64"), **settings)
    compare(oracle, method, stream(20, 1))
    assert {both for _, both in oracle.kept} == {0, 1}


def test_the_first_mean_of_probabilities_is_that_of_the_kept_images() -> None:
    clf, images = testing.small_classifier(dtype="float64"), stream(2, 8)[1]
    method = ramen.create("eata", clf, margin=0.35)
    logits = method.predict(images).logits
    p = logits.softmax(1)
    kept = -(p * p.log()).sum(1) < 0.35 * math.log(CLASSES)
    assert 0 < kept.sum() < 8
    torch.testing.assert_close(method.state.content()["probabilities"], p[kept].mean(0))


def test_a_class_that_was_never_predicted_has_a_finite_weight() -> None:
    method = ramen.create(
        "eata", testing.small_classifier(), **{**LOOSE, "margin": 1.0, "class_balance": 0.95}
    )
    state = method.state_dict()
    method.load_state_dict({**state, "content.frequencies": torch.tensor([1.0, 0, 0, 0, 0])})
    for images in stream(2, 8):
        method.predict(images.float())
    content = method.state.content()
    assert not torch.equal(content["affine"], state["content.affine"])
    assert all(tensor.isfinite().all() for tensor in content.values())


def test_full_resets_come_after_batches_with_a_usable_image() -> None:
    clf = testing.small_classifier()
    method = ramen.create("eata", clf, **LOOSE, reset_every=3, class_balance=0.5)
    fresh = method.state.content()
    images = stream(1, 8)[0].float()
    method.predict(images), method.predict(torch.full_like(images, torch.nan)), method.predict(images)
    assert method.state.content()["batches"] == 2
    assert method.state.content()["started"]
    assert not torch.equal(method.state.content()["frequencies"], fresh["frequencies"])
    method.predict(images)
    assert all(torch.equal(fresh[name], tensor) for name, tensor in method.state.content().items())
