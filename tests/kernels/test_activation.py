"""The activation's Triton programs equal plain torch."""

import pytest
import torch

from ramen.kernels import activation


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", activation.KINDS)
def test_programs_equal_torch(kind: str) -> None:
    x = torch.linspace(-8, 8, 5001)
    gradient = torch.randn(5001, generator=torch.Generator().manual_seed(0))
    plain = activation._forward_torch(x, kind), activation._backward_torch(gradient, x, kind)
    fused = activation._forward_triton(x, kind), activation._backward_triton(gradient.clone(), x, kind)
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-5)


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", activation.GATES)
@pytest.mark.parametrize("width", [40, 64])
def test_gates_equal_torch(kind: str, width: int) -> None:
    check_gate(kind, width, "cpu", torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", activation.GATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gates_equal_torch_on_a_gpu(kind: str, dtype: torch.dtype) -> None:
    check_gate(kind, 2048, "cuda", dtype)


def check_gate(kind: str, width: int, device: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 35, 2 * width, generator=generator).to(device, dtype)
    gradient = torch.randn(3, 35, width, generator=generator).to(device, dtype)
    exact = x.double()
    plain = activation._forward_torch(exact, kind), activation._backward_torch(gradient.double(), exact, kind)
    fused = activation._forward_triton(x, kind), activation._backward_triton(gradient, x, kind)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    for one, two in zip(fused, plain, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=tolerance, atol=tolerance)
