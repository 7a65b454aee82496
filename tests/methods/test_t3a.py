"""T3A against its published algorithm: supports in lists, sorted by entropy."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, tower_features, unit
from tests.helpers.passes import answer_of

SCALE = 30.0


class PublishedT3A:
    """Supports with entropies, of which each class keeps the lowest; the text is one of them or stays."""

    def __init__(self, text: Tensor, capacity: int, kept: bool, weight: float) -> None:
        self.text, self.capacity, self.kept, self.weight = text, capacity, kept, weight
        self.supports: list[list[tuple[float, Tensor]]] = [[] for _ in text]
        if not kept:
            for t in text:
                entropy, label = self.seen(t)
                self.supports[label].append((entropy, weight * t))

    def seen(self, z: Tensor) -> tuple[float, int]:
        p = (SCALE * z @ self.text.T).softmax(0)
        return -float((p * p.log()).sum()), int(p.argmax())

    def answer(self, batch: Tensor) -> Tensor:
        for z in batch:
            entropy, label = self.seen(z)
            self.supports[label].append((entropy, z))
        self.supports = [sorted(held, key=lambda s: s[0])[: self.capacity] for held in self.supports]
        vectors = []
        for t, held in zip(self.text, self.supports, strict=True):
            total = sum((z for _, z in held), torch.zeros_like(t))
            vectors.append(total + self.weight * t if self.kept else total)
        return SCALE * batch @ unit(torch.stack(vectors)).T


@pytest.mark.parametrize("text", ["kept", "support"])
@pytest.mark.parametrize(("capacity", "weight"), [(1, 1.0), (3, 2.5), (200, 1.0)])
def test_equals_the_published_algorithm(text: str, capacity: int, weight: float, tower_kind: str) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    oracle = PublishedT3A(clf.class_embeddings, capacity, text == "kept", weight)
    method = ramen.create("t3a", clf, capacity=capacity, text=text, text_weight=weight)
    for images in stream():
        expected = oracle.answer(tower_features(tower_kind, images))
        torch.testing.assert_close(method.predict(images).logits, expected, rtol=0, atol=1e-9)
    held = [len(supports) for supports in oracle.supports]
    if capacity < 200:
        assert sum(count == capacity for count in held) >= 3  # full, and replacing
    else:
        assert sum(held) == 180 + (0 if text == "kept" else len(held))


def by_hand() -> tuple[ramen.ZeroShotClassifier, Tensor]:
    """Two classes along two axes; two sure images of the first class, and an unsure one."""
    clf = classifier_of(torch.eye(2, 16), scale=4.0)
    plane = torch.tensor([[1.0, -1.0], [1.0, -0.5], [1.0, 0.9]])
    return clf, torch.cat([unit(plane), torch.zeros(3, 14)], 1).double()


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_text_that_competes(capacity: int) -> None:
    """The images at an angle from the second text have lower entropies than the texts themselves."""
    clf, z = by_hand()
    method = ramen.create("t3a", clf, capacity=capacity, text="support")
    logits = answer_of(method, z, torch.ones(3, dtype=torch.bool)).logits
    first, second = clf.class_embeddings
    supports = [z[0], z[1], first][:capacity]  # in the order of their entropies; z[2] is the fourth
    expected = 4.0 * z @ torch.stack([unit(torch.stack(supports).sum(0)), second]).T
    torch.testing.assert_close(logits, expected)


def test_a_text_that_is_kept() -> None:
    clf, z = by_hand()
    method = ramen.create("t3a", clf, capacity=1, text_weight=3.0)
    logits = answer_of(method, z, torch.ones(3, dtype=torch.bool)).logits
    first, second = clf.class_embeddings
    torch.testing.assert_close(logits, 4.0 * z @ torch.stack([unit(z[0] + 3 * first), second]).T)
