"""TDA against its published algorithm: lists, one image at a time."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods._losses import entropy
from tests.helpers.device_waits import no_waiting
from tests.helpers.embedding_streams import classifier_of, stream, tower_features

SCALE = 30.0
SETTINGS = {
    "positive_alpha": 1.5,
    "positive_beta": 5.0,
    "positive_capacity": 3,
    "negative_alpha": 0.7,
    "negative_beta": 1.3,
    "negative_capacity": 2,
    "entropy_lower": 0.1,
    "entropy_upper": 0.4,
    "mask_lower": 0.03,
    "mask_upper": 0.9,
}


class Published:
    """The paper's algorithm with dictionaries of lists."""

    def __init__(self, text: Tensor, **settings: float) -> None:
        self.text = text
        self.set = settings
        self.positive: dict[int, list] = {}
        self.negative: dict[int, list] = {}

    def update(self, cache: dict[int, list], label: int, item: tuple, capacity: int) -> None:
        items = cache.setdefault(label, [])
        if len(items) < capacity:
            items.append(item)
        elif item[1] < items[-1][1]:
            items[-1] = item
        items.sort(key=lambda entry: entry[1])

    def answer(self, z: Tensor) -> Tensor:
        s, classes = self.set, len(self.text)
        logits = SCALE * z @ self.text.T
        p = logits.softmax(0)
        h = -float((p * p.log()).sum()) if classes > 1 else 0.0
        label = int(logits.argmax())
        self.update(self.positive, label, (z, h), s["positive_capacity"])
        share = h / math.log2(classes) if classes > 1 else math.nan
        if s["entropy_lower"] < share < s["entropy_upper"]:
            self.update(self.negative, label, (z, h, p), s["negative_capacity"])
        final = logits.clone()
        for c, items in self.positive.items():
            for key, _ in items:
                final[c] += s["positive_alpha"] * math.exp(-s["positive_beta"] * (1 - float(z @ key)))
        for items in self.negative.values():
            for key, _, q in items:
                weight = s["negative_alpha"] * math.exp(-s["negative_beta"] * (1 - float(z @ key)))
                for c in range(classes):
                    if s["mask_lower"] < q[c] < s["mask_upper"]:
                        final[c] -= weight
        return final


@pytest.mark.parametrize("capacities", [(3, 2), (1, 1), (200, 200)])
def test_equals_the_published_algorithm(tower_kind: str, capacities: tuple[int, int]) -> None:
    settings = SETTINGS | {"positive_capacity": capacities[0], "negative_capacity": capacities[1]}
    clf = testing.small_classifier(tower_kind, dtype="float64")
    oracle = Published(clf.class_embeddings, **settings)
    method = ramen.create("tda", clf, **settings)
    for images in stream(22):
        expected = torch.stack([oracle.answer(z) for z in tower_features(tower_kind, images)])
        torch.testing.assert_close(method.predict(images).logits, expected, rtol=0, atol=1e-9)
    assert len(oracle.positive) >= 3  # the stream has used what it is to test
    assert sum(map(len, oracle.negative.values())) >= min(3, 5 * capacities[1])
    if capacities[0] == 200:
        assert sum(map(len, oracle.positive.values())) == 198


def test_an_image_counts_for_its_own_class_at_once() -> None:
    """The first image finds only itself, with weight 1; the negative cache is empty and adds nothing."""
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("tda", clf, positive_alpha=1.25, entropy_lower=5.0, entropy_upper=6.0)
    out = method.predict(stream(1)[0][:1])
    difference = torch.zeros(1, 5, dtype=torch.float64)
    difference[0, out.zero_shot_logits.argmax()] = 1.25
    torch.testing.assert_close(out.logits - out.zero_shot_logits, difference)
    assert not method.state.content()["negative.counts"].any()
    assert method.state.content()["positive.counts"].sum() == 1


def test_the_negative_cache_by_hand() -> None:
    """Two of three classes are equally likely: entropy ln 2, in the range. It speaks against both."""
    images = stream(1)[0][:1]
    z = tower_features("vit", images)[0]
    away = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    away = away - (away @ z) * z
    away = away / away.norm()
    clf = classifier_of(torch.stack([z, z, away]))
    share = math.log(2) / math.log2(3)  # 0.437
    method = ramen.create("tda", clf, positive_alpha=0.0, negative_alpha=0.5)
    assert method.entropy_lower < share < method.entropy_upper
    out = method.predict(images)
    expected = torch.tensor([[-0.5, -0.5, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(out.logits - out.zero_shot_logits, expected)
    # the bounds themselves are outside
    share = float(entropy(out.zero_shot_logits)) / math.log2(3)
    p = float(out.zero_shot_logits.softmax(1)[0, 0])
    for bound in ({"entropy_lower": share}, {"entropy_upper": share}, {"mask_lower": p}, {"mask_upper": p}):
        out = ramen.create("tda", clf, positive_alpha=0.0, **bound).predict(images)
        assert torch.equal(out.logits, out.zero_shot_logits)


def test_a_single_class() -> None:
    """Its entropy is 0 of 0: nothing is unsure."""
    clf = classifier_of(torch.randn(1, 16, generator=torch.Generator().manual_seed(0)))
    method = ramen.create("tda", clf, positive_alpha=2.0)
    oracle = Published(clf.class_embeddings, **(SETTINGS | {"positive_alpha": 2.0}))
    for images in stream(3):
        out = method.predict(images)
        expected = torch.stack([oracle.answer(z) for z in tower_features("vit", images)])
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-9)
        assert not out.fallback.any()
    assert method.state.content()["negative.counts"].tolist() == [0]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tda", "dmn"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_stream_does_not_wait_for_the_device(name: str, dtype: str) -> None:
    method = ramen.create(name, testing.small_classifier(dtype=dtype, device="cuda"))
    images = torch.randn(3, 20, 3, 32, 32, device="cuda")
    for batch in images:
        method.predict(batch)
    with no_waiting():
        out = method.predict(images[0])
    assert out.logits.isfinite().all()
