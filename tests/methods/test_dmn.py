"""DMN-ZS against its published algorithm: slots in lists, one image at a time."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import ZeroShotClassifier, testing
from tests.helpers.embedding_streams import stream, tower_features

SCALE = 30.0


class Published:
    """Features and entropies in numbered slots; class vectors of full width for every image."""

    def __init__(self, text: Tensor, alpha: float, beta: float, capacity: int) -> None:
        self.text, self.alpha, self.beta, self.capacity = text, alpha, beta, capacity
        self.slots: list[list[tuple[Tensor, float]]] = [[] for _ in text]

    def write(self, z: Tensor, entropy: float, label: int) -> None:
        slots = self.slots[label]
        if len(slots) < self.capacity:
            slots.append((z, entropy))
        elif any(stored > entropy for _, stored in slots):
            worst = max(range(self.capacity), key=lambda slot: slots[slot][1])
            slots[worst] = (z, entropy)

    def answer(self, z: Tensor) -> Tensor:
        """The score, which is not a logit."""
        p_text = (SCALE * z @ self.text.T).softmax(0)
        entropy = -sum(p * math.log(p + 1e-8) for p in p_text.tolist())
        self.write(z, entropy, int(p_text.argmax()))
        cosines = []
        for t, slots in zip(self.text, self.slots, strict=True):
            v = torch.zeros_like(z)
            for m in [m for m, _ in slots] + [t]:
                v += math.exp(-self.beta * (1 - float(z @ m))) * m
            cosines.append(z @ v / v.norm())
        return p_text + self.alpha * (SCALE * torch.stack(cosines)).softmax(0)


@pytest.mark.parametrize(
    ("alpha", "beta", "capacity"), [(0.1, 5.5, 3), (1.0, 5.5, 50), (2.0, 1.0, 1), (0.0, 5.5, 2)]
)
def test_equals_the_published_algorithm(tower_kind: str, alpha: float, beta: float, capacity: int) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    oracle = Published(clf.class_embeddings, alpha, beta, capacity)
    method = ramen.create("dmn", clf, alpha=alpha, beta=beta, capacity=capacity)
    for images in stream(22):
        score = torch.stack([oracle.answer(z) for z in tower_features(tower_kind, images)])
        out = method.predict(images)
        torch.testing.assert_close(out.logits, (score / (1 + alpha)).log(), rtol=0, atol=1e-9)
        torch.testing.assert_close(out.logits.softmax(1), score / (1 + alpha), rtol=0, atol=1e-9)
        assert torch.equal(out.labels, score.argmax(1))
    held = [len(slots) for slots in oracle.slots]
    assert sum(count == capacity for count in held) >= (1 if capacity == 50 else 3)  # full, and replacing
    assert method.state.content()["counts"].tolist() == held


def test_a_table_of_insertions() -> None:
    """Images chosen by their entropy and class: what two slots hold after each, worked out by hand."""
    clf = testing.small_classifier(dtype="float64")
    images = torch.cat(stream(22))
    p = (SCALE * tower_features("vit", images) @ clf.class_embeddings.T).softmax(1)
    entropies = -(p * (p + 1e-8).log()).sum(1)
    labels = p.argmax(1)
    common = int(labels.mode().values)
    mine = (labels == common).nonzero()[:, 0]
    a, b, c, d = mine[entropies[mine].argsort()][[0, 5, 10, 15]].tolist()  # a is the surest
    other = int((labels != common).nonzero()[0, 0])
    table = [
        (c, [c]),  # the first free slot
        (d, [c, d]),  # the second
        (d, [c, d]),  # as sure as the worst: not written
        (b, [b, c]),  # d goes
        (other, [b, c]),  # another class
        (d, [b, c]),  # less sure than all
        (c, [b, c]),
        (a, [a, b]),  # c goes
        (a, [a, a]),  # b goes
    ]
    method = ramen.create("dmn", clf, capacity=2)
    for image, expected in table:
        method.predict(images[image][None])
        count = method.state.content()["counts"][common]
        held = method.state.content()["entropies"][common][:count]
        torch.testing.assert_close(held, entropies[expected], rtol=0, atol=1e-9)


def test_certain_images_stay_finite() -> None:
    """Probabilities that underflow to 0 have a finite logarithm all the same."""
    clf = ZeroShotClassifier(testing.small_tower(), torch.randn(4, 16), logit_scale=5000.0)
    method = ramen.create("dmn", clf)
    for images in stream(3):
        out = method.predict(images.float())
        assert not out.fallback.any()
        assert (out.logits < -100).any()
