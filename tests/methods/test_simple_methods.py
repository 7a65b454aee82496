"""clip, ensemble, entmin and tent against ordinary mutable modules and optimizers."""

import pytest
import torch
from torch import Tensor, nn

import ramen
from ramen import ZeroShotClassifier, prompts, testing
from tests.oracles.mutable_model import SCALE, MutableModel, stream, use_batch_statistics


def entropy_step(oracle: MutableModel, images: Tensor, lr: float) -> Tensor:
    """The logits before the step."""
    logits = oracle.logits(images)
    oracle.zero_grad()
    oracle.uncertainties(logits).mean().backward()
    oracle.move(lr)
    return logits.detach()


@pytest.mark.parametrize(
    ("optimizer", "lr", "loss"),
    [
        ("sign", 1e-2, "entropy"),
        ("sgd", 2e-3, "entropy"),
        ("adam", 2e-3, "entropy"),
        ("sign", 1e-2, "come"),
        ("sgd", 2e-3, "come"),
    ],
)
def test_tent_equals_a_mutable_model(tower_kind: str, optimizer: str, lr: float, loss: str) -> None:
    """The prediction is the forward pass before the update, and weights are never reset."""
    oracle = MutableModel(tower_kind)
    oracle.use_optimizer(optimizer, lr)
    oracle.loss = loss
    clf = testing.small_classifier(tower_kind, dtype="float64")
    method = ramen.create("tent", clf, lr=lr, optimizer=optimizer, loss=loss)
    for images in stream(20):
        out = method.predict(images)
        torch.testing.assert_close(out.logits, entropy_step(oracle, images, lr), rtol=0, atol=1e-8)
    assert not torch.allclose(out.logits, out.zero_shot_logits, atol=0.1)


def test_entmin_equals_a_mutable_model(tower_kind: str) -> None:
    """Each batch starts from the pretrained weights and is predicted after its own step."""
    oracle = MutableModel(tower_kind)
    method = ramen.create("entmin", testing.small_classifier(tower_kind, dtype="float64"), lr=1e-2)
    for images in stream(6):
        entropy_step(oracle, images, 1e-2)
        out, expected = method.predict(images), oracle.logits(images).detach()
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-9)
        assert not torch.allclose(out.logits, out.zero_shot_logits)
        oracle.reset()


@pytest.mark.parametrize("name", ["tent", "entmin"])
def test_equals_a_mutable_model_with_the_statistics_of_the_batch(name: str) -> None:
    """Many images: where all of a few are on one side of a ReLU, gradients are zero but for rounding."""
    oracle = MutableModel("resnet")
    use_batch_statistics(oracle.model)
    clf = testing.small_classifier("resnet", dtype="float64")
    method = ramen.create(name, clf, lr=1e-2, statistics="batch")
    for images in stream(20, 16):
        expected = entropy_step(oracle, images, 1e-2)
        if name == "entmin":
            expected = oracle.logits(images).detach()
            oracle.reset()
        out = method.predict(images)
        torch.testing.assert_close(out.logits, expected, rtol=0, atol=1e-8)
        assert torch.equal(out.zero_shot_logits, clf.logits(clf.encode(images)))


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


def test_no_support_where_nothing_is_retrieved() -> None:
    method = ramen.create("tent", testing.small_classifier())
    with pytest.raises(ValueError, match="return_support: method 'tent' retrieves no entries"):
        method.predict(torch.randn(2, 3, 32, 32), return_support=True)
    assert method.images_seen == 0
