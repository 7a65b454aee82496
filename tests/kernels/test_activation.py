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
