"""Rotary positions: the program equals plain torch, and turning back is the transpose of turning."""

import pytest
import torch
from torch import Tensor

from ramen.kernels import rotation

HEADS, WIDTH, TOKENS = 3, 8, 5


def parts_and_angles(device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(2, TOKENS + 1, 3 * HEADS * WIDTH, generator=generator).to(device, dtype)
    keys = wide.unflatten(-1, (3, HEADS, WIDTH))[:, 1:, 1]  # as they are in one product with all others
    angles = torch.randn(2, TOKENS, WIDTH, generator=generator).to(device)
    return keys, angles[0].cos(), angles[1].sin()


def check_program(device: str, dtype: torch.dtype, neighbours: bool, back: bool) -> None:
    keys, cos, sin = parts_and_angles(device, dtype)
    expected = keys.clone()
    rotation._turn_torch(expected, cos, sin, neighbours, back)
    assert not torch.allclose(expected, keys)
    rotation._turn_triton(keys, cos, sin, neighbours, back)
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(keys, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.interpreted
@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("back", [True, False])
def test_program_equals_torch(neighbours: bool, back: bool) -> None:
    check_program("cpu", torch.float32, neighbours, back)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("back", [True, False])
def test_program_equals_torch_on_a_gpu(dtype: torch.dtype, neighbours: bool, back: bool) -> None:
    check_program("cuda", dtype, neighbours, back)


@pytest.mark.parametrize("neighbours", [True, False])
def test_back_is_the_gradient(neighbours: bool) -> None:
    keys, cos, sin = (tensor.double() for tensor in parts_and_angles())
    gradient = torch.randn_like(keys)

    def turned(x: Tensor) -> Tensor:
        x = x.clone()
        rotation.turn(x, cos, sin, neighbours)
        return x

    _, expected = torch.func.vjp(turned, keys)
    found = gradient.clone()
    rotation.turn(found, cos, sin, neighbours, back=True)
    torch.testing.assert_close(found, expected(gradient)[0], rtol=0, atol=1e-12)
