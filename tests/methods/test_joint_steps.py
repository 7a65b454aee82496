"""What watt, clipartt and mint share: steps on a loss in which the images of a batch meet."""

import pytest
import torch

import ramen
from ramen import testing
from ramen.methods._passes import joint_gradient, refuse_overflowing

FEW = {"watt": {"rounds": 1, "steps": 1}, "clipartt": {"iterations": 2}, "mint": {}}


@pytest.mark.parametrize("name", FEW)
def test_a_step_that_overflows_is_answered_zero_shot(name: str, tower_kind: str) -> None:
    clf = testing.small_classifier(tower_kind)
    method = ramen.create(name, clf, lr=1e38, **FEW[name])
    out = method.predict(torch.randn(4, 3, 32, 32))
    assert out.fallback.all()
    assert torch.equal(out.logits, out.zero_shot_logits)
    assert out.logits.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in method.state.content().values())


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.25), ("bfloat16", 0.75)])
def test_half_precision_adapts_alike(name: str, dtype: str, tolerance: float) -> None:
    """Not equally: where a gradient is all rounding, its sign decides the step."""
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    here, there = (
        ramen.create(name, testing.small_classifier(dtype=d), **FEW[name]).predict(images)
        for d in ("float32", dtype)
    )
    assert not there.fallback.any()
    change, expected = (out.logits - out.zero_shot_logits for out in (there, here))
    assert (change - expected).norm() < tolerance * expected.norm()


def test_one_pass_gives_embeddings_and_gradient(tower_kind: str) -> None:
    torch.manual_seed(0)  # a difference quotient is no derivative for images next to the kink of a ReLU
    clf = testing.small_classifier(tower_kind, dtype="float64")
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    target = torch.randn(3, 16, dtype=torch.float64)
    affine = clf.encoder.base + 0.01
    embeddings, gradient = joint_gradient(clf, images, affine, lambda z: (z * target).sum() ** 2)
    torch.testing.assert_close(embeddings, clf.encode(images, affine), rtol=0, atol=1e-12)
    assert not embeddings.requires_grad
    assert not affine.requires_grad
    direction = torch.randn_like(affine)
    sides = [(clf.encode(images, affine + s * 1e-6 * direction) * target).sum() ** 2 for s in (1, -1)]
    assert ((sides[0] - sides[1]) / 2e-6).item() == pytest.approx((gradient @ direction).item(), rel=1e-5)


def test_overflowing_images_are_found_and_blanked(tower_kind: str) -> None:
    clf = testing.small_classifier(tower_kind)
    images = torch.randn(4, 3, 32, 32)
    images[1] = 1e38
    kept = images.clone()
    usable = torch.tensor([True, True, False, True])
    blanked, found = refuse_overflowing(clf, images, usable)
    assert found.tolist() == [True, False, False, True]
    assert torch.equal(images, kept)
    assert torch.equal(blanked[found], images[found])
    assert blanked[~found].eq(0).all()
