"""MTA against its formulas: loops over views, in numpy."""

import numpy as np
import pytest
import torch

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, unit
from tests.oracles.view_methods import SCALE, solve, view_embeddings

DEFAULTS = {"affinity_weight": 4.0, "entropy_weight": 0.2, "neighbours": 0.3, "rounds": 5}


def softmax(numbers: np.ndarray) -> np.ndarray:
    e = np.exp(numbers - numbers.max())
    return e / e.sum()


def published(v: np.ndarray, text: np.ndarray, settings: dict, scale: float = SCALE) -> np.ndarray:
    """Logits, given the views' embeddings; the first is the image's."""
    count, rounds = len(v), settings["rounds"]
    number = max(1, int(settings["neighbours"] * (count - 1)))
    h2 = np.zeros(count)
    for i in range(count):
        squares = sorted(((v[i] - v[j]) ** 2).sum() for j in range(count) if j != i)
        h2[i] = 0.5 * np.mean(squares[:number])
    p = np.stack([softmax(scale * text @ row) for row in v])

    def k(m: np.ndarray) -> np.ndarray:
        return np.array([np.exp(-((v[i] - m) ** 2).sum() / (2 * h2[i])) for i in range(count)])

    y, m = np.full(count, 1 / count), v[0]
    for _ in range(rounds):
        density = k(m)
        for _ in range(rounds):
            before = y
            agreement = np.array([sum(p[i] @ p[j] * y[j] for j in range(count)) for i in range(count)])
            y = softmax((density + settings["affinity_weight"] * agreement) / settings["entropy_weight"])
            if np.linalg.norm(y - before) < 1e-6:
                break
        for _ in range(rounds):
            before = m
            total = sum(w * row for w, row in zip(y * k(m), v, strict=True))
            m = total / np.linalg.norm(total)
            if np.linalg.norm(m - before) < 1e-6:
                break
    return scale * text @ m


@pytest.mark.parametrize(
    ("batches", "views", "changes"),
    [
        (20, 12, {}),
        (20, 10, {"affinity_weight": 1.0, "entropy_weight": 0.5, "neighbours": 0.6, "rounds": 3}),
        (5, 3, {}),
        (5, 2, {"neighbours": 1.0}),
        (1, 64, {"rounds": 2}),
    ],
    ids=str,
)
def test_equals_the_published_algorithm(batches: int, views: int, changes: dict, tower_kind: str) -> None:
    settings = DEFAULTS | changes
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("mta", clf, views=views, seed=2, **settings)
    changed = 0
    for images in stream(batches, 3):
        out = method.predict(images)
        for image, found in zip(images, out.logits, strict=True):
            v = view_embeddings(tower_kind, image, views, seed=2).numpy()
            expected = torch.from_numpy(published(v, clf.class_embeddings.numpy(), settings))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
        changed += int((out.labels != out.zero_shot_logits.argmax(1)).sum())
    assert changed or batches < 20


def test_an_image_that_has_settled_stays() -> None:
    """Beside one that still moves; each must be answered as if alone."""
    clf = classifier_of(torch.eye(3, 16), scale=30.0)
    generator = torch.Generator().manual_seed(1)
    close = unit(torch.eye(16)[0] + 1e-4 * torch.randn(8, 16, generator=generator))
    wide = unit(torch.randn(8, 16, generator=generator))
    together = solve(clf, "mta", torch.stack([close, wide]), rounds=8)
    for views, found in zip((close, wide), together, strict=True):
        settings = DEFAULTS | {"rounds": 8}
        expected = published(views.double().numpy(), clf.class_embeddings.numpy(), settings)
        torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-8)


def test_an_outlier_hardly_counts() -> None:
    """Seven views around one class and one far away: the plain mean is pulled over, the mode is not."""
    clf = classifier_of(torch.eye(2, 16), scale=10.0)
    generator = torch.Generator().manual_seed(0)
    around = unit(torch.eye(16)[0] + 0.05 * torch.randn(7, 16, generator=generator))
    views = torch.cat([around, torch.eye(16)[1:2]])[None]
    found = solve(clf, "mta", views)[0]
    mean = 10 * unit(views.mean(1))[0, :2]
    assert found[1] < 0.2 * mean[1]


def test_views_that_are_all_alike() -> None:
    """No view differs from another, so that no bandwidth is above 0; the answer is the image's own."""
    clf = classifier_of(torch.eye(3, 16), scale=30.0)
    one = unit(torch.randn(16, generator=torch.Generator().manual_seed(0)).double())
    logits = solve(clf, "mta", one.expand(1, 6, 16))
    torch.testing.assert_close(logits, clf.logits(one[None]))


def test_single_precision_is_enough() -> None:
    images = torch.cat(stream(4, 5)).float()
    found = ramen.create("mta", testing.small_classifier(), views=16).predict(images)
    exact = ramen.create("mta", testing.small_classifier(dtype="float64"), views=16).predict(images.double())
    torch.testing.assert_close(found.logits.double(), exact.logits, rtol=0, atol=1e-2)


def test_one_view_is_the_image() -> None:
    clf = testing.small_classifier(dtype="float64")
    out = ramen.create("mta", clf, views=1).predict(stream(1)[0])
    torch.testing.assert_close(out.logits, out.zero_shot_logits)
