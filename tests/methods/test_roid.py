"""ROID and CMF against a mutable model with torch's optimizers, boolean indexing and torchvision."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.images.augment import draw
from ramen.images.preprocess import CLIP_MEAN, CLIP_STD
from tests.oracles.mutable_model import CLASSES, MutableModel, stream, use_batch_statistics
from tests.oracles.mutable_model import compare as compare_answers
from tests.oracles.torchvision_augment import augment_without_noise_with_torchvision


class Oracle(MutableModel):
    """The steps of ROID's code: images that are not diverse are neither augmented nor encoded again."""

    def __init__(
        self,
        kind: str,
        method: ramen.Method,
        lr: float = 2.5e-4,
        temperature: float = 1 / 3,
        source_share: float = 0.01,
        prior: str = "log",
        filter: str = "fixed",
        batch_size: int | None = None,
        optimizer: str = "sgd",
    ) -> None:
        super().__init__(kind)
        self.use_optimizer(optimizer, lr)
        if optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.parameters.values(), lr=lr, momentum=0.9, nesterov=True)
        self.method, self.lr, self.temperature, self.share = method, lr, temperature, source_share
        self.prior, self.filter, self.batch_size = prior, filter, batch_size
        self.q = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
        self.start = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.hidden = {name: p.clone() for name, p in self.start.items()}
        self.variance = 0.0
        self.seen = 0
        self.kept: list[int] = []

    def weights(self, p: Tensor) -> Tensor:
        found = []
        diversity = [1 - float(self.q @ row / self.q.norm() / row.norm()) for row in p]
        certainty = [float((row * row.log()).sum()) for row in p]
        for values in (diversity, certainty):
            low, high = min(values), max(values)
            values[:] = [(v - low) / (high - low) if high > low else 0.0 for v in values]
        mean = sum(diversity) / len(diversity)
        for d, c in zip(diversity, certainty, strict=True):
            found.append(0.0 if d < mean else math.exp(d * c / self.temperature))
        return torch.tensor(found, dtype=torch.float64)

    def augmented(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (CLIP_MEAN, CLIP_STD))
        drawn = draw((32, 32), self.method.generator(place=self.seen))
        return (augment_without_noise_with_torchvision(images * std + mean, drawn) - mean) / std

    def predict(self, images: Tensor) -> Tensor:
        logits = self.logits(images)
        p = logits.softmax(1)
        weights = self.weights(p.detach())
        kept = weights > 0
        self.kept.append(int(kept.sum()))
        self.q = 0.9 * self.q + 0.1 * p.detach().mean(0)

        count = self.batch_size or len(images)
        r = p[kept].clamp(max=0.99)
        first = (weights[kept] * -(r * torch.log(r / (1 - r) + 1e-5)).sum(1)).sum() / count
        other = self.logits(self.augmented(images)[kept]).softmax(1)
        symmetric = -0.5 * (p[kept] * other.log()).sum(1) - 0.5 * (other * p[kept].log()).sum(1)
        second = (weights[kept] * symmetric).sum() / count
        self.zero_grad()
        (first + second).backward()
        self.move(self.lr)
        self.ensemble()
        self.seen += len(images)

        pi = p.detach().mean(0)
        if self.prior == "off":
            return logits.detach()
        g = max(1 / len(images), 1 / CLASSES) / float(pi.max())
        pi = (pi + g) / (1 + g * CLASSES)
        return logits.detach() + pi.log() if self.prior == "log" else logits.detach() * pi

    @torch.no_grad()
    def ensemble(self) -> None:
        if self.filter == "fixed":
            for name, w in self.parameters.items():
                w.copy_((1 - self.share) * w + self.share * self.start[name])
            return
        noise = 0.005 * sum(w.numel() for w in self.parameters.values()) / 38_400
        variance = 0.99**2 * self.variance + noise
        gain = max((1 - noise) / (variance + 1 - noise), 0.89)
        gain = 1.0 if gain > 0.9999 else gain
        self.variance = gain * variance
        for name, w in self.parameters.items():
            expected = 0.99 * self.hidden[name] + 0.01 * self.start[name]
            self.hidden[name] = gain * expected + (1 - gain) * w
            w.copy_(0.99 * w + 0.01 * self.hidden[name])


def compare(oracle: Oracle, method: ramen.Method, batches: list[Tensor]) -> None:
    compare_answers(oracle, method, batches, 1e-7)
    torch.testing.assert_close(method.state.content()["probabilities"], oracle.q, rtol=0, atol=1e-10)
    assert method.state.content()["seen"] == oracle.seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1e-3, "optimizer": "adam", "prior": "logits", "batch_size": 12},
        {"lr": 1e-3, "optimizer": "sign", "prior": "off", "temperature": 1.0, "source_share": 0.2},
        {"lr": 1e-3, "filter": "kalman"},
    ],
    ids=str,
)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("roid", clf, **options)
    oracle = Oracle(tower_kind, method, **options)
    compare(oracle, method, stream(20, 7))
    assert sum(1 < kept < 7 for kept in oracle.kept) > 10
    assert not torch.allclose(method.state.content()["affine"], clf.encoder.base, atol=1e-4)
    if "filter" in options:
        # So small an encoder has so little noise that hidden weights only drift; see the test of the filter.
        assert 0 < float(method.state.content()["variance"]) == pytest.approx(oracle.variance, rel=1e-6)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    """In the second pass, those of the images that are kept."""
    clf = testing.small_classifier("resnet", dtype="float64")
    lr = 2e-5  # larger ones move weights so far that rounding errors grow with every batch
    method = ramen.create("roid", clf, lr=lr, statistics="batch")
    oracle = Oracle("resnet", method, lr=lr)
    use_batch_statistics(oracle.model)
    compare(oracle, method, stream(20, 7))


def test_one_image_at_a_time_equals_a_mutable_model() -> None:
    """Nothing to scale: the weight is 1."""
    method = ramen.create("roid", testing.small_classifier(dtype="float64"), lr=1e-3)
    oracle = Oracle("vit", method, lr=1e-3)
    compare(oracle, method, stream(10, 1))
    assert oracle.kept == [1] * 10


def test_images_that_are_alike_all_count() -> None:
    """Their diversity is equal, so that none is below the mean, whatever rounding does."""
    clf = testing.small_classifier()
    image = stream(1, 1)[0].float()
    several, one = (ramen.create("roid", clf, lr=1e-2, prior="off") for _ in range(2))
    several.predict(image.repeat(3, 1, 1, 1))
    one.predict(image)
    moved = one.state.content()["affine"] - clf.encoder.base
    assert moved.norm() > 1e-5
    torch.testing.assert_close(
        several.state.content()["affine"] - clf.encoder.base, moved, rtol=1e-2, atol=1e-6
    )


def test_the_filter_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as much noise as a large encoder has, the hidden weights take a part of what they observe."""
    clf = testing.small_classifier(dtype="float64")
    size = len(clf.encoder.base)
    monkeypatch.setattr("ramen.methods.roid._PROCESS_NOISE", 0.005 / size)
    method = ramen.create("roid", clf, lr=0.0, filter="kalman")
    state = method.state_dict()
    state["content.affine"] = clf.encoder.base + 1
    method.load_state_dict(state)
    images = stream(1)[0]
    method.predict(images)
    stays = 0.995 / (0.005 + 0.995)
    found = method.state.content()
    ones = torch.ones(size, dtype=torch.float64)
    torch.testing.assert_close(found["hidden"] - clf.encoder.base, (1 - stays) * ones, rtol=0, atol=1e-9)
    weights = (0.99 + 0.01 * (1 - stays)) * ones
    torch.testing.assert_close(found["affine"] - clf.encoder.base, weights, rtol=0, atol=1e-9)
    assert float(found["variance"]) == pytest.approx(stays * 0.005)
    for _ in range(60):
        method.predict(images)
    variance = float(method.state.content()["variance"])
    next_variance = 0.99**2 * variance + 0.005
    stays = max(0.995 / (next_variance + 0.995), 0.89)
    assert variance == pytest.approx(stays * next_variance, rel=1e-3)  # it has settled


def test_unknown_normalisation_is_refused() -> None:
    known = testing.small_classifier()
    clf = ramen.ZeroShotClassifier(testing.small_tower(), known.class_embeddings, 30.0)
    with pytest.raises(ValueError, match="method 'roid' augments images"):
        ramen.create("roid", clf)
    ramen.create("roid", clf, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)).predict(stream(1)[0].float())
