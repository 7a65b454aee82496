"""OGA against its published algorithm: slots in lists, one image at a time, in numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, tower_features, unit
from tests.helpers.passes import answer_of

SCALE = 30.0


class PublishedOGA:
    """Slots per class; means and covariance are made anew for every batch, with an inverse by numpy."""

    def __init__(self, text: np.ndarray, capacity: int, tau: float, divide_by: str, scale: float) -> None:
        self.text, self.capacity, self.divide_by, self.scale = text, capacity, divide_by, scale
        self.tau = tau * scale / 100 * 512 / text.shape[1]
        self.slots: list[list[tuple[float, np.ndarray]]] = [[] for _ in text]
        self.regularised: bool | None = None

    def store(self, z: np.ndarray) -> None:
        logits = self.scale * self.text @ z
        p = np.exp(logits - logits.max())
        p /= p.sum()
        entropy = -float((p * np.log(p)).sum())
        slots = self.slots[int(p.argmax())]
        if len(slots) < self.capacity:
            slots.append((entropy, z))
        else:
            worst = max(range(len(slots)), key=lambda slot: slots[slot][0])
            if entropy < slots[worst][0]:
                slots[worst] = (entropy, z)

    def gaussians(self) -> tuple[np.ndarray, np.ndarray]:
        width = self.text.shape[1]
        means = self.text.copy()
        for c, slots in enumerate(self.slots):
            if len(slots) >= 2:
                divisor = len(slots) if self.divide_by == "count" else self.capacity
                means[c] = sum(z for _, z in slots) / divisor
        if max(map(len, self.slots)) < 3:
            return means, width * np.eye(width)
        rows = np.array([z - means[c] for c, slots in enumerate(self.slots) for _, z in slots])
        covariance = np.cov(rows.T)
        self.regularised = len(rows) <= 4 * width
        if self.regularised:
            summed = (len(rows) - 1) * covariance + np.trace(covariance) * np.eye(width)
            return means, width * np.linalg.pinv(summed)
        return means, np.linalg.pinv(covariance, rcond=1e-6)

    def answer(self, batch: np.ndarray) -> np.ndarray:
        """Probabilities."""
        for z in batch:
            self.store(z)
        means, precision = self.gaussians()
        found = []
        for z in batch:
            g = np.array([-(z - mean) @ precision @ (z - mean) / 2 for mean in means])
            logits = self.scale * self.text @ z + self.tau * g
            p = np.exp(logits - logits.max())
            found.append(p / p.sum())
        return np.array(found)


@pytest.mark.parametrize("divide_by", ["count", "capacity"])
@pytest.mark.parametrize("capacity", [1, 8, 60])
def test_equals_the_published_algorithm(capacity: int, divide_by: str, tower_kind: str) -> None:
    """A capacity of 60 stores more than four images per dimension in the end."""
    clf = testing.small_classifier(tower_kind, dtype="float64")
    oracle = PublishedOGA(clf.class_embeddings.numpy(), capacity, 0.5, divide_by, SCALE)
    method = ramen.create("oga", clf, capacity=capacity, tau=0.5, divide_by=divide_by)
    for images in [images[:4] if n == 0 else images for n, images in enumerate(stream(20))]:
        expected = torch.from_numpy(oracle.answer(tower_features(tower_kind, images).numpy()))
        out = method.predict(images).logits.softmax(1)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)
    assert method.state.content()["counts"].tolist() == list(map(len, oracle.slots))
    assert oracle.regularised is {1: None, 8: True, 60: False}[capacity]


def plane(*rows: tuple[float, float]) -> Tensor:
    """Unit vectors in a plane of two classes."""
    return torch.cat([unit(torch.tensor(rows)), torch.zeros(len(rows), 14)], 1).double()


def every(rows: Tensor) -> Tensor:
    return torch.ones(len(rows), dtype=torch.bool)


def test_before_there_is_a_covariance() -> None:
    """One image of a class does not move its mean, two do; then distances have the variance 1/d."""
    clf = classifier_of(torch.eye(2, 16), scale=50.0)
    method = ramen.create("oga", clf, tau=0.1)
    tau = 0.1 * 0.5 * 512 / 16
    z = plane((1.0, 0.2), (1.0, 0.3))
    means = clf.class_embeddings.clone()
    for place in range(2):
        if place:
            means[0] = z.mean(0)
        answer = answer_of(method, z[place : place + 1], every(z[:1]))
        g = -16 * (z[place] - means).square().sum(1) / 2
        expected = (50 * clf.class_embeddings @ z[place] + tau * g).softmax(0)
        torch.testing.assert_close(answer.logits[0].softmax(0), expected)


def test_equal_images_say_nothing() -> None:
    """Their covariance is 0, and so is its pseudo-inverse."""
    clf = classifier_of(torch.eye(2, 16))
    z = plane((1.0, 0.2)).repeat(3, 1)
    answer = answer_of(ramen.create("oga", clf), z, every(z))
    torch.testing.assert_close(answer.logits, clf.logits(z))


def test_images_in_a_plane() -> None:
    """More than four images per dimension, in two of sixteen: directions without variance count as 0."""
    clf = classifier_of(torch.eye(2, 16))
    angles = torch.linspace(-0.6, 2.1, 80)
    z = plane(*zip(angles.cos().tolist(), angles.sin().tolist(), strict=True))
    method = ramen.create("oga", clf, capacity=80)
    answer_of(method, z, every(z))
    oracle = PublishedOGA(clf.class_embeddings.numpy(), 80, 0.05, "count", 30.0)
    oracle.answer(z.numpy())
    assert oracle.regularised is False
    answer = answer_of(method, z[:5], every(z[:5]))
    expected = torch.from_numpy(oracle.answer(z[:5].numpy()))
    torch.testing.assert_close(answer.logits.softmax(1), expected, rtol=0, atol=1e-7)


def test_a_step_is_recorded_unless_the_host_may_have_to_choose_the_inverse() -> None:
    """Up to four embeddings per dimension there is only one form; the small tower has 5 classes."""
    clf = testing.small_classifier()
    width = clf.class_embeddings.shape[1]
    most = 4 * width // 5
    assert ramen.create("oga", clf, capacity=most).recordable
    assert not ramen.create("oga", clf, capacity=most + 1).recordable
