"""Blur, flip, noise and clipping: the program equals plain torch; tests/images has torchvision's."""

import pytest
import torch

from ramen.kernels import blur


def check(device: str, size: tuple[int, int], sigma: float, flip: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    height, width = size
    images = torch.rand(2, 3, height + 4, width + 4, generator=generator).to(device)
    noise = torch.randn(2, 3, height, width, generator=generator).to(device)
    arguments = images, sigma, noise, 0.3, flip
    plain, fused = blur._blurred_with_noise_torch(*arguments), blur._blurred_with_noise_triton(*arguments)
    assert plain.min() == 0
    assert plain.max() == 1
    torch.testing.assert_close(fused, plain, rtol=0, atol=2e-6)


@pytest.mark.interpreted
@pytest.mark.parametrize("size", [(20, 30), (7, 1), (1, 9)], ids=str)
@pytest.mark.parametrize("sigma", [0.001, 0.4, 3.0])
@pytest.mark.parametrize("flip", [False, True])
def test_the_program_equals_torch(size: tuple[int, int], sigma: float, flip: bool) -> None:
    check("cpu", size, sigma, flip)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(224, 224), (7, 1), (33, 65)], ids=str)
@pytest.mark.parametrize("sigma", [0.001, 0.4, 3.0])
@pytest.mark.parametrize("flip", [False, True])
def test_the_program_equals_torch_on_a_gpu(size: tuple[int, int], sigma: float, flip: bool) -> None:
    check("cuda", size, sigma, flip)
