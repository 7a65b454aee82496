"""The programs of the batch norm equal plain torch, and plain torch equals autograd."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.kernels import channel_norm
from ramen.kernels.channel_norm import ChannelNorm
from ramen.kernels.norm import AffinePlace, new_gradient_rows

IMAGES = 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def layer(channels: int, *, weight: bool = True, bias: bool = True) -> ChannelNorm:
    place = AffinePlace(7 if weight else None, 7 + channels if bias else None, channels, 1e-5)
    return ChannelNorm(place, random(channels, seed=1), random(channels, seed=2).abs() + 0.5)


def maps(channels: int, dtype: torch.dtype, seed: int) -> Tensor:
    return random(IMAGES, channels, 5, 7, seed=seed).to(dtype).contiguous(memory_format=torch.channels_last)


CASES = [
    pytest.param(relu, skip, other, id=f"{'relu' if relu else 'linear'}, {skip=}, {other=}")
    for relu, skip, other in [
        (True, False, False),
        (True, True, False),
        (True, True, True),
        (False, False, False),
        (False, False, True),
    ]
]


@pytest.mark.interpreted
@pytest.mark.parametrize(("relu", "skip", "other"), CASES)
@pytest.mark.parametrize("shared", [False, True], ids=["row_per_image", "one_vector"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_programs_equal_torch(dtype: torch.dtype, shared: bool, relu: bool, skip: bool, other: bool) -> None:
    check(dtype, shared, relu, skip, other, layer(24), torch.device("cpu"))


@pytest.mark.interpreted
@pytest.mark.parametrize("channels", [16, 150])  # a power of two, and more than a program takes
def test_other_numbers_of_channels(channels: int) -> None:
    check(torch.float32, False, True, True, True, layer(channels), torch.device("cpu"))


@pytest.mark.interpreted
@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, True)])
def test_a_norm_without_weight_or_bias(weight: bool, bias: bool) -> None:
    check(torch.float32, False, True, False, False, layer(24, weight=weight, bias=bias), torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(("relu", "skip", "other"), CASES)
@pytest.mark.parametrize("channels", [24, 64, 150, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_programs_equal_torch_on_a_gpu(
    dtype: torch.dtype, channels: int, relu: bool, skip: bool, other: bool
) -> None:
    check(dtype, False, relu, skip, other, layer(channels), torch.device("cuda"))


def check(
    dtype: torch.dtype,
    shared: bool,
    relu: bool,
    has_skip: bool,
    has_other: bool,
    norm: ChannelNorm,
    device: torch.device,
) -> None:
    channels = norm.place.width
    norm = ChannelNorm(norm.place, norm.mean.to(device), norm.scale.to(device))
    size = 2 * channels + 30
    affine = (random(size) if shared else random(IMAGES, size)).to(device)
    x, gradient = maps(channels, dtype, 3).to(device), maps(channels, dtype, 4).to(device)
    skip = maps(channels, dtype, 5).to(device) if has_skip else None
    other = maps(channels, dtype, 6).to(device) if has_other else None
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]

    plain = channel_norm._forward_torch(x, affine, norm, skip, relu)
    fused = channel_norm._forward_triton(x, affine, norm, skip, relu, in_place=False)
    torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)
    overwritten = x.clone()
    assert channel_norm._forward_triton(overwritten, affine, norm, skip, relu, in_place=True) is overwritten
    assert torch.equal(overwritten, fused)

    output = plain if has_skip else None
    rows = [torch.full((IMAGES, chunks, size), torch.nan, device=device) for chunks in (1, 4)]
    results = [
        function(gradient, other, x, output, affine, norm, table, relu, True, True)
        for function, table in zip(
            (channel_norm._backward_torch, channel_norm._backward_triton), rows, strict=True
        )
    ]
    for name in ("of_input", "after_relu"):
        one, two = (getattr(result, name) for result in results)
        close = (one.float() - two.float()).abs() <= tolerance * (1 + one.float().abs())
        assert close.float().mean() > 0.995  # a sum that rounding puts on the other side of zero
    sums = [table.sum(1) for table in rows]
    torch.testing.assert_close(*sums, rtol=10 * tolerance, atol=100 * tolerance, equal_nan=True)  # 35 pixels
    written = channels * ((norm.place.weight is not None) + (norm.place.bias is not None))
    start = min(place for place in (norm.place.weight, norm.place.bias) if place is not None)
    assert torch.equal(sums[1].cpu().isfinite().nonzero()[:, 1].unique(), start + torch.arange(written))

    partly = channel_norm._backward_triton(
        gradient, other, x, output, affine, norm, rows[1], relu, False, False
    )
    assert partly.of_input is None
    assert partly.after_relu is None


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("has_skip", [False, True])
def test_plain_torch_equals_autograd(relu: bool, has_skip: bool) -> None:
    norm = layer(6)
    norm = ChannelNorm(norm.place, norm.mean.double(), norm.scale.double())
    affine = random(IMAGES, 40).double()
    x, gradient = maps(6, torch.float64, 3), maps(6, torch.float64, 4)
    skip, other = maps(6, torch.float64, 5) if has_skip else None, maps(6, torch.float64, 6)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, affine, torch.zeros_like(x))]
    weight, bias = leaves[1][:, 7:13, None, None], leaves[1][:, 13:19, None, None]
    y = F.batch_norm(leaves[0], norm.mean, norm.scale**-2, eps=0) * weight + bias + leaves[2]
    y = y if skip is None else y + skip
    y = y.relu() if relu else y
    expected = torch.autograd.grad(y, leaves, gradient + other)

    output = channel_norm.forward(x, affine, norm, skip=skip, relu=relu)
    torch.testing.assert_close(output, y.detach(), rtol=0, atol=1e-12)
    rows = new_gradient_rows(affine, IMAGES).zero_()
    found = channel_norm.backward(
        gradient, other, x, output if has_skip else None, affine, norm, rows, relu=relu, needs_skip=True
    )
    got = (found.of_input, rows.sum(1), found.after_relu)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
