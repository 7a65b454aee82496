"""DMN-ZS against its published algorithm: slots in lists, one image at a time."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import ZeroShotClassifier, testing

SCALE = 30.0


def stream(batches: int = 22, size: int = 9) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(batches)]


def features(kind: str, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.nn.functional.normalize(testing.small_tower(kind).double()(images), dim=-1)


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
    for images in stream():
        score = torch.stack([oracle.answer(z) for z in features(tower_kind, images)])
        out = method.predict(images)
        torch.testing.assert_close(out.logits, (score / (1 + alpha)).log(), rtol=0, atol=1e-9)
        torch.testing.assert_close(out.logits.softmax(1), score / (1 + alpha), rtol=0, atol=1e-9)
        assert torch.equal(out.labels, score.argmax(1))
    held = [len(slots) for slots in oracle.slots]
    assert sum(count == capacity for count in held) >= (1 if capacity == 50 else 3)  # full, and replacing
    assert method.content()["counts"].tolist() == held


def test_answers_do_not_depend_on_how_the_stream_is_cut() -> None:
    clf = testing.small_classifier(dtype="float64")
    images = torch.cat(stream(6))
    expected = ramen.create("dmn", clf, capacity=4, alpha=1.0).predict(images).logits
    for size in (1, 5, 53):
        method = ramen.create("dmn", clf, capacity=4, alpha=1.0)
        logits = torch.cat([method.predict(part).logits for part in images.split(size)])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)


def test_a_table_of_insertions() -> None:
    """Images chosen by their entropy and class: what two slots hold after each, worked out by hand."""
    clf = testing.small_classifier(dtype="float64")
    images = torch.cat(stream())
    p = (SCALE * features("vit", images) @ clf.class_embeddings.T).softmax(1)
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
        count = method.content()["counts"][common]
        held = method.content()["entropies"][common][:count]
        torch.testing.assert_close(held, entropies[expected], rtol=0, atol=1e-9)


def test_classes_without_entries_are_their_text() -> None:
    """Before anything is stored for it, a class's vector is its text embedding."""
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("dmn", clf, alpha=1.0)
    images = stream(1)[0][:1]
    cosines = method._read  # what the memory says about each class

    def reading(*given):
        seen.append(cosines(*given))
        return seen[-1]

    seen: list[Tensor] = []
    method._read = reading
    label = int(method.predict(images).zero_shot_logits.argmax())
    text = features("vit", images) @ clf.class_embeddings.T
    others = [c for c in range(5) if c != label]
    torch.testing.assert_close(seen[0][:, others], text[:, others], rtol=0, atol=1e-9)
    assert seen[0][0, label] > text[0, label] + 0.05  # the image itself is in it


def test_certain_images_stay_finite() -> None:
    """Probabilities that underflow to 0 have a finite logarithm all the same."""
    clf = ZeroShotClassifier(testing.small_tower(), torch.randn(4, 16), logit_scale=5000.0)
    method = ramen.create("dmn", clf)
    for images in stream(3):
        out = method.predict(images.float())
        assert not out.fallback.any()
        assert (out.logits < -100).any()


@pytest.mark.parametrize("bad_pixel", [torch.nan, 1e38])
def test_a_refused_image_leaves_no_trace(bad_pixel: float) -> None:
    clf = testing.small_classifier()
    with_bad, without = (ramen.create("dmn", clf, capacity=3, alpha=1.0) for _ in range(2))
    for images in (batch.float() for batch in stream(4)):
        bad = torch.cat([images[:2], torch.full_like(images[:1], bad_pixel), images[2:]])
        a, b = with_bad.predict(bad), without.predict(images)
        assert a.fallback.tolist() == [n == 2 for n in range(10)]
        torch.testing.assert_close(a.logits[~a.fallback], b.logits, rtol=0, atol=1e-3)
    assert torch.equal(with_bad.content()["counts"], without.content()["counts"])


def test_a_single_class() -> None:
    clf = ZeroShotClassifier(testing.small_tower(), torch.randn(1, 16), logit_scale=SCALE)
    out = ramen.create("dmn", clf).predict(stream(1)[0].float())
    torch.testing.assert_close(out.logits, torch.zeros(9, 1))
    assert not out.fallback.any()


def test_states_and_parameters() -> None:
    clf = testing.small_classifier()
    assert ramen.describe("dmn").defaults == {"alpha": 0.1, "beta": 5.5, "capacity": 50, "seed": 0}
    method = ramen.create("dmn", clf, capacity=3)
    method.predict(stream(1)[0].float())
    state = method.state_dict()
    with pytest.raises(ValueError, match="capacity is 3 there and 50 here"):
        ramen.create("dmn", clf).load_state_dict(state)
    ramen.create("dmn", clf, capacity=3, alpha=1.0, beta=1.0).load_state_dict(state)
    state["content.counts"] = state["content.counts"] + 3
    with pytest.raises(ValueError, match="counts in the state must be between 0 and capacity=3"):
        method.load_state_dict(state)
    for parameters, message in [
        ({"alpha": -0.1}, "alpha must be finite and at least 0, got -0.1"),
        ({"beta": -1}, "beta must be finite and at least 0, got -1"),
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            ramen.create("dmn", clf, **parameters)
