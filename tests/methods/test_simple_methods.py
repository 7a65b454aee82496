"""clip, ensemble, entmin and tent against ordinary mutable modules and optimizers."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import ZeroShotClassifier, prompts, testing
from tests.oracles.mutable_model import use_batch_statistics

SCALE = 30.0


def stream(batches: int = 6, size: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(batches)]


class SignSGD(torch.optim.Optimizer):
    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


class Ordinary:
    """A model as the field writes it: parameters that require gradients, an optimizer, resets by copying."""

    def __init__(self, kind: str, lr: float) -> None:
        self.model = testing.small_tower(kind).double().eval()
        self.text = testing.small_classifier(kind, dtype="float64").class_embeddings
        self.original = copy.deepcopy(self.model.state_dict())
        self.model.requires_grad_(False)
        norms = [m for m in self.model.modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)]
        parameters = [p.requires_grad_() for m in norms for p in (m.weight, m.bias)]
        self.optimizer = SignSGD(parameters, lr)

    def logits(self, images: Tensor) -> Tensor:
        return SCALE * nn.functional.normalize(self.model(images), dim=-1) @ self.text.T

    def entropy_step(self, logits: Tensor) -> None:
        p = logits.softmax(1)
        self.optimizer.zero_grad()
        (-(p * p.log()).sum(1).mean()).backward()
        self.optimizer.step()


def test_tent_equals_a_mutable_model(tower_kind: str) -> None:
    """The prediction is the forward pass before the update, and weights are never reset."""
    oracle = Ordinary(tower_kind, lr=1e-2)
    method = ramen.create("tent", testing.small_classifier(tower_kind, dtype="float64"), lr=1e-2)
    for images in stream():
        expected = oracle.logits(images)
        oracle.entropy_step(expected)
        torch.testing.assert_close(method.predict(images).logits, expected.detach(), rtol=0, atol=1e-9)


def test_entmin_equals_a_mutable_model(tower_kind: str) -> None:
    """Each batch starts from the pretrained weights and is predicted after its own step."""
    oracle = Ordinary(tower_kind, lr=1e-2)
    method = ramen.create("entmin", testing.small_classifier(tower_kind, dtype="float64"), lr=1e-2)
    for images in stream():
        oracle.entropy_step(oracle.logits(images))
        expected = oracle.logits(images).detach()
        oracle.model.load_state_dict(oracle.original)
        out = method.predict(images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-9)
        assert not torch.allclose(out.logits, out.zero_shot_logits)


@pytest.mark.parametrize("name", ["tent", "entmin"])
def test_equals_a_mutable_model_with_the_statistics_of_the_batch(name: str) -> None:
    """Many images: where all of a few are on one side of a ReLU, gradients are zero but for rounding."""
    oracle = Ordinary("resnet", lr=1e-2)
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create(name, clf, lr=1e-2, statistics="batch")
    for images in stream(20, 16):
        expected = oracle.logits(images)
        oracle.entropy_step(expected)
        if name == "entmin":
            expected = oracle.logits(images)
            oracle.model.load_state_dict(oracle.original)
        out = method.predict(images)
        torch.testing.assert_close(out.logits, expected.detach(), rtol=0, atol=1e-8)
        assert torch.equal(out.zero_shot_logits, clf.logits(clf.encode(images)))


@pytest.mark.parametrize("name", ["tent", "entmin"])
def test_an_overflowing_image_does_not_cancel_the_step(name: str) -> None:
    """1e38 is a finite pixel, but not a finite activation: the batch's gradient is taken without it."""
    clf = testing.small_classifier()
    with_bad, without = ramen.create(name, clf, lr=1e-2), ramen.create(name, clf, lr=1e-2)
    for images in (batch.float() for batch in stream(3)):
        bad = torch.cat([images[:2], torch.full_like(images[:1], 1e38), images[2:]])
        a, b = with_bad.predict(bad), without.predict(images)
        assert a.fallback.tolist() == [False, False, True, False, False, False]
        torch.testing.assert_close(a.logits[[0, 1, 3, 4, 5]], b.logits, rtol=0, atol=1e-3)
    if name == "tent":
        torch.testing.assert_close(with_bad.content()["affine"], without.content()["affine"])
        assert not torch.equal(with_bad.content()["affine"], clf.encoder.base)


@pytest.mark.parametrize("name", ["tent", "entmin"])
def test_a_refused_image_leaves_no_trace_in_the_update(name: str) -> None:
    clf = testing.small_classifier(dtype="float64")
    with_bad, without = ramen.create(name, clf, lr=1e-2), ramen.create(name, clf, lr=1e-2)
    for images in stream(3):
        bad = torch.cat([images[:2], torch.full_like(images[:1], torch.nan), images[2:]])
        a, b = with_bad.predict(bad), without.predict(images)
        torch.testing.assert_close(a.logits[[0, 1, 3, 4, 5]], b.logits, rtol=0, atol=1e-9)


def test_ensemble_and_clip() -> None:
    clf = testing.small_classifier()
    images = torch.randn(4, 3, 32, 32)
    z = clf.encode(images)
    torch.testing.assert_close(
        ramen.create("ensemble", clf).predict(images).logits, SCALE * z @ clf.class_embeddings.T
    )
    texts = clf.encode_text([f"a photo of a class {i}." for i in range(5)])
    expected = SCALE * z @ nn.functional.normalize(texts, dim=-1).T
    out = ramen.create("clip", clf).predict(images)
    torch.testing.assert_close(out.logits, expected)
    torch.testing.assert_close(out.zero_shot_logits, clf.logits(z))


def test_clip_takes_its_template_where_the_classifier_has_it() -> None:
    vectors = torch.randn(3, 8, 16)
    named = ZeroShotClassifier(
        testing.small_tower(), vectors, templates=[*prompts.ENSEMBLE, *prompts.SINGLE], logit_scale=10
    )
    images = torch.randn(2, 3, 32, 32)
    expected = 10 * named.encode(images) @ nn.functional.normalize(vectors[:, 7], dim=-1).T
    torch.testing.assert_close(ramen.create("clip", named).predict(images).logits, expected)
    other = ramen.create("clip", named, template="itap of a {}.").predict(images).logits
    torch.testing.assert_close(
        other, 10 * named.encode(images) @ nn.functional.normalize(vectors[:, 0], dim=-1).T
    )


def test_clip_with_one_embedding_a_class() -> None:
    for vectors in (torch.randn(3, 16), torch.randn(3, 1, 16)):
        clf = ZeroShotClassifier(testing.small_tower(), vectors)
        images = torch.randn(2, 3, 32, 32)
        out = ramen.create("clip", clf).predict(images)
        torch.testing.assert_close(out.logits, out.zero_shot_logits)


@pytest.mark.parametrize(
    ("vectors", "templates", "template"),
    [
        (torch.randn(3, 8, 16), None, "a photo of a {}."),
        (torch.randn(3, 16), "ensemble", "a photo of a {}."),
        (torch.randn(3, 16), None, "itap of a {}."),
        (torch.randn(3, 1, 16), ["itap of a {}."], "a photo of a {}."),
    ],
)
def test_clip_says_what_it_lacks(vectors: Tensor, templates: object, template: str) -> None:
    clf = ZeroShotClassifier(testing.small_tower(), vectors, templates=templates)
    message = re.escape(f"method 'clip' needs the embeddings of template {template!r}")
    with pytest.raises(ValueError, match=message):
        ramen.create("clip", clf, template=template)


def test_no_support_where_nothing_is_retrieved() -> None:
    method = ramen.create("tent", testing.small_classifier())
    with pytest.raises(ValueError, match="return_support: method 'tent' retrieves no entries"):
        method.predict(torch.randn(2, 3, 32, 32), return_support=True)
    assert method.images_seen == 0
