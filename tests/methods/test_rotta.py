"""RoTTA against two mutable models, lists as memory and torchvision's augmentation."""

import copy
import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import ZeroShotClassifier, testing
from ramen.images.augment import draw
from ramen.images.preprocess import CLIP_MEAN, CLIP_STD
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
        self.lists: list[list[dict]] = [[] for _ in range(CLASSES)]
        self.arrived = self.updates = self.refused = self.replaced = 0
        self.left_out: int | None = None  # a slot that teaches nothing

    def score(self, age: int, entropy: float) -> float:
        return 1 / (1 + math.exp(-age / self.M)) + entropy / math.log(CLASSES)

    def evict(self, classes: list[int], new_score: float) -> int | None:
        worst, where = None, None
        for c in classes:
            for position, item in enumerate(self.lists[c]):
                score = self.score(item["age"], item["entropy"])
                if worst is None or score >= worst:
                    worst, where = score, (c, position)
        if worst > new_score:
            self.replaced += 1
            return self.lists[where[0]].pop(where[1])["slot"]
        self.refused += 1
        return None

    def insert(self, image: Tensor, label: int, entropy: float) -> None:
        total = sum(map(len, self.lists))
        if len(self.lists[label]) >= self.M / CLASSES:
            slot = self.evict([label], self.score(0, entropy))
        elif total < self.M:
            slot = total
        else:
            longest = max(map(len, self.lists))
            majority = [c for c in range(CLASSES) if len(self.lists[c]) == longest]
            slot = self.evict(majority, self.score(0, entropy))
        if slot is not None:
            self.lists[label].append({"image": image, "entropy": entropy, "age": 0, "slot": slot})
        for item in (item for items in self.lists for item in items):
            item["age"] += 1

    def update(self) -> None:
        self.updates += 1
        items = sorted((item for items in self.lists for item in items), key=lambda item: item["slot"])
        images = torch.stack([item["image"] for item in items])
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
        found = method.content()[f"{name}_statistics"]
        torch.testing.assert_close(found, stacked(layers), rtol=0, atol=1e-8)
        assert not torch.allclose(found, clf.encoder.base_statistics, atol=0.1)
    assert not torch.allclose(*(method.content()[f"{n}_statistics"] for n in oracle.layers), atol=0.01)


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
        content = method.content()
        flat = torch.cat([p.detach().flatten() for p in model.parameters.values()])
        torch.testing.assert_close(content[name], flat, rtol=0, atol=1e-9)
        torch.testing.assert_close(content[f"{name}_statistics"], stacked(oracle.layers[name]))
    assert not torch.allclose(flat, clf.encoder.base)


def test_where_nothing_helps_an_update_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = testing.small_classifier("resnet", dtype="float64")
    monkeypatch.setattr("ramen.methods.rotta.refuse_overflowing", lambda _, images, usable: (images, usable))
    method = ramen.create("rotta", clf, memory=6, statistics="robust")
    method.predict(stream(1)[0])
    state = method.state_dict()
    state["content.images"][2] = 1e200
    method.load_state_dict(state)
    method.predict(stream(1)[0][:1])
    assert torch.equal(method.content()["student"], clf.encoder.base)
    assert torch.equal(method.content()["teacher_statistics"], clf.encoder.base_statistics)


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
    content = method.content()
    for name, model in (("student", oracle.student), ("teacher", oracle.teacher)):
        flat = torch.cat([p.detach().flatten() for p in model.parameters.values()])
        torch.testing.assert_close(content[name], flat, rtol=0, atol=1e-9)
    items = sorted((item for items in oracle.lists for item in items), key=lambda item: item["slot"])
    assert torch.equal(content["images"], torch.stack([item["image"] for item in items]))
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
    labels = method.content()["labels"].tolist()
    assert len(labels) == len(set(labels)) == 4


def test_a_batch_is_predicted_before_the_updates_within_it() -> None:
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("rotta", clf, memory=2, nu=1.0)
    out = method.predict(stream(1, 9)[0])
    torch.testing.assert_close(out.logits, out.zero_shot_logits)
    assert not torch.allclose(method.content()["teacher"], clf.encoder.base, atol=1e-2)


def test_the_teacher_stays_between_updates() -> None:
    clf = testing.small_classifier()
    method = ramen.create("rotta", clf, memory=64)
    for images in stream(12):
        assert torch.equal(method.content()["teacher"], clf.encoder.base)
        method.predict(images.float())
    assert torch.equal(method.content()["student"], clf.encoder.base)  # 60 images
    method.predict(stream(1)[0].float())
    assert not torch.equal(method.content()["student"], clf.encoder.base)


def test_the_seed_decides_the_augmentation() -> None:
    clf, batches = testing.small_classifier(dtype="float64"), stream(4)
    students = []
    for seed in (0, 0, 1):
        method = ramen.create("rotta", clf, memory=5, seed=seed)
        for images in batches:
            method.predict(images)
        students.append(method.content()["student"])
    assert torch.equal(students[0], students[1])
    assert not torch.equal(students[0], students[2])


def test_each_update_draws_anew() -> None:
    method = ramen.create("rotta", testing.small_classifier(), memory=5)
    draws = {draw((32, 32), method.generator(place=place)) for place in (5, 10, 15)}
    assert len(draws) == 3


@pytest.mark.parametrize("bad", [torch.nan, 1e38])
def test_a_refused_image_leaves_no_trace(bad: float) -> None:
    clf = testing.small_classifier()
    with_bad, without = (ramen.create("rotta", clf, memory=7, interval=4, nu=0.2) for _ in range(2))
    for images in (batch.float() for batch in stream(6)):
        spoiled = torch.cat([images[:2], torch.full_like(images[:1], bad), images[2:]])
        a, b = with_bad.predict(spoiled), without.predict(images)
        assert a.fallback.tolist() == [False, False, True, False, False, False]
        torch.testing.assert_close(a.logits[[0, 1, 3, 4, 5]], b.logits, rtol=0, atol=1e-3)
    for name, tensor in without.content().items():
        torch.testing.assert_close(with_bad.content()[name], tensor, rtol=0, atol=1e-4)


def test_an_image_that_overflows_by_now_does_not_cancel_the_step() -> None:
    """It was fine when it was stored; the teacher has changed since."""
    clf = testing.small_classifier()
    method = ramen.create("rotta", clf, memory=6)
    method.predict(stream(1)[0].float())
    state = method.state_dict()
    state["content.images"][2] = 1e38
    method.load_state_dict(state)
    method.predict(stream(1)[0][:1].float())
    moved = (method.content()["student"] != clf.encoder.base).float().mean()
    assert moved > 0.9


def test_passes_an_image() -> None:
    """The teacher on the batch, the teacher and the student on the memory, one way back."""
    counter = testing.CountingClassifier(testing.small_classifier(classes=2))
    method = ramen.create("rotta", counter, memory=6)
    for images in stream(5, 6):
        method.predict(images.float())
        held = len(method.content()["images"])
        assert held <= 6
        assert counter.forwards[-3:] == [6, held, held]
        assert counter.backwards[-1] == held
    assert held == 6
    assert (len(counter.forwards), len(counter.backwards)) == (15, 5)


# -- the images' normalisation ----------------------------------------------------------------------


def without_preprocessing(dtype: str = "float64") -> ZeroShotClassifier:
    clf = copy.copy(testing.small_classifier(dtype=dtype))
    clf._preprocess = None
    return clf


def test_without_preprocessing_it_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match=r"method 'rotta' augments images in \[0, 1\] and must know how"):
        ramen.create("rotta", without_preprocessing())


def test_mean_and_std_can_be_given() -> None:
    batches = stream(4)
    by_name = ramen.create("rotta", testing.small_classifier(dtype="float64"), memory=5)
    by_hand = ramen.create("rotta", without_preprocessing(), memory=5, mean=CLIP_MEAN, std=CLIP_STD)
    other = ramen.create("rotta", without_preprocessing(), memory=5, mean=(0, 0, 0), std=(1, 1, 1))
    for images in batches:
        for method in (by_name, by_hand, other):
            method.predict(images)
    assert torch.equal(by_name.content()["student"], by_hand.content()["student"])
    assert not torch.equal(by_name.content()["student"], other.content()["student"])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mean": (0.5, 0.5, 0.5)}, "mean and std must be given together"),
        ({"mean": (0.5,), "std": (1, 1, 1)}, "mean and std must be three numbers"),
        ({"mean": (0, 0, 0), "std": (1, 0, 1)}, "mean and std must be three numbers, std above 0"),
        ({"memory": 0}, "memory must be at least 1"),
        ({"interval": 0}, "interval must be at least 1"),
        ({"nu": 1.1}, "nu must be between 0 and 1, got 1.1"),
        ({"alpha": 1.1}, "alpha must be between 0 and 1, got 1.1"),
        ({"alpha": -0.1}, "alpha must be finite and at least 0"),
        ({"statistics": "batch"}, "statistics must be one of 'source', 'robust', got 'batch'"),
        ({"statistics": "robust"}, "statistics='robust' needs BatchNorm layers, this encoder has none"),
        ({"timeliness": -1}, "timeliness must be finite and at least 0"),
        ({"uncertainty": -1}, "uncertainty must be finite and at least 0"),
    ],
)
def test_bad_parameters(parameters: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ramen.create("rotta", testing.small_classifier(), **parameters)


# -- the rest ---------------------------------------------------------------------------------------


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    clf = testing.small_classifier()
    method = ramen.create("rotta", clf, memory=4)
    method.predict(stream(1)[0].float())
    good = method.state_dict()
    for name, value in {
        "student": torch.full_like(good["content.student"], torch.nan),
        "teacher": good["content.teacher"][1:],
        "images": good["content.images"][:, :2],
        "arrived": torch.tensor(0),
        "labels": good["content.labels"] + CLASSES,
        "ages": good["content.ages"] * 0,
        "entropies": good["content.entropies"].float(),
    }.items():
        with pytest.raises(ValueError, match="in the state must be"):
            method.load_state_dict({**good, f"content.{name}": value})
    with pytest.raises(ValueError, match="the memory's state must hold ages, entropies"):
        method.load_state_dict({k: v for k, v in good.items() if k != "content.ages"})
    assert all(torch.equal(good[name], tensor) for name, tensor in method.state_dict().items())
    with pytest.raises(ValueError, match="memory is 4 there and 5 here"):
        ramen.create("rotta", clf, memory=5).load_state_dict(good)


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


def test_memory_bytes_with_statistics() -> None:
    clf = testing.small_classifier("resnet")
    plain, robust = (ramen.create("rotta", clf, memory=10, statistics=s) for s in ("source", "robust"))
    assert robust.memory_bytes() - plain.memory_bytes() == 2 * 4 * clf.encoder.base_statistics.numel()


def test_memory_bytes() -> None:
    clf = testing.small_classifier()
    method = ramen.create("rotta", clf, memory=10)
    before = method.memory_bytes()
    assert before == 2 * 4 * len(clf.encoder.base) + 10 * 3 * 32 * 32 * 4 + 10 * 24 + 8
    for images in stream(20):
        method.predict(images.float())
    kept = sum(tensor.numel() * tensor.element_size() for tensor in method.content().values())
    assert kept <= method.memory_bytes() == before


def test_half_precision_encoders_adapt_alike() -> None:
    students = []
    for dtype in ("float32", "bfloat16"):
        method = ramen.create("rotta", testing.small_classifier(dtype=dtype), memory=5)
        for images in stream(1):
            method.predict(images.float())
        assert method.content()["student"].dtype == torch.float32
        students.append(method.content()["student"])
    assert ((students[0] - students[1]).abs() < 1e-6).float().mean() > 0.7


def test_the_record_tells_both_readings() -> None:
    record = ramen.describe("rotta")
    assert (record.defaults["lr"], record.defaults["memory"], record.defaults["nu"]) == (1e-2, 64, 1e-3)
    assert "memory=100" in str(record)
    assert "3 forward, 1 backward, with memory and interval equal to the batch size" in str(record)
