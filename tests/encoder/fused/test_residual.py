"""The fused passes of residual networks against the modules' own forward pass and autograd."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm.models.resnet as timm_resnet
import torch
import torchvision.models.resnet as torchvision_resnet
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from ramen.encoder.statistics import Statistics
from ramen.methods._losses import entropy

SIZE, OUTPUT = 64, 12


def shaken(module: nn.Module) -> nn.Module:
    """All that trained networks have and fresh ones have not: norms and statistics that differ."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = parameter.data.double() + (0.3 if parameter.ndim == 1 else 0.05) * noise
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            noise = torch.randn(buffer.shape, generator=generator)
            buffer.copy_(noise.abs() + 0.5 if name.endswith("var") else 0.3 * noise)
    return module.double().eval()


def of_open_clip() -> nn.Module:
    return shaken(ModifiedResNet([1, 2, 1, 1], OUTPUT, 4, SIZE, 8))


def of_torchvision(block: Any = torchvision_resnet.Bottleneck, **options: Any) -> nn.Module:
    return shaken(torchvision_resnet.ResNet(block, [1, 2, 1, 1], num_classes=OUTPUT, **options))


def of_timm(block: Any = timm_resnet.Bottleneck, **options: Any) -> nn.Module:
    return shaken(timm_resnet.ResNet(block, [1, 2, 1, 1], **{"num_classes": OUTPUT, **options}))


def in_open_clip() -> nn.Module:
    module = TimmModel("resnet18", OUTPUT, pool="avg", proj="linear")
    module.trunk = timm_resnet.ResNet(timm_resnet.BasicBlock, [1, 1, 1, 1], num_classes=0)
    return shaken(module)


NARROW = {"width_per_group": 8}
VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "open_clip": of_open_clip,
    "torchvision": partial(of_torchvision, **NARROW),
    "torchvision, basic blocks": partial(of_torchvision, torchvision_resnet.BasicBlock),
    "torchvision, groups": partial(of_torchvision, groups=4, width_per_group=4),
    "torchvision, dilated": partial(
        of_torchvision, replace_stride_with_dilation=[False, False, True], **NARROW
    ),
    "timm": partial(of_timm, base_width=8),
    "timm, basic blocks": partial(of_timm, timm_resnet.BasicBlock),
    "timm, deep stem, means": partial(of_timm, base_width=8, stem_type="deep", stem_width=8, avg_down=True),
    "timm, no head": partial(of_timm, base_width=8, num_classes=0),
    "timm in open_clip": in_open_clip,
}


def images(count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)


def encoder_of(module: nn.Module, **options: Any) -> AffineEncoder:
    return AffineEncoder(module, example=images(1), **options)


def loss(encoder: AffineEncoder, batch: Tensor, affine: Tensor) -> Tensor:
    assert encoder.embed_dim is not None
    generator = torch.Generator().manual_seed(2)
    texts = torch.randn(encoder.embed_dim, 7, generator=generator, dtype=torch.float64)
    return entropy(10 * encoder(batch, affine) @ texts.to(encoder.base)).sum()


def row_per_image(encoder: AffineEncoder, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(count, len(encoder.base), generator=generator, dtype=torch.float64)
    return encoder.base + 0.1 * noise.to(encoder.base)


@pytest.mark.parametrize("variant", VARIANTS)
def test_features_and_gradients_equal_the_modules_own(variant: str) -> None:
    module = VARIANTS[variant]()
    fast, plain = encoder_of(module, fused=True), encoder_of(module, fused=False)
    batch = images()
    torch.testing.assert_close(fast(batch, normalize=False), module(batch).detach(), rtol=0, atol=1e-10)
    for affine in (fast.base, row_per_image(fast)):
        torch.testing.assert_close(fast(batch, affine), plain(batch, affine), rtol=0, atol=1e-12)
        gradients = []
        for encoder in (fast, plain):
            leaf = affine.detach().clone().requires_grad_()
            gradients.append(encoder.gradient(loss(encoder, batch, leaf), leaf))
        size = gradients[1].abs().max()
        assert size > 1e-9
        torch.testing.assert_close(gradients[0] / size, gradients[1] / size, rtol=0, atol=1e-10)


def test_gradients_equal_a_loop_of_backward_passes() -> None:
    encoder = encoder_of(of_open_clip())
    batch, rows = images(), row_per_image(encoder)
    leaf = rows.clone().requires_grad_()
    together = encoder.gradient(loss(encoder, batch, leaf), leaf)
    for i in range(len(batch)):
        row = rows[i : i + 1].clone().requires_grad_()
        alone = encoder.gradient(loss(encoder, batch[i : i + 1], row), row)
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-11)


def test_several_passes_can_share_the_first_convolution() -> None:
    encoder = encoder_of(of_open_clip())
    batch, rows = images(), row_per_image(encoder)
    shared = encoder.prepare(batch)
    assert shared.shape == (3, 4, SIZE // 2, SIZE // 2)
    kept = shared.clone()
    leaf = rows.clone().requires_grad_()
    one, other = (encoder.gradient(loss(encoder, x, leaf), leaf) for x in (shared, batch))
    assert torch.equal(one, other)
    assert torch.equal(encoder(shared, rows), encoder(batch, rows))
    assert torch.equal(shared, kept)  # a pass does not change it
    with pytest.raises(ValueError, match="images"):
        encoder(batch[0])


def test_other_statistics_take_the_plain_path() -> None:
    module = of_open_clip()
    fast, plain = encoder_of(module), encoder_of(module, fused=False)
    assert fast.fused
    torch.testing.assert_close(
        fast(images(), statistics=Statistics()), plain(images(), statistics=Statistics())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_agree_to_their_rounding(dtype: torch.dtype) -> None:
    module = of_open_clip().float()
    fast, plain = (encoder_of(module, dtype=dtype, fused=choice) for choice in (True, False))
    batch, rows = images().float(), row_per_image(fast).requires_grad_()
    tolerance = {torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(fast(batch, rows), plain(batch, rows), rtol=0, atol=tolerance)
    one, other = (e.gradient(loss(e, batch, rows), rows) for e in (fast, plain))
    assert torch.cosine_similarity(one, other).min() > 1 - tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gpu_agrees_with_the_cpu(variant: str, dtype: torch.dtype) -> None:
    module = VARIANTS[variant]()
    here = encoder_of(module)
    batch, rows = images(), row_per_image(here)
    own = rows.clone().requires_grad_()
    expected = here(batch, rows), here.gradient(loss(here, batch, own), own)
    errors = []
    for fused in (True, False):
        there = encoder_of(module, device="cuda", dtype=dtype, fused=fused)
        leaf = rows.cuda().float().requires_grad_()
        features = there(batch, leaf)
        gradients = there.gradient(loss(there, batch, leaf), leaf).cpu().double()
        likeness = torch.cosine_similarity(gradients, expected[1]).min()
        errors.append((float((features.detach().cpu() - expected[0]).abs().max()), float(1 - likeness)))
    (of_features, of_gradients), (plain_features, plain_gradients) = errors
    assert of_features < 1.5 * plain_features + 1e-3  # at most what the type itself costs
    assert of_gradients < 1.5 * plain_gradients + 1e-2


def test_an_encoder_that_meets_its_images_late_is_compared_too() -> None:
    module = of_torchvision(torchvision_resnet.BasicBlock)
    encoder = AffineEncoder(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = encoder(images())
    assert encoder.fused
    torch.testing.assert_close(features, encoder_of(module, fused=False)(images()))
    statistics = encoder(images(), encoder.base.expand(3, -1), statistics=Statistics())
    assert statistics.shape == features.shape  # the layers know where their images are


class _Squashed(torchvision_resnet.Bottleneck):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


def spoiled(**replaced: nn.Module) -> nn.Module:
    module = of_torchvision(**NARROW)
    for name, part in replaced.items():
        setattr(module, name, part.double())
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_torchvision(_Squashed, **NARROW),
        lambda: spoiled(relu=nn.GELU()),
        lambda: spoiled(maxpool=nn.AdaptiveAvgPool2d(8)),
        lambda: of_timm(base_width=8, block_args={"attn_layer": "se"}),
        lambda: of_torchvision(norm_layer=partial(nn.GroupNorm, 1), **NARROW),
    ],
)
def test_what_is_not_covered_says_why(make: Callable[[], nn.Module]) -> None:
    encoder = encoder_of(make())
    assert not encoder.fused
    assert encoder.plain_reason
    with pytest.raises(ValueError, match="fused"):
        encoder_of(make(), fused=True)
