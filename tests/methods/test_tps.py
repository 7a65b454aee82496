"""TPS against one image at a time, with torch's AdamW on a parameter."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, unit
from tests.oracles.view_methods import SCALE, by_entropy, solve, view_embeddings

DEFAULTS = {"lr": 5e-3, "steps": 1, "kept": 0.1, "shift": "class"}


def published(embeddings: Tensor, text: Tensor, settings: dict, scale: float = SCALE) -> Tensor:
    """Logits of the first view after the steps."""
    rows = 1 if settings["shift"] == "shared" else len(text)
    shift = torch.nn.Parameter(torch.zeros(rows, text.shape[1], dtype=text.dtype))
    optimizer = torch.optim.AdamW([shift], lr=settings["lr"])
    number = max(1, int(settings["kept"] * len(embeddings)))
    chosen = by_entropy(scale * embeddings @ text.T)[:number]
    for _ in range(settings["steps"]):
        probabilities = [
            (scale * F.normalize(text + shift, dim=1) @ embeddings[v]).softmax(0) for v in chosen
        ]
        mean = torch.stack(probabilities).mean(0)
        optimizer.zero_grad()
        (-(mean * mean.log()).sum()).backward()
        optimizer.step()
    return (scale * F.normalize(text + shift, dim=1) @ embeddings[0]).detach()


@pytest.mark.parametrize(
    ("batches", "views", "changes"),
    [
        (20, 24, {}),
        (20, 10, {"steps": 4, "kept": 0.5, "lr": 2e-2}),
        (20, 10, {"shift": "shared", "kept": 0.5, "lr": 2e-2, "steps": 2}),
        (5, 4, {"kept": 1.0}),
        (1, 64, {}),
    ],
    ids=str,
)
def test_equals_one_image_at_a_time(batches: int, views: int, changes: dict, tower_kind: str) -> None:
    settings = DEFAULTS | changes
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("tps", clf, views=views, seed=3, **settings)
    furthest = 0.0
    for images in stream(batches, 3):
        out = method.predict(images)
        for image, found in zip(images, out.logits, strict=True):
            embeddings = view_embeddings(tower_kind, image, views, seed=3)
            expected = published(embeddings, clf.class_embeddings, settings)
            # Adam's first step divides a gradient by its size: where it is almost 0, rounding shows
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        furthest = max(furthest, float((out.logits - out.zero_shot_logits).abs().max()))
    assert furthest > 0.05


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = testing.small_classifier(dtype="float64")
    images = stream(1)[0]
    expected = ramen.create("tps", clf, views=6).predict(images).logits
    monkeypatch.setattr("ramen.methods.tps._NUMBERS_AT_ONCE", 2 * clf.class_embeddings.numel())
    found = ramen.create("tps", clf, views=6).predict(images).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_step_by_hand() -> None:
    """Two classes along two axes and one view between them, nearer to the first.

    The entropy falls if the first class comes nearer to the view and the second one moves away. The gradient
    of a class embedding has no part along itself, so that each moves along the other's axis by lr.
    """
    clf = classifier_of(torch.eye(2, 16), scale=10.0)
    view = unit(torch.tensor([[0.8, 0.5]]) @ torch.eye(2, 16)).double()
    logits = solve(clf, "tps", view[None], lr=0.01, kept=1.0)[0]
    z = view[0, :2]
    length = (1 + 0.01**2) ** 0.5
    torch.testing.assert_close(
        logits, 10 * torch.stack([z[0] + 0.01 * z[1], z[1] - 0.01 * z[0]]) / length, rtol=0, atol=1e-6
    )


def test_a_rate_of_zero_changes_nothing() -> None:
    clf = testing.small_classifier(dtype="float64")
    out = ramen.create("tps", clf, lr=0.0, views=4).predict(stream(1)[0])
    torch.testing.assert_close(out.logits, out.zero_shot_logits)


def test_one_view_sharpens_itself(tower_kind: str) -> None:
    """With the image alone, the step can only lower the entropy of its own answer."""
    clf = testing.small_classifier(tower_kind, dtype="float64")
    out = ramen.create("tps", clf, views=1).predict(stream(1)[0])
    before, after = (
        torch.distributions.Categorical(logits=x).entropy() for x in (out.zero_shot_logits, out.logits)
    )
    assert (after < before).all()
