"""Means of windows: the programs equal plain torch."""

import pytest
import torch

from ramen.kernels import mean_pool


def check(device: str, dtype: torch.dtype, window: tuple[int, int], channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, 7, 10, generator=generator).to(device, dtype)  # not all whole windows
    x = x.contiguous(memory_format=torch.channels_last)
    plain, fused = mean_pool._forward_torch(x, window), mean_pool._forward_triton(x, window)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)
    gradient = torch.randn(plain.shape, generator=generator).to(device, dtype)
    one = mean_pool._backward_torch(gradient, x.shape, window)
    two = mean_pool._backward_triton(gradient, x.shape, window)
    assert one.abs().max() > 0
    torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)


@pytest.mark.interpreted
@pytest.mark.parametrize("window", [(2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("channels", [5, 300])
def test_programs_equal_torch(window: tuple[int, int], channels: int) -> None:
    check("cpu", torch.float32, window, channels)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [(2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("channels", [5, 64, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_programs_equal_torch_on_a_gpu(dtype: torch.dtype, channels: int, window: tuple[int, int]) -> None:
    check("cuda", dtype, window, channels)
