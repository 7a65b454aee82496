"""The written-out passes against the module's own forward pass and autograd."""

from functools import partial
from typing import Any

import pytest
import torch
from open_clip.transformer import QuickGELU, VisionTransformer
from torch import Tensor, nn

import ramen
from ramen import testing
from ramen.encoder.affine_encoder import AffineEncoder
from ramen.encoder.vision_transformer import Transformer
from ramen.methods._steps import entropy

SIZE = 35  # patches of 7 pixels: their 147 numbers are padded for the product
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


def tower(dtype: torch.dtype = torch.float64, **options: Any) -> VisionTransformer:
    """A small tower whose norm parameters, scales and biases are all different from each other."""
    torch.manual_seed(0)
    module = VisionTransformer(SIZE, 7, 64, 3, 4, 4.0, output_dim=24, **options)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, parameter.mean().item(), 0.3)
    return module.to(dtype)


def images(dtype: torch.dtype = torch.float64, count: int = 5) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=dtype)


def loss(encoder: AffineEncoder, pictures: Tensor, affine: Tensor) -> Tensor:
    texts = torch.randn(24, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return entropy(10 * encoder(pictures, affine) @ texts.to(encoder.base)).sum()


def row_of_each(encoder: AffineEncoder, count: int = 5) -> Tensor:
    noise = torch.randn(
        count, len(encoder.base), generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    return encoder.base + 0.1 * noise.to(encoder.base)


@pytest.mark.parametrize("variant", VARIANTS)
def test_features_and_gradients_equal_the_modules_own(variant: str) -> None:
    module = tower(**VARIANTS[variant])
    fast, plain = AffineEncoder(module), AffineEncoder(module, fast=False)
    assert fast.path == "transformer"
    assert plain.path == "plain: fast=False"
    pictures = images()
    for affine in (fast.base, row_of_each(fast)):
        torch.testing.assert_close(fast(pictures, affine), plain(pictures, affine), rtol=0, atol=1e-12)
        gradients = []
        for encoder in (fast, plain):
            leaf = affine.detach().clone().requires_grad_()
            gradients.append(encoder.gradient(loss(encoder, pictures, leaf), leaf))
        assert gradients[1].abs().max() > 1e-5
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("size", [32, 36, 33])
def test_patches_of_images_that_lie_anywhere(size: int, offset: int, dtype: torch.dtype) -> None:
    """Whole patches, and a rest beside them that is left out, from any place in memory on."""
    module = VisionTransformer(size, 8, 64, 1, 4, 4.0, output_dim=24).to(dtype)
    encoder = AffineEncoder(module)
    assert encoder.is_fast
    numbers = torch.randn(offset + 2 * 3 * size * size, generator=torch.Generator().manual_seed(1))
    pictures = numbers.to(dtype)[offset:].view(2, 3, size, size)
    with torch.no_grad():
        expected = module.conv1(pictures).flatten(2).transpose(1, 2)
        tokens = encoder.taken_up(pictures)
    torch.testing.assert_close(tokens[:, 1:], expected)
    assert not tokens[:, 0].any()
    assert torch.equal(encoder.taken_up(pictures.to(memory_format=torch.channels_last)), tokens)

    rows = torch.cat([pictures.flatten(1), torch.ones(2, 1, dtype=dtype)], 1)  # cut from wider rows
    one = rows[:, :-1].unflatten(1, pictures.shape[1:])[:1]
    assert one.is_contiguous()
    torch.testing.assert_close(encoder.taken_up(one), tokens[:1])


@pytest.mark.parametrize("variant", ["clip", "no norm before"])
def test_images_can_be_taken_up_once_for_several_passes(variant: str) -> None:
    module = tower(**VARIANTS[variant])
    for encoder in (AffineEncoder(module), AffineEncoder(module, fast=False)):
        pictures, rows = images(), row_of_each(encoder)
        shared = encoder.taken_up(pictures)
        assert shared.shape == ((5, 26, 64) if encoder.is_fast else pictures.shape)
        for _ in range(2):  # a pass leaves them as they were
            assert torch.equal(encoder(shared, rows), encoder(pictures, rows))
        leaf = rows.clone().requires_grad_()
        one, other = (encoder.gradient(loss(encoder, x, leaf), leaf) for x in (shared, pictures))
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match=r"images must be of shape \(B, 3, H, W\), got \(3, 35, 35\)"):
        AffineEncoder(module)(pictures[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types_agree_to_their_rounding(dtype: torch.dtype) -> None:
    module = tower(torch.float32)
    fast, plain = (AffineEncoder(module, dtype=dtype, fast=choice) for choice in (True, False))
    pictures, rows = images(torch.float32), row_of_each(fast).requires_grad_()
    tolerance = {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.08}[dtype]
    torch.testing.assert_close(fast(pictures, rows), plain(pictures, rows), rtol=0, atol=tolerance)
    one, other = (e.gradient(loss(e, pictures, rows), rows) for e in (fast, plain))
    assert torch.cosine_similarity(one, other).min() > 1 - tolerance


def test_an_image_has_the_same_gradient_alone_and_in_a_batch() -> None:
    encoder = AffineEncoder(tower())
    pictures, rows = images(), row_of_each(encoder).requires_grad_()
    together = encoder.gradient(loss(encoder, pictures, rows), rows)
    for i in range(len(pictures)):
        row = rows[i : i + 1].detach().clone().requires_grad_()
        alone = encoder.gradient(loss(encoder, pictures[i : i + 1], row), row)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-12)


def test_pixels_beyond_the_last_whole_patch_are_not_seen() -> None:
    module = tower()
    fast, plain = AffineEncoder(module), AffineEncoder(module, fast=False)
    wider = torch.cat([images(), images()[..., :3]], dim=3)
    torch.testing.assert_close(fast(wider), plain(wider), rtol=0, atol=1e-12)


def test_a_second_backward_pass_is_refused() -> None:
    encoder = AffineEncoder(tower())
    rows = row_of_each(encoder).requires_grad_()
    value = loss(encoder, images(), rows)
    torch.autograd.grad(value, rows, retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        torch.autograd.grad(value, rows)


def test_nothing_is_kept_without_a_gradient() -> None:
    encoder = AffineEncoder(tower())
    with torch.no_grad():
        assert encoder(images(), row_of_each(encoder).requires_grad_()).grad_fn is None
    assert encoder(images()).grad_fn is None


def test_images_that_want_a_gradient_get_it_from_the_module() -> None:
    encoder = AffineEncoder(tower())
    pictures = images().requires_grad_()
    (gradient,) = torch.autograd.grad(encoder(pictures).sum(), pictures)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: tower(torch.float32, attentional_pool=True), "pools by attention"),
        (lambda: tower(torch.float32, qk_norm=True), "CustomResidual"),
        (lambda: tower(torch.float32, act_layer=nn.ReLU), "activation is ReLU"),
        (lambda: testing.small_tower("resnet"), "it is a ModifiedResNet"),
    ],
)
def test_what_is_not_covered_is_computed_by_the_module_and_said(module: Any, reason: str) -> None:
    encoder = AffineEncoder(module())
    assert not encoder.is_fast
    assert encoder.path.startswith("plain: ")
    assert reason in encoder.path


class _Adapted(nn.Linear):
    """A product with something small beside it, as low-rank adapters are."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-4 * x.mean()


def with_hook(module: VisionTransformer) -> None:
    module.transformer.resblocks[1].mlp.c_fc.register_forward_hook(lambda _, inputs, output: output * 1.0001)


def with_other_product(module: VisionTransformer) -> None:
    module.transformer.resblocks[0].mlp.c_proj.__class__ = _Adapted


def with_parametrization(module: VisionTransformer) -> None:
    nn.utils.parametrizations.weight_norm(module.transformer.resblocks[2].mlp.c_fc)


def with_own_forward(module: VisionTransformer) -> None:
    own = module.transformer.forward
    module.transformer.forward = lambda x, **options: own(x, **options) * 1.0001


def with_shared_parameters(module: VisionTransformer) -> None:
    blocks = module.transformer.resblocks
    blocks[1].ln_1.weight = blocks[0].ln_1.weight


@pytest.mark.parametrize(
    "touch",
    [with_hook, with_other_product, with_parametrization, with_own_forward, with_shared_parameters],
    ids=lambda f: f.__name__,
)
def test_what_was_hung_on_a_tower_is_not_passed_over(touch: Any) -> None:
    """Differences too small to be noticed when the passes are compared."""
    module = tower(torch.float32)
    touch(module)
    encoder = AffineEncoder(module)
    assert not encoder.is_fast, encoder.path


def test_passes_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transformer, "tokens", lambda self, images: torch.ones(len(images), 26, 64))
    with pytest.warns(UserWarning, match="written-out passes differ from it by"):
        encoder = AffineEncoder(tower(torch.float32))
    assert not encoder.is_fast


def test_every_kind_of_compile() -> None:
    embeddings = torch.eye(3, 24)
    for choice, path in ((True, "transformer"), ("auto", "transformer"), (False, "plain: fast=False")):
        clf = ramen.ZeroShotClassifier(tower(torch.float32), embeddings, compile=choice)
        assert clf.encoder.path == path
    resnet = testing.small_classifier("resnet")
    with pytest.raises(ValueError, match="compile=True: this encoder has no written-out passes"):
        ramen.ZeroShotClassifier(resnet.encoder, resnet.class_embeddings, compile=True)
    with pytest.raises(ValueError, match="compile must be True, False or 'auto', got 'yes'"):
        ramen.ZeroShotClassifier(tower(torch.float32), embeddings, compile="yes")


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_agree_with_the_module_on_a_gpu(variant: str) -> None:
    module = tower(torch.float32, **VARIANTS[variant])
    fast, plain = (AffineEncoder(module, device="cuda", fast=choice) for choice in (True, False))
    pictures = images(torch.float32).cuda()
    for affine in (fast.base, row_of_each(fast)):
        leaf = affine.detach().clone().requires_grad_()
        torch.testing.assert_close(fast(pictures, leaf), plain(pictures, leaf), rtol=0, atol=1e-4)
        one, other = (e.gradient(loss(e, pictures, leaf), leaf) for e in (fast, plain))
        assert torch.cosine_similarity(one, other, dim=-1).min() > 1 - 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_in_half_precision_on_a_gpu(dtype: str) -> None:
    module = tower(torch.float32)
    fast = AffineEncoder(module, device="cuda", dtype=dtype)
    exact = AffineEncoder(module, device="cuda", fast=False)
    pictures, rows = images(torch.float32).cuda(), row_of_each(exact).requires_grad_()
    one, other = (e.gradient(loss(e, pictures, rows), rows) for e in (fast, exact))
    assert torch.cosine_similarity(one, other).min() > (0.999 if dtype == "float16" else 0.98)
