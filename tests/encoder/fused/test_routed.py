"""The fused passes with a router against the module's own forward pass and autograd."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from ramen.encoder.affine_encoder import AffineEncoder
from tests.encoder.fused.small_towers import tower
from tests.encoder.fused.test_transformer import VARIANTS, images, row_per_image

COVERED = [name for name in VARIANTS if not name.startswith("norm after")]


class Routes:
    """What is added depends on what is seen and on a vector; some layers are left alone."""

    def __init__(self, encoder: AffineEncoder, mixture: Tensor, *, left_alone: int = 3) -> None:
        self.sizes: dict[str, int] = {}
        for piece in encoder.layout:
            self.sizes[piece.layer] = self.sizes.get(piece.layer, 0) + piece.stop - piece.start
        self.mixture, self.left_alone = mixture, left_alone
        self.seen: list[tuple[str, Tensor]] = []

    def __call__(self, name: str, means: Tensor) -> Tensor | None:
        self.seen.append((name, means))
        if len(self.seen) % 4 == self.left_alone:
            return None
        return 0.2 * torch.tanh(means.mean(1, keepdim=True) + self.mixture[: self.sizes[name]])


def results(encoder: AffineEncoder, affine: Tensor, batch: Tensor, aside: float = 1.0) -> dict[str, Any]:
    """Features, what the router has seen, and gradients of both and of what it does with it."""
    affine = affine.detach().clone().requires_grad_()
    generator = torch.Generator().manual_seed(4)
    mixture = torch.randn(128, generator=generator, dtype=torch.float64).to(encoder.base).requires_grad_()
    routes = Routes(encoder, mixture)
    features = encoder(batch, affine, router=routes, normalize=False)
    weights = torch.randn(features.shape, generator=generator, dtype=torch.float64).to(features)
    loss = (
        (features * weights).sum().float() if features.dtype != torch.float64 else (features * weights).sum()
    )
    loss = loss + aside * sum(means.square().sum() for _, means in routes.seen)
    gradients = torch.autograd.grad(loss, (affine, mixture))
    names, means = zip(*routes.seen, strict=True)
    return {"features": features, "names": names, "means": torch.stack(means), "gradients": gradients}


def check(fast: AffineEncoder, plain: AffineEncoder, batch: Tensor, tolerance: float) -> None:
    for affine in (plain.base, row_per_image(plain)):
        found, expected = (results(encoder, affine, batch) for encoder in (fast, plain))
        assert found["names"] == expected["names"]
        for part in ("features", "means"):
            torch.testing.assert_close(found[part], expected[part], rtol=tolerance, atol=tolerance)
        for one, two in zip(found["gradients"], expected["gradients"], strict=True):
            assert two.abs().max() > 1e-2
            close = tolerance * max(1.0, two.abs().max().item())
            torch.testing.assert_close(one, two, rtol=0, atol=close)


@pytest.mark.parametrize("variant", COVERED)
def test_features_and_gradients_equal_the_modules_own(variant: str) -> None:
    module = tower(**VARIANTS[variant])
    fast, plain = AffineEncoder(module), AffineEncoder(module, fused=False)
    assert fast._routed is not None
    check(fast, plain, images(), 1e-10)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in COVERED])
def test_means_of_pooled_tokens_are_left_to_the_module(variant: str) -> None:
    module = tower(**VARIANTS[variant])
    fast, plain = AffineEncoder(module), AffineEncoder(module, fused=False)
    assert fast.fused
    assert fast._routed is None
    check(fast, plain, images(), 1e-10)


def test_a_loss_of_what_is_seen_alone() -> None:
    """The last segments then have no gradient, and one has a gradient of its means alone."""
    module, found = tower(), []
    for fused in (True, False):
        encoder = AffineEncoder(module, fused=fused)
        mixture = torch.full((128,), 0.1, dtype=torch.float64, requires_grad=True)
        routes = Routes(encoder, mixture)
        encoder(images(), router=routes)
        found.append(torch.autograd.grad(routes.seen[4][1].square().sum(), mixture)[0])
    assert found[1].abs().max() > 1e-3
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


def test_without_gradients_and_from_prepared_images() -> None:
    encoder, plain = AffineEncoder(tower()), AffineEncoder(tower(), fused=False)
    mixture = torch.linspace(-1, 1, 128, dtype=torch.float64)
    with torch.no_grad():
        expected = plain(images(), router=Routes(plain, mixture))
        found = encoder(images(), router=Routes(encoder, mixture))
        prepared = encoder(encoder.prepare(images()), router=Routes(encoder, mixture))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(prepared, found)


def test_a_second_backward_pass_is_refused() -> None:
    encoder = AffineEncoder(tower())
    mixture = torch.zeros(128, dtype=torch.float64, requires_grad=True)
    loss = encoder(images(), router=Routes(encoder, mixture))[:, 0].sum()
    torch.autograd.grad(loss, mixture, retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        torch.autograd.grad(loss, mixture)


def test_a_pass_without_a_backward_pass_is_freed_at_once() -> None:
    encoder = AffineEncoder(tower())
    mixture = torch.zeros(128, dtype=torch.float64, requires_grad=True)
    routes = Routes(encoder, mixture)
    features = encoder(images(), router=routes)
    gone = [weakref.ref(means) for _, means in routes.seen]
    gc.disable()
    try:
        del features, routes
        assert not any(reference() is not None for reference in gone)
    finally:
        gc.enable()


def test_half_precision_agrees_to_its_rounding() -> None:
    fast, plain = (AffineEncoder(tower(), dtype="bfloat16", fused=fused) for fused in (True, False))
    found, expected = (results(encoder, encoder.base, images(), aside=0.0) for encoder in (fast, plain))
    for part in ("features", "means"):
        close = 0.05 * expected[part].abs().max().item()
        torch.testing.assert_close(found[part], expected[part], rtol=0, atol=close)
    for one, two in zip(found["gradients"], expected["gradients"], strict=True):
        assert torch.nn.functional.cosine_similarity(one, two, dim=0) > 0.98


@pytest.mark.gpu
@pytest.mark.parametrize("variant", COVERED)
def test_kernels_agree_with_the_module_on_a_gpu(variant: str) -> None:
    module = tower(torch.float32, **VARIANTS[variant]).cuda()
    fast, plain = AffineEncoder(module), AffineEncoder(module, fused=False)
    check(fast, plain, images(torch.float32).cuda(), 2e-3)
