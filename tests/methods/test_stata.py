"""StatA against its formulas: loops over images, classes and coordinates, in numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, tower_features, unit
from tests.helpers.passes import answer_of

SCALE = 30.0
SETTINGS = {"rounds": 10, "steps": 5, "neighbours": 3, "density_weight": 0.02, "anchor": 1.0}


def normal(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def neighbour_cosines(z: np.ndarray, number: int) -> np.ndarray:
    found = np.zeros((len(z), len(z)))
    for i in range(len(z)):
        others = sorted((j for j in range(len(z)) if j != i), key=lambda j: -float(z[i] @ z[j]))
        for j in others[:number]:
            found[i, j] = z[i] @ z[j]
    return found


def published(z: np.ndarray, text: np.ndarray, settings: dict, scale: float = SCALE) -> np.ndarray:
    """The assignments."""
    count, (classes, width) = len(z), text.shape
    rounds, steps, number = settings["rounds"], settings["steps"], settings["neighbours"]
    weight = settings["density_weight"] * (scale / 100) * (512 / width)
    near = neighbour_cosines(z, number)
    logits = scale * z @ text.T
    r = softmax(logits)
    first = np.zeros(width)
    for i in range(count):
        for c in range(classes):
            first += r[i, c] * (z[i] - text[c]) ** 2 / count
    means, variances = text.copy(), np.tile(first, (classes, 1))

    def assign(r: np.ndarray) -> np.ndarray:
        density = np.zeros((count, classes))
        for c in range(classes):
            squares = (z - means[c]) ** 2 / variances[c]
            density[:, c] = -squares.sum(1) / 2 - np.log(variances[c]).sum() / 2
        for _ in range(steps):
            agreement = (scale / 100) * ((near + near.T) @ r) / (2 * number)
            r = softmax(logits + weight * density + agreement)
        return r

    for _ in range(rounds):
        r = assign(r)
        for c in range(classes):
            images = int((r.argmax(1) == c).sum())
            beta = images / (images + settings["anchor"])
            mean = (r[:, c : c + 1] * z).sum(0) / r[:, c].sum()
            means[c] = normal(beta * normal(mean) + (1 - beta) * text[c])
            around = (r[:, c : c + 1] * (z - means[c]) ** 2).sum(0) / r[:, c].sum()
            variances[c] = beta * around + (1 - beta) * (first + (text[c] - means[c]) ** 2)
    return assign(r)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rounds": 3, "steps": 2, "neighbours": 1, "density_weight": 0.1, "anchor": 4.0},
        {"rounds": 0, "density_weight": 0.05},
    ],
    ids=str,
)
def test_equals_the_published_algorithm(changes: dict, tower_kind: str) -> None:
    settings = SETTINGS | changes
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("stata", clf, **settings)
    changed = 0
    for images in stream(20):
        z = tower_features(tower_kind, images).numpy()
        expected = torch.from_numpy(published(z, clf.class_embeddings.numpy(), settings))
        out = method.predict(images)
        torch.testing.assert_close(out.logits.exp(), expected, rtol=0, atol=1e-7)
        changed += int((out.labels != out.zero_shot_logits.argmax(1)).sum())
    assert changed


def test_a_single_image() -> None:
    """It has no neighbour, and its own Gaussian."""
    clf = testing.small_classifier(dtype="float64")
    for image in stream(3, size=1):
        z = tower_features("vit", image).numpy()
        expected = torch.from_numpy(published(z, clf.class_embeddings.numpy(), SETTINGS))
        out = ramen.create("stata", clf).predict(image)
        torch.testing.assert_close(out.logits.exp(), expected, rtol=0, atol=1e-7)


def solve(clf: ramen.ZeroShotClassifier, z: Tensor, **settings: float) -> Tensor:
    return answer_of(ramen.create("stata", clf, **settings), z, torch.ones(len(z)).bool()).logits


def test_classes_without_any_weight_keep_their_text() -> None:
    """At a scale of 100,000 the probability of all but one class is exactly 0, and nothing is 0/0."""
    clf = classifier_of(torch.eye(3, 16), scale=1e5)
    z = unit(torch.eye(3, 16)[[0, 0, 1]] + 0.01).double()
    logits = solve(clf, z)
    assert logits.isfinite().all()
    assert logits.argmax(1).tolist() == [0, 0, 1]


def test_images_that_are_their_text() -> None:
    """Then no coordinate has a variance; the smallest one that counts keeps everything finite."""
    clf = classifier_of(torch.eye(3, 16), scale=1e5)
    logits = solve(clf, torch.eye(3, 16).double()[[0, 0, 2]])
    assert logits.isfinite().all()
    assert logits.argmax(1).tolist() == [0, 0, 2]


def test_a_duplicate_is_a_neighbour_and_an_image_itself_is_not() -> None:
    """Without densities: two equal images, each the only neighbour of the other, and one far away."""
    clf = classifier_of(torch.eye(2, 16), scale=5.0)
    z = unit(torch.eye(16)[[2, 2, 3]] + 0.3 * torch.eye(16)[[0, 0, 1]]).double()
    logits = solve(clf, z, rounds=0, steps=1, neighbours=1, density_weight=0.0)
    prior = 5.0 * z @ clf.class_embeddings.T
    p = prior.softmax(1)
    # the third image's first neighbour, of two equally far away, is the first image; their cosine is 0
    expected = (prior + 0.05 * torch.stack([p[1], p[0], 0 * p[0]])).log_softmax(1)
    torch.testing.assert_close(logits, expected)


def test_single_precision_is_enough() -> None:
    """Densities by matrix products, with many images per class and small variances."""
    generator = torch.Generator().manual_seed(0)
    centres = unit(torch.randn(8, 16, generator=generator))
    text = unit(centres + 0.1 * torch.randn(8, 16, generator=generator))
    z = unit(centres[torch.arange(100) % 8] + 0.05 * torch.randn(100, 16, generator=generator))
    single = ramen.ZeroShotClassifier(testing.small_tower(), text, 100.0)
    exact, found = solve(classifier_of(text, 100.0), z.double()), solve(single, z)
    torch.testing.assert_close(found.softmax(1).double(), exact.softmax(1), rtol=0, atol=1e-3)
