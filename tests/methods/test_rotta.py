"""RoTTA against two mutable models, lists as memory and torchvision's augmentation."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import ZeroShotClassifier, testing
from ramen.images.augment import draw
from ramen.images.preprocess import CLIP_MEAN, CLIP_STD
from tests.oracles.image_lists import TimelyLists
from tests.oracles.mutable_model import CLASSES, MutableModel, RobustBatchNorm, stream, use_robust_batch_norm
from tests.oracles.torchvision_augment import augment_with_torchvision


class Oracle:
    """Teacher and student as two modules.

    The random numbers of an update come from the method's generator at the number of images so far; memory
    and augmentation are written anew.
    """

    def __init__(
        self, kind: str, method: ramen.Method, lr: float, memory: int, interval: int, nu: float
    ) -> None:
        self.student, self.teacher = MutableModel(kind), MutableModel(kind)
        self.method, self.lr, self.M, self.interval, self.nu = method, lr, memory, interval, nu
        self.lists = TimelyLists(memory, CLASSES)
        self.images: dict[int, Tensor] = {}  # by their slots
        self.arrived = self.updates = self.refused = self.replaced = 0
        self.left_out: int | None = None  # a slot that teaches nothing

    def insert(self, image: Tensor, label: int, entropy: float) -> None:
        slot = self.lists.insert(label, entropy)
        self.refused += slot is None
        self.replaced += slot in self.images
        if slot is not None:
            self.images[slot] = image

    def update(self) -> None:
        self.updates += 1
        items = self.lists.items()
        images = torch.stack([self.images[item["slot"]] for item in items])
        ages = torch.tensor([item["age"] for item in items], dtype=torch.float64) / self.M
        mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
        drawn = draw((32, 32), self.method.generator(place=self.arrived))
        augmented = (augment_with_torchvision(images * std + mean, drawn) - mean) / std
        kept = torch.tensor([item["slot"] != self.left_out for item in items])
        images, augmented, ages = images[kept], augmented[kept], ages[kept]
        with torch.no_grad():
            target = self.teacher.logits(images).softmax(1)
        each = -(target * self.student.logits(augmented).log_softmax(1)).sum(1)
        self.student.zero_grad()
        (each * torch.exp(-ages) / (1 + torch.exp(-ages))).mean().backward()
        self.student.move(self.lr)
        with torch.no_grad():
            pairs = zip(self.teacher.parameters.values(), self.student.parameters.values(), strict=True)
            for slow, fast in pairs:
                slow.copy_((1 - self.nu) * slow + self.nu * fast)

    def predict(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.teacher.logits(images)
        p = logits.softmax(1)
        entropies = -(p * (p + 1e-6).log()).sum(1)
        for image, label, entropy in zip(images, logits.argmax(1).tolist(), entropies.tolist(), strict=True):
            self.insert(image, label, entropy)
            self.arrived += 1
            if self.arrived % self.interval == 0:
                self.update()
        return logits


class RobustOracle(Oracle):
    """Every layer of both modules stores its statistics; they move in train mode, in the update alone."""

    def __init__(self, *args: object, alpha: float, **settings: object) -> None:
        super().__init__("resnet", *args, **settings)
        self.layers = {
            name: use_robust_batch_norm(model.model, alpha)
            for name, model in (("student", self.student), ("teacher", self.teacher))
        }
        self.train(False)

    def train(self, mode: bool) -> None:
        for model in (self.student, self.teacher):
            model.model.train(mode)

    def update(self) -> None:
        self.train(True)
        super().update()
        self.train(False)


def stacked(layers: list[RobustBatchNorm]) -> Tensor:
    return torch.stack([torch.cat([layer.mean for layer in layers]), torch.cat([m.var for m in layers])])


@pytest.mark.parametrize(("memory", "interval", "alpha"), [(8, 5, 0.05), (7, 4, 0.4)])
def test_equals_two_mutable_models_with_robust_statistics(memory: int, interval: int, alpha: float) -> None:
    clf = testing.small_classifier("resnet", dtype="float64")
    settings = {"lr": 5e-3, "memory": memory, "interval": interval, "nu": 0.2, "alpha": alpha}
    method = ramen.create("rotta", clf, **settings, statistics="robust")
    oracle = RobustOracle(method, **settings)
    for images in stream(21):
        expected = oracle.predict(0.5 + 1.5 * images)  # statistics other than those of the training
        out = method.predict(0.5 + 1.5 * images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-7)
    assert oracle.updates == 105 // interval
    for name, layers in oracle.layers.items():
        found = method.state.content()[f"{name}_statistics"]
        torch.testing.assert_close(found, stacked(layers), rtol=0, atol=1e-8)
        assert not torch.allclose(found, clf.encoder.base_statistics, atol=0.1)
    assert not torch.allclose(*(method.state.content()[f"{n}_statistics"] for n in oracle.layers), atol=0.01)


def test_an_image_that_overflows_by_now_is_kept_out_of_the_statistics() -> None:
    """The update is that of a memory without it."""
    clf, (images, more) = testing.small_classifier("resnet", dtype="float64"), stream(2)
    settings = {"lr": 1e-2, "memory": 6, "interval": 6, "nu": 0.5, "alpha": 0.3}
    method = ramen.create("rotta", clf, **settings, statistics="robust")
    oracle = RobustOracle(method, **settings)
    oracle.predict(images), method.predict(images)
    oracle.left_out = 2
    state = method.state_dict()
    assert len(state["content.images"]) > 3
    state["content.images"][2] = 1e200
    method.load_state_dict(state)
    oracle.predict(more[:1]), method.predict(more[:1])
    for name, model in (("student", oracle.student), ("teacher", oracle.teacher)):
        content = method.state.content()
        flat = torch.cat([p.detach().flatten() for p in model.parameters.values()])
        torch.testing.assert_close(content[name], flat, rtol=0, atol=1e-9)
        torch.testing.assert_close(content[f"{name}_statistics"], stacked(oracle.layers[name]))
    assert not torch.allclose(flat, clf.encoder.base)


@pytest.mark.parametrize(
    ("memory", "interval", "batch"),
    [
        (8, 5, 5),  # an update a batch
        (7, 4, 6),  # within batches, sometimes two
        (3, 3, 5),  # fewer slots than classes
        (64, 13, 5),  # never full, an update every few batches
    ],
)
def test_equals_two_mutable_models(tower_kind: str, memory: int, interval: int, batch: int) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    settings = {"lr": 5e-3, "memory": memory, "interval": interval, "nu": 0.2}
    method = ramen.create("rotta", clf, **settings, seed=3)
    oracle = Oracle(tower_kind, method, **settings)
    for images in stream(21, batch):
        # before: the oracle asks the method for its generator, which must not depend on its state
        expected = oracle.predict(images)
        out = method.predict(images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-8)
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.05)
    assert oracle.updates == 21 * batch // interval
    assert oracle.refused > 3
    assert oracle.replaced > 3
    content = method.state.content()
    for name, model in (("student", oracle.student), ("teacher", oracle.teacher)):
        flat = torch.cat([p.detach().flatten() for p in model.parameters.values()])
        torch.testing.assert_close(content[name], flat, rtol=0, atol=1e-9)
    items = oracle.lists.items()
    assert torch.equal(content["images"], torch.stack([oracle.images[item["slot"]] for item in items]))
    assert content["ages"].tolist() == [item["age"] for item in items]
    assert content["entropies"].tolist() == pytest.approx([item["entropy"] for item in items], abs=1e-8)


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 2e-3), ("adam", 2e-3)])
def test_equals_two_mutable_models_with_another_optimizer(tower_kind: str, optimizer: str, lr: float) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    settings = {"lr": lr, "memory": 8, "interval": 5, "nu": 0.2}
    method = ramen.create("rotta", clf, **settings, optimizer=optimizer)
    oracle = Oracle(tower_kind, method, **settings)
    oracle.student.use_optimizer(optimizer, lr)
    for images in stream(20):
        expected = oracle.predict(images)
        out = method.predict(images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-8)
    assert oracle.updates == 20
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.05)


def test_equals_two_mutable_models_with_its_own_settings() -> None:
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("rotta", clf)
    oracle = Oracle("vit", method, 1e-2, 64, 64, 1e-3)
    for images in stream(20, 32):
        expected = oracle.predict(images)
        torch.testing.assert_close(method.predict(images).logits, expected, rtol=0, atol=1e-8)
    assert oracle.updates == 10


def test_the_interval_follows_the_memory() -> None:
    clf = testing.small_classifier()
    assert ramen.create("rotta", clf).interval == 64
    assert ramen.create("rotta", clf, memory=100).interval == 100
    assert ramen.create("rotta", clf, memory=100, interval=64).interval == 64


def test_a_memory_smaller_than_the_number_of_classes_holds_one_of_a_class() -> None:
    clf = testing.small_classifier(classes=9)
    method = ramen.create("rotta", clf, memory=4)
    for images in stream(10):
        method.predict(images.float())
    labels = method.state.content()["labels"].tolist()
    assert len(labels) == len(set(labels)) == 4


def test_a_batch_is_predicted_before_the_updates_within_it() -> None:
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("rotta", clf, memory=2, nu=1.0)
    out = method.predict(stream(1, 9)[0])
    torch.testing.assert_close(out.logits, out.zero_shot_logits)
    assert not torch.allclose(method.state.content()["teacher"], clf.encoder.base, atol=1e-2)


def test_the_teacher_stays_between_updates() -> None:
    clf = testing.small_classifier()
    method = ramen.create("rotta", clf, memory=64)
    for images in stream(12):
        assert torch.equal(method.state.content()["teacher"], clf.encoder.base)
        method.predict(images.float())
    assert torch.equal(method.state.content()["student"], clf.encoder.base)  # 60 images
    method.predict(stream(1)[0].float())
    assert not torch.equal(method.state.content()["student"], clf.encoder.base)


def test_each_update_draws_anew() -> None:
    method = ramen.create("rotta", testing.small_classifier(), memory=5)
    draws = {draw((32, 32), method.generator(place=place)) for place in (5, 10, 15)}
    assert len(draws) == 3


def test_an_image_that_overflows_by_now_does_not_cancel_the_step() -> None:
    """It was fine when it was stored; the teacher has changed since."""
    clf = testing.small_classifier()
    method = ramen.create("rotta", clf, memory=6)
    method.predict(stream(1)[0].float())
    state = method.state_dict()
    state["content.images"][2] = 1e38
    method.load_state_dict(state)
    method.predict(stream(1)[0][:1].float())
    moved = (method.state.content()["student"] != clf.encoder.base).float().mean()
    assert moved > 0.9


# -- the images' normalisation ----------------------------------------------------------------------


def without_preprocessing() -> ZeroShotClassifier:
    embeddings = testing.small_classifier(dtype="float64").class_embeddings
    return ZeroShotClassifier(testing.small_tower(), embeddings, 30.0, dtype="float64")


def test_mean_and_std_can_be_given() -> None:
    batches = stream(4)
    by_name = ramen.create("rotta", testing.small_classifier(dtype="float64"), memory=5)
    by_hand = ramen.create("rotta", without_preprocessing(), memory=5, mean=CLIP_MEAN, std=CLIP_STD)
    other = ramen.create("rotta", without_preprocessing(), memory=5, mean=(0, 0, 0), std=(1, 1, 1))
    for images in batches:
        for method in (by_name, by_hand, other):
            method.predict(images)
    assert torch.equal(by_name.state.content()["student"], by_hand.state.content()["student"])
    assert not torch.equal(by_name.state.content()["student"], other.state.content()["student"])


# -- the rest ---------------------------------------------------------------------------------------


def test_a_damaged_state_with_statistics() -> None:
    clf = testing.small_classifier("resnet")
    method = ramen.create("rotta", clf, memory=4, statistics="robust")
    method.predict(stream(1)[0].float())
    good = method.state_dict()
    for name in ("student_statistics", "teacher_statistics"):
        own = good[f"content.{name}"]
        for bad in (own[:, 1:], torch.full_like(own, torch.nan), -own.abs(), own.double()):
            with pytest.raises(ValueError, match="in the state must be"):
                method.load_state_dict({**good, f"content.{name}": bad})
    assert all(torch.equal(good[name], tensor) for name, tensor in method.state_dict().items())
    with pytest.raises(ValueError, match="statistics is 'robust' there and 'source' here"):
        ramen.create("rotta", clf, memory=4).load_state_dict(good)
