"""OnZeta against its published algorithm: whole proxies, one image at a time."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ramen
from ramen import testing
from tests.helpers.embedding_streams import classifier_of, stream, tower_features
from tests.helpers.passes import answer_of

SCALE = 30.0
SETTINGS = {
    "proxy_share": 0.4,
    "horizon": 10_000,
    "proxy_lr": 0.5,
    "prior_lr": 20.0,
    "balance": 1.0,
    "temperature": 4.0,
}


class PublishedOnZeta:
    """The prior rho and the proxies V, which every image changes."""

    def __init__(self, text: Tensor, settings: dict) -> None:
        self.text, self.set = text, settings
        self.rho = torch.zeros(len(text), dtype=text.dtype)
        self.v = text.clone()
        self.t = 0

    def answer(self, z: Tensor) -> Tensor:
        """Probabilities."""
        s, classes = self.set, len(self.text)
        self.t += 1
        a = (SCALE * self.text @ z).softmax(0) * self.rho.exp()
        a = a / a.sum()
        rate = 1 / math.sqrt(self.t)
        change = s["prior_lr"] * SCALE / 100 * rate * (a - s["balance"] / classes)
        self.rho = torch.maximum(self.rho - change, torch.zeros(()))
        warm = s["temperature"] / SCALE
        b = (self.v @ z / warm).softmax(0)
        share = s["proxy_share"] * min(1.0, math.sqrt(self.t / s["horizon"]))
        self.v = F.normalize(self.v - s["proxy_lr"] * rate / warm * torch.outer(b - a, z), dim=1)
        return share * b + (1 - share) * a


@pytest.mark.parametrize(
    "changes",
    [
        {"horizon": 100},
        {"proxy_share": 1.0, "horizon": 1, "temperature": 1.0},
        {"balance": 0.3, "prior_lr": 5.0, "proxy_lr": 0.1, "horizon": 300, "proxy_share": 0.8},
    ],
    ids=str,
)
def test_equals_the_published_algorithm(changes: dict, tower_kind: str) -> None:
    settings = SETTINGS | changes
    clf = testing.small_classifier(tower_kind, dtype="float64")
    oracle = PublishedOnZeta(clf.class_embeddings, settings)
    method = ramen.create("onzeta", clf, **settings)
    for images in stream():
        expected = torch.stack([oracle.answer(z) for z in tower_features(tower_kind, images)])
        out = method.predict(images)
        torch.testing.assert_close(out.logits.exp(), expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(method.proxies, oracle.v, rtol=0, atol=1e-8)
    torch.testing.assert_close(method.prior, oracle.rho, rtol=0, atol=1e-8)
    assert (oracle.rho > 0).any()
    assert int(method.learned) == 180


def test_single_precision_is_enough() -> None:
    """Following the proxies through the images of a large batch loses little against doubles."""
    images = torch.cat(stream(8))
    found = ramen.create("onzeta", testing.small_classifier(), horizon=20).predict(images.float())
    exact = ramen.create("onzeta", testing.small_classifier(dtype="float64"), horizon=20).predict(images)
    torch.testing.assert_close(found.logits.exp().double(), exact.logits.exp(), rtol=0, atol=2e-3)


def test_the_first_images_by_hand() -> None:
    """Two classes along two axes: the prior rises for the class that did not come, by 20 s/100 (1/2 - a)."""
    clf = classifier_of(torch.eye(2, 16), scale=10.0)
    method = ramen.create("onzeta", clf)
    z = torch.eye(2, 16)[[0, 0]].double()
    first, second = answer_of(method, z, torch.ones(2, dtype=torch.bool)).logits.exp()
    sure = 1 / (1 + math.exp(-10.0))
    share = 0.4 * math.sqrt(1 / 10_000)
    warm = 1 / (1 + math.exp(-2.5))
    assert float(first[0]) == pytest.approx((1 - share) * sure + share * warm, abs=1e-12)
    prior = 20 * 0.1 * (sure - 0.5)  # of the second class
    step = 0.5 * 2.5 * (sure - warm)  # v0 grows along z, v1 shrinks; both are made unit again
    proxies = torch.tensor([2.5, -2.5 * step / math.hypot(1, step)], dtype=torch.float64).softmax(0)
    balanced = torch.tensor([10.0, prior], dtype=torch.float64).softmax(0)
    share = 0.4 * math.sqrt(2 / 10_000)
    torch.testing.assert_close(second, (1 - share) * balanced + share * proxies)


def test_from_the_horizon_on_the_share_stays() -> None:
    clf = testing.small_classifier(dtype="float64")
    images = stream(1)[0]
    fixed = {"proxy_lr": 0.0, "prior_lr": 0.0, "proxy_share": 0.5}
    out = ramen.create("onzeta", clf, horizon=4, **fixed).predict(images)
    text = out.zero_shot_logits.softmax(1)
    warm = (out.zero_shot_logits / 4).softmax(1)
    share = torch.tensor([0.5 * min(1, math.sqrt(t / 4)) for t in range(1, 10)], dtype=torch.float64)[:, None]
    torch.testing.assert_close(out.logits.exp(), (1 - share) * text + share * warm)
