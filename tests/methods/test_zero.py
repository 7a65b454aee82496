"""ZERO and VTE against loops over views and votes."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, unit
from tests.oracles.view_methods import SCALE, by_entropy, solve, view_embeddings


def published(logits: Tensor, share: float) -> list[int]:
    """How many votes each class has, given the views' logits ``(views, C)``."""
    order = by_entropy(logits)
    kept = max(1, int(share * len(logits)))
    votes = [0] * logits.shape[1]
    for view in order[:kept]:
        votes[int(logits[view].argmax())] += 1
    tied = [c for c, number in enumerate(votes) if number == max(votes)]
    if len(tied) > 1:
        left_out = order[kept:]
        for view in left_out:
            if int(logits[view].argmax()) in tied:
                votes[int(logits[view].argmax())] += 1
                return votes
        decides = logits[left_out[0] if left_out else order[0]]
        votes[max(tied, key=lambda c: float(decides[c]))] += 1
    return votes


def shares(votes: list[int]) -> Tensor:
    return torch.tensor([max(number / sum(votes), 1e-6) for number in votes], dtype=torch.float64)


@pytest.mark.parametrize(
    ("batches", "size", "views", "kept"),
    [(20, 3, 16, 0.3), (20, 3, 12, 0.17), (20, 3, 8, 1.0), (2, 2, 64, 0.3)],
    ids=str,
)
def test_equals_the_published_algorithm(
    batches: int, size: int, views: int, kept: float, tower_kind: str
) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("zero", clf, kept=kept, views=views, seed=4)
    changed = ties = 0
    for images in stream(batches, size):
        out = method.predict(images)
        for image, found in zip(images, out.logits, strict=True):
            embeddings = view_embeddings(tower_kind, image, views, seed=4)
            votes = published(SCALE * embeddings @ clf.class_embeddings.T, kept)
            torch.testing.assert_close(found.exp(), shares(votes), rtol=0, atol=1e-9)
            ties += sum(votes) > max(1, int(kept * views))
        changed += int((out.labels != out.zero_shot_logits.argmax(1)).sum())
    assert changed
    assert ties or batches < 20


@pytest.mark.parametrize("views", [16, 64])
def test_vte_equals_the_mean_of_the_surest(views: int, tower_kind: str) -> None:
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("zero", clf, kept=0.1, combined="mean", views=views)
    for images in stream(20 if views == 16 else 1, 3):
        out = method.predict(images)
        for image, found in zip(images, out.logits, strict=True):
            embeddings = view_embeddings(tower_kind, image, views)
            order = by_entropy(SCALE * embeddings @ clf.class_embeddings.T)
            mean = embeddings[order[: int(0.1 * views)]].mean(0)
            torch.testing.assert_close(found, SCALE * clf.class_embeddings @ mean, rtol=0, atol=1e-9)


def votes_for(clf: ramen.ZeroShotClassifier, labels: list[int], kept: float) -> list[float]:
    """Shares of views that are each for one of three classes, each less sure than the one before."""
    lengths = torch.linspace(0.9, 0.3, len(labels))
    rows = [lengths[i] * torch.eye(16)[label] for i, label in enumerate(labels)]
    rest = [(1 - length**2).sqrt() * torch.eye(16)[9] for length in lengths]
    views = torch.stack(rows) + torch.stack(rest)
    return solve(clf, "zero", views[None], kept=kept)[0].exp().tolist()


def test_votes_by_hand() -> None:
    clf = classifier_of(torch.eye(3, 16), scale=10.0)
    none = pytest.approx(1e-6)
    # no tie: two of the three surest; the others do not count
    assert votes_for(clf, [1, 0, 1, 0, 0, 0], 0.5) == [pytest.approx(1 / 3), pytest.approx(2 / 3), none]
    # a tie of 0 and 1: the next view is for 2, which is not tied; the one after it decides
    assert votes_for(clf, [1, 0, 2, 0, 1, 1], 0.34) == [pytest.approx(2 / 3), pytest.approx(1 / 3), none]
    # nobody left out is for a tied class: the surest of them decides by its logits, which are equal here,
    # so that the first of the tied classes wins and not class 1
    assert votes_for(clf, [0, 2, 1, 1, 1, 1], 0.34) == [pytest.approx(2 / 3), none, pytest.approx(1 / 3)]
    # all views count and tie: the surest decides
    assert votes_for(clf, [2, 0], 1.0) == [pytest.approx(1 / 3), none, pytest.approx(2 / 3)]


def test_the_logits_of_the_surest_view_left_out_decide() -> None:
    """Kept are views for 0 and for 2. The other two are for 1; the surer of them rather for 2 than for 0."""
    clf = classifier_of(torch.eye(3, 16), scale=10.0)
    views = unit(
        torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.99], [0.1, 0.9, 0.3], [0.4, 0.6, 0.1]]) @ torch.eye(3, 16)
    )
    found = solve(clf, "zero", views[None], kept=0.5)[0].exp().tolist()
    assert found == [pytest.approx(1 / 3), pytest.approx(1e-6), pytest.approx(2 / 3)]


def test_one_view_votes_alone() -> None:
    clf = testing.small_classifier(dtype="float64")
    images = stream(1)[0]
    out = ramen.create("zero", clf, views=1).predict(images)
    assert torch.equal(out.labels, out.zero_shot_logits.argmax(1))
    assert torch.equal(out.logits.amax(1), torch.zeros(9).double())
    assert out.logits.amin().item() == pytest.approx(math.log(1e-6))
    mean = ramen.create("zero", clf, views=1, combined="mean").predict(images)
    torch.testing.assert_close(mean.logits, out.zero_shot_logits)
