"""What tests of methods with random views share: embeddings of views by plain modules, and checks."""

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import tower_features
from tests.oracles.torchvision_views import views_with_torchvision

SCALE = 30.0
VIEW_DEFAULTS = {"views": 64, "smallest_crop": 0.08, "augmix": 0.0, "views_at_once": 64, "seed": 0}
WRONG_VIEWS: list[tuple[dict, str]] = [
    ({"views": 0}, "views must be at least 1, got 0"),
    ({"smallest_crop": 0}, "smallest_crop must be finite and above 0, got 0"),
    ({"smallest_crop": 1.5}, "smallest_crop must be at most 1, got 1.5"),
    ({"augmix": 0.01}, "augmix must be 0 or between 0.1 and 10, got 0.01"),
    ({"augmix": 11}, "augmix must be 0 or between 0.1 and 10, got 11"),
    ({"views_at_once": 0}, "views_at_once must be at least 1, got 0"),
]


def view_embeddings(kind: str, image: Tensor, views: int, seed: int = 0) -> Tensor:
    """Unit embeddings ``(views, d)`` of the views of one image, in fp64."""
    return tower_features(kind, views_with_torchvision(image, views, seed=seed))


def entropy(logits: Tensor) -> float:
    """Of one row."""
    p = logits.softmax(0)
    return -sum(float(x) * float(x.log()) for x in p if x > 0)


def by_entropy(logits: Tensor) -> list[int]:
    """The views, the surest first."""
    return sorted(range(len(logits)), key=lambda view: entropy(logits[view]))


def solve(clf: ramen.ZeroShotClassifier, name: str, embeddings: Tensor, **parameters: object) -> Tensor:
    """Logits of images whose views have these embeddings ``(B, views, d)``."""
    method = ramen.create(name, clf, views=embeddings.shape[1], **parameters)
    return method.from_views(embeddings.double())


def check_no_trace(name: str) -> None:
    """Cut in any way, in any order, with bad images between: an image's answer is always the same."""
    clf = testing.small_classifier(dtype="float64")
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(7, 3, 32, 32, generator=generator, dtype=torch.float64)
    expected = ramen.create(name, clf, views=8).predict(images).logits
    method = ramen.create(name, clf, views=8)
    parts = [method.predict(part).logits for part in images.split([1, 4, 2])]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-9)
    backwards = ramen.create(name, clf, views=8).predict(images.flip(0)).logits
    torch.testing.assert_close(backwards.flip(0), expected, rtol=0, atol=1e-9)
    for bad_pixel in (torch.nan, 1e308):
        out = method.predict(torch.cat([torch.full_like(images[:1], bad_pixel), images]))
        assert out.fallback.tolist() == [True] + [False] * 7
        torch.testing.assert_close(out.logits[1:], expected, rtol=0, atol=1e-9)
    for views_at_once in (3, 8, 17, 1000):  # parts of an image's views, and of several images
        out = ramen.create(name, clf, views=8, views_at_once=views_at_once).predict(images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-9)
    assert not torch.allclose(ramen.create(name, clf, views=8, seed=1).predict(images).logits, expected)


def check_passes(name: str) -> None:
    """The record's 64 passes are counted, and so are those of other numbers of views."""
    clf = testing.small_classifier()
    info = ramen.describe(name)
    assert (info.forwards, info.backwards, info.random, info.batch_dependent) == (64, 0, True, False)
    batches = (torch.randn(2, 3, 32, 32), torch.randn(2, 3, 32, 32))
    for parameters, views in (({}, 64), ({"views": 5, "views_at_once": 3}, 5)):
        testing.check_passes(testing.Bench(lambda c, p=parameters: ramen.create(name, c, **p), clf, batches))
        assert ramen.create(name, clf, **parameters).passes() == (views, 0)


def check_one_class(name: str) -> None:
    """There is nothing to decide, and nothing is 0/0."""
    clf = ramen.ZeroShotClassifier(testing.small_tower(), torch.randn(1, 16), SCALE)
    out = ramen.create(name, clf, views=6).predict(torch.randn(3, 3, 32, 32))
    assert not out.fallback.any()
    assert out.labels.tolist() == [0, 0, 0]


def check_parameters(name: str, defaults: dict, wrong: list[tuple[dict, str]]) -> None:
    assert ramen.describe(name).defaults == defaults | VIEW_DEFAULTS
    clf = testing.small_classifier()
    for parameters, message in [*wrong, *WRONG_VIEWS]:
        with pytest.raises(ValueError, match=message):
            ramen.create(name, clf, **parameters)
