"""LAME against its formulas, image by image in numpy."""

import numpy as np
import pytest
import torch

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, tower_features, unit
from tests.helpers.passes import answer_of

SCALE = 30.0


def affinities(z: np.ndarray, kind: str, neighbours: int) -> np.ndarray:
    count = len(z)
    found = np.zeros((count, count))
    far = []
    for i in range(count):
        distances = [float(np.sqrt(((z[i] - z[j]) ** 2).sum())) for j in range(count)]
        far.append(sorted(distances)[min(neighbours, count) - 1])
        others = sorted((j for j in range(count) if j != i), key=lambda j: distances[j])
        for j in range(count):
            if kind == "linear":
                found[i, j] = z[i] @ z[j]
            elif kind == "neighbours":
                found[i, j] = float(j in others[:neighbours])
            else:
                found[i, j] = distances[j] ** 2
    return np.exp(-found / (2 * np.mean(far) ** 2)) if kind == "kernel" else found


def published(
    z: np.ndarray, text: np.ndarray, kind: str = "kernel", neighbours: int = 5, rounds: int = 100
) -> tuple[np.ndarray, int]:
    """Probabilities, and the number of updates."""
    logits = SCALE * z @ text.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    weights = affinities(z, kind, neighbours)
    y = (p + 1e-10) / (p + 1e-10).sum(1, keepdims=True)
    energies: list[float] = []
    for number in range(rounds):
        energy = 0.0
        for i in range(len(z)):
            energy += float((y[i] * (np.log(y[i]) - np.log(p[i] + 1e-10))).sum())
            for j in range(len(z)):
                energy -= weights[i, j] * float(y[i] @ y[j]) / 2
        if energies and abs(energy - energies[-1]) <= 1e-8 * abs(energies[-1]):
            return y, number
        energies.append(energy)
        y = (p + 1e-10) * np.exp(weights @ y)
        y = y / y.sum(1, keepdims=True)
    return y, rounds


@pytest.mark.parametrize("affinity", ["kernel", "neighbours", "linear"])
def test_equals_the_published_algorithm(affinity: str, tower_kind: str) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("lame", clf, affinity=affinity)
    rounds, changed = [], 0
    for images in stream(20, size=9):
        z = tower_features(tower_kind, images)
        expected, number = published(z.numpy(), clf.class_embeddings.numpy(), affinity)
        out = method.predict(images)
        torch.testing.assert_close(out.logits.softmax(1), torch.from_numpy(expected), rtol=0, atol=1e-9)
        torch.testing.assert_close(out.logits.exp().sum(1), torch.ones(9, dtype=torch.float64))
        rounds.append(number)
        changed += int((out.labels != out.zero_shot_logits.argmax(1)).sum())
    assert len(set(rounds)) > 1  # it stops when the energy does
    assert changed


def test_the_number_of_neighbours_and_rounds() -> None:
    clf = testing.small_classifier(dtype="float64")
    images = stream(1, size=9)[0]
    z = tower_features("vit", images)
    for affinity, neighbours, rounds in [("kernel", 2, 3), ("neighbours", 1, 1), ("kernel", 50, 2)]:
        expected, _ = published(z.numpy(), clf.class_embeddings.numpy(), affinity, neighbours, rounds)
        method = ramen.create("lame", clf, affinity=affinity, neighbours=neighbours, rounds=rounds)
        out = method.predict(images).logits.exp()
        torch.testing.assert_close(out, torch.from_numpy(expected), rtol=0, atol=1e-9)


def test_a_single_image() -> None:
    """It has no neighbour; with a kernel it counts for itself, which does not change its label."""
    clf = testing.small_classifier(dtype="float64")
    image = stream(1, size=1)[0]
    alone = ramen.create("lame", clf, affinity="neighbours").predict(image)
    torch.testing.assert_close(alone.logits.softmax(1), alone.zero_shot_logits.softmax(1), rtol=0, atol=1e-8)
    itself = ramen.create("lame", clf).predict(image)
    assert torch.equal(itself.labels, alone.labels)
    assert itself.logits.max() > alone.logits.max()


@pytest.mark.parametrize("affinity", ["kernel", "neighbours"])
def test_equal_images(affinity: str) -> None:
    """The kernel has no width, and equal images count 1; each has the others as neighbours, not itself."""
    clf = testing.small_classifier(dtype="float64")
    image = stream(1, size=1)[0]
    out = ramen.create("lame", clf, affinity=affinity, rounds=1).predict(image.repeat(4, 1, 1, 1))
    p = out.zero_shot_logits.softmax(1)
    votes = 4 if affinity == "kernel" else 3
    torch.testing.assert_close(out.logits.exp(), (p.log() + votes * p).softmax(1), rtol=0, atol=1e-8)


def test_one_round_by_hand() -> None:
    """Three images, the second between the first class and the second: its neighbour decides."""
    text = torch.eye(2, 16)
    clf = classifier_of(text, scale=2.0)
    z = unit(torch.tensor([[1.0, 0.0], [0.7, 0.72], [0.0, 1.0]]))
    embeddings = torch.cat([z, torch.zeros(3, 14)], 1).double()
    method = ramen.create("lame", clf, affinity="neighbours", neighbours=1, rounds=1)
    every = torch.ones(3, dtype=torch.bool)
    answer = answer_of(method, embeddings, every)
    p = torch.softmax(2.0 * z.double(), 1)
    expected = torch.stack([p[0].log() + p[1], p[1].log() + p[2], p[2].log() + p[1]]).log_softmax(1)
    torch.testing.assert_close(answer.logits, expected, rtol=0, atol=1e-8)
    without = answer_of(method, embeddings, torch.tensor([True, True, False]))
    expected = torch.stack([p[0].log() + p[1], p[1].log() + p[0]]).log_softmax(1)
    torch.testing.assert_close(without.logits[:2], expected, rtol=0, atol=1e-8)


def test_a_large_tolerance_stops_at_once() -> None:
    """The second round finds that the first one changed little enough."""
    clf = testing.small_classifier(dtype="float64")
    images = stream(1, size=9)[0]
    stopped = ramen.create("lame", clf, tolerance=1e9).predict(images).logits
    assert torch.equal(stopped, ramen.create("lame", clf, rounds=1).predict(images).logits)
    assert not torch.equal(stopped, ramen.create("lame", clf).predict(images).logits)


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
def test_rounds_are_decided_together(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many: with the first one that stops, with none that does, and with a last short block."""
    clf = testing.small_classifier(dtype="float64")
    images = stream(1, size=9)[0]
    z = tower_features("vit", images).numpy()
    _, number = published(z, clf.class_embeddings.numpy())
    assert 3 < number < 100
    monkeypatch.setattr("ramen.methods.lame._ROUNDS_AT_ONCE", at_once)
    for rounds in (2, number - 1, number, number + 1, 100):
        expected, _ = published(z, clf.class_embeddings.numpy(), rounds=rounds)
        out = ramen.create("lame", clf, rounds=rounds).predict(images).logits.exp()
        torch.testing.assert_close(out, torch.from_numpy(expected), rtol=0, atol=1e-9)
