"""Mean tokens: the program equals plain torch, and the gradient is autograd's."""

import pytest
import torch

from ramen.kernels import token_means


def check(device: str, dtype: torch.dtype, tokens: int, width: int, delta: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, tokens, width, generator=generator).to(device, dtype)
    shape = {"each": (3, tokens, width), "shared": (tokens, width)}.get(delta)
    added = None if shape is None else torch.randn(shape, generator=generator).to(device, dtype)
    plain, fused = token_means._forward_torch(x, added), token_means._forward_triton(x, added)
    assert torch.equal(fused[0], plain[0])
    assert fused[1].dtype == torch.float32
    torch.testing.assert_close(fused[1], plain[1], rtol=1e-5, atol=1e-5)


@pytest.mark.interpreted
@pytest.mark.parametrize(("tokens", "width"), [(1, 5), (7, 64), (65, 40)])
@pytest.mark.parametrize("delta", ["none", "each", "shared"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_program_equals_torch(tokens: int, width: int, delta: str, dtype: torch.dtype) -> None:
    check("cpu", dtype, tokens, width, delta)


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "width"), [(1, 5), (65, 40), (197, 768), (257, 1024)])
@pytest.mark.parametrize("delta", ["none", "each", "shared"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_program_equals_torch_on_a_gpu(tokens: int, width: int, delta: str, dtype: torch.dtype) -> None:
    check("cuda", dtype, tokens, width, delta)


def test_the_gradient_equals_autograds() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    of_means = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(token_means.forward(x), x, [gradient, of_means])
    torch.testing.assert_close(token_means.backward(gradient, of_means), expected, rtol=0, atol=1e-15)
