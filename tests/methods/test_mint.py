"""Mint against the published sequence on a mutable module with torch's Adam, and its accumulators."""

import math

import pytest
import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.methods.mint import ClassMeans
from tests.oracles.contrastive_methods import stream
from tests.oracles.mutable_model import SCALE, AdamModel, use_batch_statistics


class OrdinaryMint(AdamModel):
    """Keeps every embedding and gradient of the stream, and averages them anew for each batch."""

    def __init__(self, kind: str, lr: float = 5e-3, prior: float = math.inf) -> None:
        super().__init__(kind, lr)
        self.prior = prior
        self.before: list[tuple[Tensor, int]] = []
        self.after: list[tuple[Tensor, int]] = []
        self.gradients: list[list[Tensor]] = []

    def predict(self, images: Tensor) -> Tensor:
        self.reset()
        z = self.encode(images)
        labels = (SCALE * z @ self.text.T).argmax(1).tolist()
        self.before += list(zip(z.detach(), labels, strict=True))
        overall = sum(e for e, _ in self.before) / len(self.before)
        inter = 0
        for embedding, label in zip(z, labels, strict=True):
            own = [e for e, c in self.before if c == label]
            weight = 1 / (len(set(labels)) * labels.count(label))
            total = ((embedding - overall) ** 2).sum()
            intra = ((embedding - sum(own) / len(own)) ** 2).sum()
            inter = inter + weight * total - weight * intra
        (-inter).backward()
        self.gradients.append([p.grad.clone() for p in self.parameters.values()])
        for p, *gradients in zip(self.parameters.values(), *self.gradients, strict=True):
            p.grad = sum(gradients) / len(gradients)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            z = self.encode(images)
            labels = (SCALE * z @ self.text.T).argmax(1).tolist()
            self.after += list(zip(z, labels, strict=True))
            return SCALE * z @ self.classes().T

    def classes(self) -> Tensor:
        rows = []
        for c, text in enumerate(self.text):
            own = [e for e, label in self.after if label == c]
            mean = sum(own) / len(own) if own else torch.zeros_like(text)
            share = len(self.after) / (self.prior + len(self.after))
            row = (1 - share) * text + share * mean
            rows.append(row / row.norm())
        return torch.stack(rows)


@pytest.mark.parametrize("options", [{}, {"prior": 30.0, "lr": 1e-2}], ids=str)
def test_equals_a_mutable_model(tower_kind: str, options: dict) -> None:
    oracle = OrdinaryMint(tower_kind, **options)
    method = ramen.create("mint", testing.small_classifier(tower_kind, dtype="float64"), **options)
    for images in stream(24, spreads=(1.0,)):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, oracle.predict(images), rtol=0, atol=1e-5)
        assert not torch.allclose(out.logits, out.zero_shot_logits, atol=1e-2)
    content = method.state.content()
    assert content["batches"] == 24
    gradients = torch.stack([torch.cat([g.flatten() for g in batch]) for batch in oracle.gradients])
    torch.testing.assert_close(content["gradient"], gradients.mean(0), rtol=0, atol=1e-10)


def test_equals_a_mutable_model_with_the_statistics_of_the_batch() -> None:
    oracle = OrdinaryMint("resnet", prior=30.0)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create("mint", clf, prior=30.0, statistics="batch")
    for images in stream(24, spreads=(1.0,)):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, oracle.predict(images), rtol=0, atol=1e-5)
        assert torch.equal(out.zero_shot_logits, clf.logits(clf.encode(images)))


def test_a_table_of_insertions() -> None:
    means = ClassMeans.empty(torch.zeros(3, 2))
    batches = [  # embeddings, labels, usable
        ([[1.0, 0.0], [3.0, 4.0]], [0, 2], [True, True]),
        ([[5.0, 2.0], [9.0, 9.0], [1.0, 1.0]], [0, 0, 2], [True, False, True]),
        ([[7.0, 7.0]], [1], [False]),
    ]
    expected = [  # sums, counts, mean of all
        ([[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]], [1, 0, 1], [2.0, 2.0]),
        ([[6.0, 2.0], [0.0, 0.0], [4.0, 5.0]], [2, 0, 2], [2.5, 1.75]),
        ([[6.0, 2.0], [0.0, 0.0], [4.0, 5.0]], [2, 0, 2], [2.5, 1.75]),
    ]
    assert torch.equal(means.overall(), torch.zeros(2))
    for (embeddings, labels, usable), (sums, counts, overall) in zip(batches, expected, strict=True):
        means = means.including(torch.tensor(embeddings), torch.tensor(labels), torch.tensor(usable))
        assert means.sums.tolist() == sums
        assert means.counts.tolist() == counts
        assert means.overall().tolist() == overall
    assert means.by_class().tolist() == [[3.0, 1.0], [0.0, 0.0], [2.0, 2.5]]
    assert means.images() == 4


def test_a_non_finite_embedding_that_is_not_usable_is_not_in_the_means() -> None:
    rows = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]])
    means = ClassMeans.empty(torch.zeros(2, 2)).including(
        rows, torch.tensor([1, 0]), torch.tensor([True, False])
    )
    assert means.sums.tolist() == [[0.0, 0.0], [1.0, 2.0]]


def images_by_class(clf: ramen.ZeroShotClassifier) -> dict[int, Tensor]:
    images = torch.randn(60, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    labels = clf.logits(clf.encode(images)).argmax(1)
    return {int(c): images[labels == c] for c in labels.unique()}


def test_a_stream_of_one_class_has_nothing_to_be_pulled_apart(tower_kind: str) -> None:
    """The class mean is the overall mean: no gradient at all, not one of rounding that Adam would enlarge."""
    clf = testing.small_classifier(tower_kind)
    images = next(x for x in images_by_class(clf).values() if len(x) >= 6)
    method = ramen.create("mint", clf)
    for batch in images[:6].split(3):
        out = method.predict(batch)
        torch.testing.assert_close(out.logits, out.zero_shot_logits, rtol=0, atol=1e-5)
    assert method.state.content()["gradient"].eq(0).all()


def test_a_batch_of_one_class_in_a_stream_of_several() -> None:
    clf = testing.small_classifier(dtype="float64")
    groups = [x.double() for x in images_by_class(clf).values() if len(x) >= 3]
    oracle, method = OrdinaryMint("vit"), ramen.create("mint", clf)
    for batch in (groups[0][:3], groups[1][:3], groups[0][:1]):
        torch.testing.assert_close(method.predict(batch).logits, oracle.predict(batch), rtol=0, atol=1e-5)
    assert method.state.content()["gradient"].abs().max() > 0


def test_a_class_that_was_never_predicted_keeps_its_text_embedding() -> None:
    clf = testing.small_classifier(dtype="float64")
    method = ramen.create("mint", clf, prior=1.0)
    images = next(x for x in images_by_class(clf).values() if len(x) >= 2)[:2].double()
    for _ in range(3):
        out = method.predict(images)
    seen = method.state.content()["after_counts"] > 0
    assert seen.sum() == 1
    assert method.state.content()["after_counts"].sum() == 6
    # one class alone gives no gradient: the embeddings are those of the pretrained weights
    torch.testing.assert_close(out.logits[:, ~seen], out.zero_shot_logits[:, ~seen], rtol=0, atol=1e-9)
    mean = clf.encode(images).mean(0)
    text = clf.class_embeddings[seen][0]
    row = torch.nn.functional.normalize(text / 7 + mean * 6 / 7, dim=0)
    torch.testing.assert_close(out.logits[:, seen][:, 0], SCALE * clf.encode(images) @ row, rtol=0, atol=1e-9)
