"""CoTTA on norm layers against three mutable models, torch's optimizers and torchvision's augmentation."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.images.augment import draw
from ramen.images.preprocess import CLIP_MEAN, CLIP_STD
from ramen.utils.numerics import pair_scores
from tests.oracles.mutable_model import MutableModel, stream, use_batch_statistics
from tests.oracles.mutable_model import compare as compare_answers
from tests.oracles.torchvision_augment import augment_with_torchvision


class Oracle:
    """Student, teacher and anchor as three modules, as in CoTTA's code."""

    def __init__(
        self,
        kind: str,
        method: ramen.Method,
        lr: float = 1e-3,
        threshold: float = 0.92,
        augmentations: int = 32,
        nu: float = 1e-3,
        forget: float = 0.01,
        loss: str = "cross_entropy",
        optimizer: str = "adam",
    ) -> None:
        self.student, self.teacher, self.anchor = (MutableModel(kind) for _ in range(3))
        self.student.use_optimizer(optimizer, lr)
        self.method, self.lr, self.threshold, self.augmentations = method, lr, threshold, augmentations
        self.nu, self.forget, self.loss = nu, forget, loss
        self.seen = self.sure = self.unsure = self.restored = 0

    @torch.no_grad()
    def target(self, images: Tensor) -> Tensor:
        if self.anchor.logits(images).softmax(1).max(1).values.mean() >= self.threshold:
            self.sure += 1
            return self.teacher.logits(images)
        self.unsure += 1
        mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
        generator = self.method.generator(place=self.seen)
        found = []
        for _ in range(self.augmentations):
            changed = augment_with_torchvision(images * std + mean, draw((32, 32), generator))
            found.append(self.teacher.logits((changed - mean) / std))
        return torch.stack(found).mean(0)

    def predict(self, images: Tensor) -> Tensor:
        before = self.sure
        target = self.target(images)
        sure = self.sure > before
        logits = self.student.logits(images)
        p, q = logits.softmax(1), target.softmax(1)
        each = -(q * p.log()).sum(1)
        if self.loss == "symmetric":
            each = 0.5 * each - 0.5 * (p * q.log()).sum(1)
        self.student.zero_grad()
        each.mean().backward()
        pairs = [(m.grad, m, self.teacher.parameters[name]) for name, m in self.student.parameters.items()]
        if sure and all(torch.equal(mine, others) for _, mine, others in pairs):
            for gradient, *_ in pairs:
                gradient.zero_()  # only rounding errors are in it
        self.student.move(self.lr)
        with torch.no_grad():
            names = list(self.student.parameters)
            for name in names:
                slow, fast = self.teacher.parameters[name], self.student.parameters[name]
                slow += self.nu * (fast - slow)  # equal ones stay exactly equal
            places = torch.arange(sum(p.numel() for p in self.student.parameters.values()))
            draws = iter(pair_scores(self.method.seed, torch.tensor(self.seen), places).tolist())
            for name in names:
                weight, original = self.student.parameters[name], self.anchor.parameters[name]
                for index in range(weight.numel()):
                    if next(draws) < self.forget:
                        weight.view(-1)[index] = original.view(-1)[index]
                        self.restored += 1
        self.seen += len(images)
        return target


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor]) -> None:
    compare_answers(oracle, method, batches, 1e-6)
    assert method.state.content()["seen"] == oracle.seen
    for name, model in (("student", oracle.student), ("teacher", oracle.teacher)):
        flat = torch.cat([p.detach().flatten() for p in model.parameters.values()])
        torch.testing.assert_close(method.state.content()[name], flat, rtol=0, atol=1e-6)


QUICK = {"augmentations": 2, "nu": 0.1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "symmetric", "optimizer": "sgd", "lr": 1e-3, "seed": 4},
        {"optimizer": "sign", "forget": 0.1},
    ],
    ids=str,
)
def test_equals_mutable_models(tower_kind: str, options: dict) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    batches = stream(20, 3)
    means = [clf.logits(clf.encode(images)).softmax(1).amax(1).mean().item() for images in batches]
    settings = {**QUICK, **options, "threshold": sum(sorted(means)[9:11]) / 2}  # sure of every second batch
    method = ramen.create("cotta", clf, **settings)
    settings.pop("seed", None)
    oracle = Oracle(tower_kind, method, **settings)
    compare(oracle, method, batches)
    assert oracle.sure > 3
    assert oracle.unsure > 3
    assert oracle.restored > 20
    assert not torch.allclose(method.state.content()["teacher"], clf.encoder.base, atol=1e-3)


def test_equals_mutable_models_with_the_statistics_of_the_batch() -> None:
    clf = testing.small_classifier("resnet", dtype="float64")
    options = {**QUICK, "lr": 1e-4, "threshold": 0.8}
    method = ramen.create("cotta", clf, **options, statistics="batch")
    oracle = Oracle("resnet", method, **options)
    for model in (oracle.student, oracle.teacher, oracle.anchor):
        use_batch_statistics(model.model)
    compare(oracle, method, stream(20, 5))


def test_a_threshold_from_source_images() -> None:
    """The 5 % quantile less 0.05; a reset keeps it, a state has it."""
    clf = testing.small_classifier()
    method = ramen.create("cotta", clf, augmentations=2)
    images = torch.cat(stream(5, 8)).float()
    method.remember_source(images, batch_size=7)
    confidences = clf.logits(clf.encode(images)).softmax(1).amax(1)
    expected = torch.quantile(confidences.double(), 0.05) - 0.05
    torch.testing.assert_close(method.state.content()["bound"], expected, rtol=0, atol=1e-6)
    method.predict(images[:4])
    method.reset()
    torch.testing.assert_close(method.state.content()["bound"], expected, rtol=0, atol=1e-6)
    other = ramen.create("cotta", clf, augmentations=2)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.predict(images[:4]).logits, method.predict(images[:4]).logits)
    with pytest.raises(ValueError, match="images"):
        method.remember_source(torch.full((2, 3, 32, 32), torch.nan))


def test_everything_can_be_forgotten() -> None:
    clf = testing.small_classifier()
    method = ramen.create("cotta", clf, lr=1e-2, threshold=1.0, augmentations=2, nu=0.5, forget=1.0)
    method.predict(stream(1)[0].float())
    assert torch.equal(method.state.content()["student"], clf.encoder.base)
    assert not torch.equal(method.state.content()["teacher"], clf.encoder.base)


@pytest.mark.parametrize("optimizer", ["adam", "sign"])
def test_a_sure_stream_teaches_nothing(optimizer: str) -> None:
    """The student agrees with the teacher, which is the pretrained model, and stays so."""
    clf = testing.small_classifier()
    method = ramen.create("cotta", clf, lr=1e-2, threshold=0.1, optimizer=optimizer)
    for images in stream(3):
        method.predict(images.float())
    for name in ("student", "teacher"):
        assert torch.equal(method.state.content()[name], clf.encoder.base)


@pytest.mark.parametrize("bad", [torch.nan, 1e38])
def test_a_refused_image_leaves_no_trace(bad: float) -> None:
    """Without augmentations, whose noise depends on places in the batch, but for a batch before."""
    clf = testing.small_classifier()
    settings = {"lr": 1e-3, "threshold": 1.0, "augmentations": 2, "nu": 0.1}
    with_bad, without = (ramen.create("cotta", clf, **settings) for _ in range(2))
    for method in (with_bad, without):
        method.predict(stream(1, seed=1)[0].float())
        method.bound = method.bound * 0 + 0.1
        method.state.commit(vars(method))
    for images in (batch.float() for batch in stream(4)):
        spoiled = torch.cat([images[:2], torch.full_like(images[:1], bad), images[2:]])
        some, every = with_bad.predict(spoiled), without.predict(images)
        assert some.fallback.tolist() == [False, False, True, False, False, False]
        torch.testing.assert_close(some.logits[~some.fallback], every.logits, rtol=0, atol=1e-3)
    torch.testing.assert_close(
        with_bad.state.content()["teacher"], without.state.content()["teacher"], rtol=1e-3, atol=1e-4
    )
