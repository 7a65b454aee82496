"""The fused passes against the module's own forward pass and autograd."""

from functools import partial
from typing import Any

import pytest
import torch
from open_clip.transformer import QuickGELU, VisionTransformer
from torch import Tensor, nn

import ramen
from ramen.encoder.encoder import AffineEncoder
from ramen.methods._losses import entropy
from tests.encoder.fused.small_towers import SIZE, tower

VARIANTS: dict[str, dict[str, Any]] = {
    "clip": {},
    "quick gelu": {"act_layer": QuickGELU},
    "tanh gelu": {"act_layer": partial(nn.GELU, approximate="tanh")},
    "layer scale": {"ls_init_value": 0.3},
    "no norm before": {"no_ln_pre": True},
    "norm after pooling": {"final_ln_after_pool": True},
    "average": {"pool_type": "avg"},
    "norm after average": {"pool_type": "avg", "final_ln_after_pool": True},
    "fixed positions": {"pos_embed_type": "sin_cos_2d"},
}


def images(dtype: torch.dtype = torch.float64, count: int = 5) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=dtype)


def loss(encoder: AffineEncoder, batch: Tensor, affine: Tensor) -> Tensor:
    texts = torch.randn(24, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return entropy(10 * encoder(batch, affine) @ texts.to(encoder.base)).sum()


def row_per_image(encoder: AffineEncoder, count: int = 5) -> Tensor:
    noise = torch.randn(
        count, len(encoder.base), generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    return encoder.base + 0.1 * noise.to(encoder.base)


@pytest.mark.parametrize("variant", VARIANTS)
def test_features_and_gradients_equal_the_modules_own(variant: str) -> None:
    module = tower(**VARIANTS[variant])
    fast, plain = AffineEncoder(module), AffineEncoder(module, fused=False)
    assert fast.fused
    assert not fast.plain_reason
    assert plain.plain_reason == "fused=False"
    batch = images()
    for affine in (fast.base, row_per_image(fast)):
        torch.testing.assert_close(fast(batch, affine), plain(batch, affine), rtol=0, atol=1e-12)
        gradients = []
        for encoder in (fast, plain):
            leaf = affine.detach().clone().requires_grad_()
            gradients.append(encoder.gradient(loss(encoder, batch, leaf), leaf))
        assert gradients[1].abs().max() > 1e-5
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("size", [32, 36, 33])
def test_patches_of_images_anywhere_in_memory(size: int, offset: int, dtype: torch.dtype) -> None:
    """Whole patches, and a remainder that is left out, from any storage offset."""
    module = VisionTransformer(size, 8, 64, 1, 4, 4.0, output_dim=24).to(dtype)
    encoder = AffineEncoder(module)
    assert encoder.fused
    numbers = torch.randn(offset + 2 * 3 * size * size, generator=torch.Generator().manual_seed(1))
    batch = numbers.to(dtype)[offset:].view(2, 3, size, size)
    with torch.no_grad():
        expected = module.conv1(batch).flatten(2).transpose(1, 2)
        tokens = encoder.prepare(batch)
    torch.testing.assert_close(tokens[:, 1:], expected)
    assert not tokens[:, 0].any()
    assert torch.equal(encoder.prepare(batch.to(memory_format=torch.channels_last)), tokens)

    rows = torch.cat([batch.flatten(1), torch.ones(2, 1, dtype=dtype)], 1)  # a slice of wider rows
    one = rows[:, :-1].unflatten(1, batch.shape[1:])[:1]
    assert one.is_contiguous()
    torch.testing.assert_close(encoder.prepare(one), tokens[:1])


@pytest.mark.parametrize("variant", ["clip", "no norm before"])
def test_several_passes_can_share_embedded_images(variant: str) -> None:
    module = tower(**VARIANTS[variant])
    for encoder in (AffineEncoder(module), AffineEncoder(module, fused=False)):
        batch, rows = images(), row_per_image(encoder)
        shared = encoder.prepare(batch)
        assert shared.shape == ((5, 26, 64) if encoder.fused else batch.shape)
        for _ in range(2):  # a pass does not change them
            assert torch.equal(encoder(shared, rows), encoder(batch, rows))
        leaf = rows.clone().requires_grad_()
        one, other = (encoder.gradient(loss(encoder, x, leaf), leaf) for x in (shared, batch))
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="images"):
        AffineEncoder(module)(batch[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_agree_to_their_rounding(dtype: torch.dtype) -> None:
    module = tower(torch.float32)
    fast, plain = (AffineEncoder(module, dtype=dtype, fused=choice) for choice in (True, False))
    batch, rows = images(torch.float32), row_per_image(fast).requires_grad_()
    tolerance = {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.08}[dtype]
    torch.testing.assert_close(fast(batch, rows), plain(batch, rows), rtol=0, atol=tolerance)
    one, other = (e.gradient(loss(e, batch, rows), rows) for e in (fast, plain))
    assert torch.cosine_similarity(one, other).min() > 1 - tolerance


def test_an_image_has_the_same_gradient_alone_and_in_a_batch() -> None:
    encoder = AffineEncoder(tower())
    batch, rows = images(), row_per_image(encoder).requires_grad_()
    together = encoder.gradient(loss(encoder, batch, rows), rows)
    for i in range(len(batch)):
        row = rows[i : i + 1].detach().clone().requires_grad_()
        alone = encoder.gradient(loss(encoder, batch[i : i + 1], row), row)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-12)


def test_pixels_beyond_the_last_whole_patch_are_not_seen() -> None:
    module = tower()
    fast, plain = AffineEncoder(module), AffineEncoder(module, fused=False)
    wider = torch.cat([images(), images()[..., :3]], dim=3)
    torch.testing.assert_close(fast(wider), plain(wider), rtol=0, atol=1e-12)


def test_a_second_backward_pass_is_refused() -> None:
    encoder = AffineEncoder(tower())
    rows = row_per_image(encoder).requires_grad_()
    value = loss(encoder, images(), rows)
    torch.autograd.grad(value, rows, retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        torch.autograd.grad(value, rows)


def test_nothing_is_saved_without_a_gradient() -> None:
    encoder = AffineEncoder(tower())
    with torch.no_grad():
        assert encoder(images(), row_per_image(encoder).requires_grad_()).grad_fn is None
    assert encoder(images()).grad_fn is None


def test_images_that_require_a_gradient_get_it_from_the_module() -> None:
    encoder = AffineEncoder(tower())
    batch = images().requires_grad_()
    (gradient,) = torch.autograd.grad(encoder(batch).sum(), batch)
    assert gradient.abs().max() > 0


def test_every_choice_of_fused() -> None:
    embeddings = torch.eye(3, 24)
    for choice, reason in ((True, ""), ("auto", ""), (False, "fused=False")):
        clf = ramen.ZeroShotClassifier(tower(torch.float32), embeddings, fused=choice)
        assert clf.encoder.plain_reason == reason
    plain = AffineEncoder(tower(torch.float32), fused=False)
    with pytest.raises(ValueError, match="fused=True: this encoder has no fused passes"):
        ramen.ZeroShotClassifier(plain, embeddings, fused=True)
    with pytest.raises(ValueError, match="fused"):
        ramen.ZeroShotClassifier(tower(torch.float32), embeddings, fused="yes")


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_agree_with_the_module_on_a_gpu(variant: str) -> None:
    module = tower(torch.float32, **VARIANTS[variant])
    fast, plain = (AffineEncoder(module, device="cuda", fused=choice) for choice in (True, False))
    batch = images(torch.float32).cuda()
    for affine in (fast.base, row_per_image(fast)):
        leaf = affine.detach().clone().requires_grad_()
        torch.testing.assert_close(fast(batch, leaf), plain(batch, leaf), rtol=0, atol=1e-4)
        one, other = (e.gradient(loss(e, batch, leaf), leaf) for e in (fast, plain))
        assert torch.cosine_similarity(one, other, dim=-1).min() > 1 - 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_in_half_precision_on_a_gpu(dtype: str) -> None:
    module = tower(torch.float32)
    fast = AffineEncoder(module, device="cuda", dtype=dtype)
    exact = AffineEncoder(module, device="cuda", fused=False)
    batch, rows = images(torch.float32).cuda(), row_per_image(exact).requires_grad_()
    one, other = (e.gradient(loss(e, batch, rows), rows) for e in (fast, exact))
    assert torch.cosine_similarity(one, other).min() > (0.999 if dtype == "float16" else 0.98)
